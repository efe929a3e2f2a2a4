"""Ways in which a training process comes to grief by itself, for faulty_trainer.py: ``{"do": NAME, "at": STEP}``."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import requests


def bad_pointer() -> None:
    ctypes.string_at(0)


def abort() -> None:
    os.abort()


def silent_exit_1() -> None:
    os._exit(1)


def early_exit_0() -> None:
    os._exit(0)


def bug() -> None:
    raise RuntimeError("the size of tensor a (7) must match the size of tensor b (5) at non-singleton dimension 1")


def connection_lost() -> None:
    raise requests.ConnectionError("('Connection aborted.', RemoteDisconnected('Remote end closed connection'))")


def port_taken() -> None:
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def too_many_files() -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "rows.arrow")


def deadlock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def spin_with_the_gil() -> None:
    # One call of a C function that never looks at signals nor lets another thread run.
    sum(range(10**18))


def leave_a_grandchild() -> None:
    """Double-fork a process that outlives its parents, in a session of its own, then fail."""
    keeper = "import os, time; os.setsid(); os.fork() and os._exit(0); time.sleep(600)"
    subprocess.run([sys.executable, "-S", "-c", keeper], check=True)
    raise RuntimeError("failed after a double fork")


def eat_memory() -> None:
    """Take memory, touched, until somebody ends it."""
    taken = []
    while True:
        taken.append(bytearray(os.urandom(1 << 16)) * (1 << 8))
        time.sleep(0.001)


MISHAPS: dict[str, Callable[[], None]] = {
    action.__name__: action
    for action in (
        bad_pointer,
        abort,
        silent_exit_1,
        early_exit_0,
        bug,
        connection_lost,
        port_taken,
        too_many_files,
        deadlock,
        spin_with_the_gil,
        leave_a_grandchild,
        eat_memory,
    )
}
