"""A real memory cgroup with a limit, of version 1 or 2, for runs that the kernel's OOM killer shall meet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")


class NoMemoryCgroupError(Exception):
    """This machine or user cannot make one; the text says why."""


@contextmanager
def memory_cgroup(name: str, limit_bytes: int) -> Iterator[Path]:
    """The ``cgroup.procs`` file of a new cgroup; it is removed at the end, when nothing lives in it any more."""
    place = (V1 if V1.is_dir() else V2) / name
    try:
        place.mkdir()
        (place / ("memory.limit_in_bytes" if V1.is_dir() else "memory.max")).write_text(str(limit_bytes))
    except OSError as error:
        raise NoMemoryCgroupError(f"a memory cgroup cannot be made here: {error}") from error
    try:
        yield place / "cgroup.procs"
    finally:
        until = time.monotonic() + 30
        while (place / "cgroup.procs").read_text().strip() and time.monotonic() < until:
            time.sleep(0.1)
        place.rmdir()
