"""Kernel locks: held by a living process, released by its death, never stale."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

PROBE_SECONDS = 0.3
"""Far longer than a probe (see lock_holder) keeps a lock."""


class LockHeldError(Exception):
    """Somebody else holds the lock; ``owner`` is the pid that it wrote, if it is readable."""

    def __init__(self, path: Path, owner: int | None) -> None:
        super().__init__(f"{path} is held by process {owner if owner else 'unknown'}")
        self.path = path
        self.owner = owner


class FileLock:
    """An exclusive ``flock`` on a file that also names its owner's pid."""

    _operation = fcntl.LOCK_EX | fcntl.LOCK_NB

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock or raise :class:`LockHeldError`: at once when its owner lives, else after a moment.

        The moment is for a probe, which holds the lock in passing without being its owner.
        """
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + PROBE_SECONDS
        while True:
            try:
                fcntl.flock(fd, self._operation)
                break
            except BlockingIOError:
                owner = read_owner(self.path)
                if _is_another(owner) or time.monotonic() > deadline:
                    os.close(fd)
                    raise LockHeldError(self.path, owner) from None
            time.sleep(0.01)
        try:
            _write_owner(fd, os.getpid())
        except OSError:  # a full disk: without our name on it the lock would help nobody
            os.close(fd)
            raise
        self._fd = fd

    def hand_over(self, pid: int) -> None:
        """Name the process that has inherited :attr:`descriptor` as the owner; release() leaves the lock to it."""
        _write_owner(self.descriptor, pid)

    @property
    def descriptor(self) -> int:
        """Of the lock that is held."""
        assert self._fd is not None
        return self._fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


class BlockingFileLock(FileLock):
    """The same lock, but :meth:`acquire` waits for the holder to release it or to die."""

    _operation = fcntl.LOCK_EX


def _write_owner(fd: int, pid: int) -> None:
    written = os.pwrite(fd, f"{pid}\n".encode(), 0)
    os.ftruncate(fd, written)  # last: a file that holds a pid already needs no room for another


def _is_another(pid: int | None) -> bool:
    """Is this the pid of a living process other than this one?"""
    return pid is not None and pid != os.getpid() and Path(f"/proc/{pid}").exists()


def read_owner(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def lock_holder(path: Path) -> int | None:
    """The pid that holds the lock now, 0 if held by someone unreadable, None if it is free."""
    if not path.exists():
        return None
    try:
        probe = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return read_owner(path) or 0
    finally:
        os.close(probe)
    return None
