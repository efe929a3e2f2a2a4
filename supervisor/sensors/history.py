"""What the snapshots of one attempt say together. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.sensors.snapshot import CgroupReading, Snapshot, Unknown


def own_pids(snapshots: Sequence[Snapshot]) -> frozenset[int]:
    """Everybody who was seen in the trainer's process tree."""
    return frozenset().union(*(snapshot.trainer_pids for snapshot in snapshots))


def oom_kills(snapshots: Sequence[Snapshot]) -> int | None:
    """How many processes of the trainer's control group the kernel killed for memory; None when unknown."""
    groups = [snapshot.cgroup for snapshot in snapshots if isinstance(snapshot.cgroup, CgroupReading)]
    counts = [group.oom_kills for group in groups if not isinstance(group.oom_kills, Unknown)]
    if len(counts) < 2 or groups[0].path != groups[-1].path:
        return None
    return max(0, counts[-1] - counts[0])


def kernel_lines(snapshots: Sequence[Snapshot]) -> str | None:
    """What the kernel logged during the attempt, one event a line; None when its log cannot be read.

    Kills, crashes and hangs of processes that are not ours are left out; of the hardware everything counts.
    """
    if not snapshots or isinstance(snapshots[-1].kernel, Unknown):
        return None
    ours = own_pids(snapshots)
    return "\n".join(
        event.text
        for event in snapshots[-1].kernel
        if event.what in ("xid", "io_error") or event.pid is None or event.pid in ours
    )
