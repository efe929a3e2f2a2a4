"""Processes that a trainer left behind, also those that left its process group or session."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from supervisor.process.stop import KILL_SECONDS, StuckProcessError
from supervisor.protocol.attempt import SPEC_VARIABLE
from supervisor.protocol.marked import marked

REAP_SECONDS = 1.0
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


@contextmanager
def subreaper() -> Iterator[None]:
    """While entered, orphaned descendants become our children, so that we can reap them."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int()
    if libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_GET_CHILD_SUBREAPER)")
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def processes_of(attempt_spec: Path) -> list[int]:
    """Living processes whose environment names this attempt: the trainer's descendants, however detached."""
    return marked(SPEC_VARIABLE, str(attempt_spec))


def holds_open(pid: int, path: Path) -> bool:
    """Has this process the file open? Guards against a pid that now belongs to a stranger.

    Raises PermissionError when another user's process does not let us look.
    """
    try:
        opened = list(Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:
        return False
    wanted = path.stat()
    for entry in opened:
        try:
            found = entry.stat()
        except FileNotFoundError:
            continue
        if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
            return True
    return False


def end_leftovers(attempt_spec: Path, patience_seconds: float = KILL_SECONDS) -> list[int]:
    """SIGKILL and reap whatever of an ended trainer still lives; returns the pids that were killed.

    Raises StuckProcessError when one of them does not end, PermissionError when it may not be killed.
    """
    killed: list[int] = []
    deadline = time.monotonic() + patience_seconds
    while alive := processes_of(attempt_spec):
        if time.monotonic() > deadline:
            raise StuckProcessError(alive[0])
        for pid in alive:
            if pid not in killed:
                killed.append(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    for pid in killed:
        _reap(pid)
    return killed


def reap_group(group: int) -> None:
    """Reap the children of ours that belonged to the trainer's process group, which was killed."""
    _reap(-group)


def _reap(pid: int) -> None:
    """Reap what ``waitpid`` means by ``pid``; somebody killed may take a moment until it can be reaped."""
    deadline = time.monotonic() + REAP_SECONDS
    while time.monotonic() < deadline:
        try:
            ended, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # all reaped, or adopted by somebody else, who reaps it
            return
        if ended == 0:
            time.sleep(0.01)
