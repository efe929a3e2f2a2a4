"""A disk so full that nobody could write down why the trainer ended. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.sensors.disk import human_bytes
from supervisor.sensors.mounts import RUN_DIRECTORY
from supervisor.sensors.snapshot import Snapshot, Unknown

NOTHING_BYTES = 64 << 10
"""Less than a log's last words, an exit report and a torn file together take up."""


def no_room(snapshots: Sequence[Snapshot]) -> str | None:
    """A sentence when the run directory's disk had no room at the trainer's end; None when it had, or nobody knows."""
    mounts = snapshots[-1].mounts if snapshots else ()
    for mount in mounts:
        if RUN_DIRECTORY not in mount.uses:
            continue
        if not isinstance(mount.free_bytes, Unknown) and mount.free_bytes < NOTHING_BYTES:
            left = human_bytes(mount.free_bytes)
            return f"The trainer ended without a word, and {mount.mount} has no room for one: {left} free."
        if not isinstance(mount.free_inodes, Unknown) and mount.free_inodes == 0:
            return f"The trainer ended without a word, and {mount.mount} has no inode left for one."
    return None
