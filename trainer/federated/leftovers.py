"""What a killed ``federate serve`` or ``join`` has left running: its processes have its mark in their environment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from supervisor.problems import InputError
from supervisor.protocol.lock import FileLock, LockHeldError
from supervisor.protocol.marked import marked

KILL_SECONDS = 30.0
"""What was sent SIGKILL is gone after this, unless the kernel holds it."""


@contextmanager
def alone(path: Path, what: str) -> Iterator[None]:
    """While entered, nobody else gets in. Raises InputError when somebody else is."""
    lock = FileLock(path)
    try:
        lock.acquire()
    except LockHeldError as error:
        raise InputError(f"{what} runs already, as process {error.owner or 'unknown'}. Stop that one first.") from None
    try:
        yield
    finally:
        lock.release()


def end_marked(variable: str, value: str, patience_seconds: float) -> int:
    """End them all, by force what lives on after ``patience_seconds``; returns how many there were.

    Only for whoever holds the lock of :func:`alone`: nobody alive needs them then. Raises InputError when one stays.
    """
    found = marked(variable, value)
    for number, patience in ((signal.SIGTERM, patience_seconds), (signal.SIGKILL, KILL_SECONDS)):
        deadline = time.monotonic() + patience
        asked: set[int] = set()
        while alive := marked(variable, value):
            if time.monotonic() > deadline:
                break
            for pid in alive:  # SIGTERM comes once to each: a second one would cut short how it ends
                if pid not in asked or number == signal.SIGKILL:
                    _signal(pid, number)
                    asked.add(pid)
            time.sleep(0.1)
    if alive:
        raise InputError(f"process {alive[0]} of an earlier start does not end; end it by hand.")
    return len(found)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
