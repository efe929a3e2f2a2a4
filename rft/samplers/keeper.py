"""Holds one program and everything it starts, and ends them all when the other end of its standard input is gone.

A process of its own, started by path: ``keeper.py GRACE_SECONDS FDS -- PROGRAM...``. Standard input is a socket; it
says the program's pid and, when that has ended, its exit status (negative: the signal), a line each. What the
program leaves behind becomes this process's child and is killed. When this process dies itself, the kernel kills the
program. Nothing but the standard library, to start fast.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    grace, descriptors = float(sys.argv[1]), [int(number) for number in sys.argv[2].split(",") if number]
    for number in _IGNORED:  # the other end's to handle
        signal.signal(number, signal.SIG_IGN)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with socket.socket(fileno=os.dup(0)) as owner:
        process = subprocess.Popen(
            sys.argv[4:],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=descriptors,
            preexec_fn=_bind_to_parent,
        )
        for descriptor in descriptors:
            os.close(descriptor)
        ended = os.pidfd_open(process.pid)
        with contextlib.suppress(OSError):
            owner.sendall(f"{process.pid}\n".encode())
        if not _wait(ended, owner, None):
            process.send_signal(signal.SIGTERM)
            _wait(ended, None, grace)
        left = not _wait(ended, None, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()  # only now, so that its number was nobody else's when its group was killed
        _end_orphans()
        if not left:
            with contextlib.suppress(OSError):
                owner.sendall(f"{status}\n".encode())


def _wait(ended: int, owner: socket.socket | None, seconds: float | None) -> bool:
    """Whether the program has ended; not when the owner is gone or the time is over."""
    waiting = select.poll()
    waiting.register(ended, select.POLLIN)
    if owner is not None:
        waiting.register(owner, select.POLLIN)
    ready = {descriptor for descriptor, _ in waiting.poll(None if seconds is None else seconds * 1000)}
    return ended in ready


def _bind_to_parent() -> None:
    """In the program before it begins. This process has one thread, so its death is what the kernel looks at."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)


def _end_orphans() -> None:
    """Kill and reap whatever the program left, however deep."""
    while True:
        for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(child), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


if __name__ == "__main__":
    main()
