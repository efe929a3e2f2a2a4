"""Free space of the mount that a path lives on, and the size of what lies there."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers that mean "no room": a full file system or a used-up quota."""


@dataclass(frozen=True)
class DiskSpace:
    """Room on one mount. ``free_inodes`` is None where the file system does not count inodes (btrfs)."""

    mount: Path
    free_bytes: int
    total_bytes: int
    free_inodes: int | None


def disk_space(path: Path) -> DiskSpace:
    """Room for an ordinary user on the mount of ``path``, which must exist. Raises OSError."""
    figures = os.statvfs(path)
    inodes = figures.f_favail if figures.f_files else None
    return DiskSpace(
        mount_point(path), figures.f_bavail * figures.f_frsize, figures.f_blocks * figures.f_frsize, inodes
    )


def mount_point(path: Path) -> Path:
    """The folder where the file system of ``path`` is mounted."""
    place = path.resolve()
    while not os.path.ismount(place):
        place = place.parent
    return place


def tree_bytes(directory: Path) -> int:
    """Bytes that the files below ``directory`` occupy; files that vanish meanwhile count nothing."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += Path(folder, name).lstat().st_size
            except FileNotFoundError:
                continue
    return total


def human_bytes(count: int) -> str:
    """``1536 -> "1.5 KiB"``."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{count} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
