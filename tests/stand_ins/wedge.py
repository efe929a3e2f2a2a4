"""Stops one thread of a process, as a deadlock would, while its other threads go on: ``python wedge.py TID``.

It says its own pid and keeps the thread stopped for as long as it lives. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207

if __name__ == "__main__":
    thread = int(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        if libc.ptrace(request, thread, None, None) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(thread, 0x40000000)  # __WALL
    print(os.getpid(), flush=True)
    signal.pause()
