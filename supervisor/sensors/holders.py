"""Who else holds the GPU's memory. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from supervisor.sensors.disk import human_bytes
from supervisor.sensors.history import own_pids
from supervisor.sensors.snapshot import GpuReading, Snapshot, Unknown


class Holder(msgspec.Struct, frozen=True):
    """A process that is not ours and holds memory of GPU ``gpu``."""

    gpu: int
    pid: int
    name: str | Unknown
    owner: str | Unknown
    used_bytes: int | Unknown

    @property
    def certain(self) -> bool:
        """False for a process that cannot be seen from here: in a container it may be our own trainer."""
        return isinstance(self.name, str)


def foreign_memory(gpus: Sequence[GpuReading] | Unknown, own_pids: Collection[int]) -> tuple[Holder, ...] | Unknown:
    """Processes other than ``own_pids`` that hold GPU memory, the largest first, unknown sizes last.

    Unknown when the GPUs, or the processes on a GPU without a known stranger on the others, are unknown.
    """
    if isinstance(gpus, Unknown):
        return gpus
    found: list[Holder] = []
    missing: Unknown | None = None
    for gpu in gpus:
        if isinstance(gpu.processes, Unknown):
            missing = gpu.processes
            continue
        found += [
            Holder(gpu.index, process.pid, process.name, process.owner, process.used_bytes)
            for process in gpu.processes
            if process.pid not in own_pids
        ]
    if missing is not None and not found:
        return missing
    return tuple(sorted(found, key=lambda holder: (-_size(holder), holder.pid, holder.gpu)))


def strangers(snapshots: Sequence[Snapshot]) -> tuple[Holder, ...] | Unknown:
    """:func:`foreign_memory` of the newest snapshot; whatever belonged to the trainer in any of them is ours.

    Right also after the trainer's death, when its own processes may still be on the card for a moment.
    """
    if not snapshots:
        return Unknown("there is no snapshot")
    return foreign_memory(snapshots[-1].gpus, own_pids(snapshots))


def holders_text(holders: Sequence[Holder]) -> str:
    """``firefox (process 4711 of anna) holds 1.4 GiB of GPU 0``, one after the other."""
    return "; ".join(_sentence(holder) for holder in holders)


def _sentence(holder: Holder) -> str:
    owner = f" of {holder.owner}" if isinstance(holder.owner, str) else ""
    who = (
        f"{holder.name} (process {holder.pid}{owner})"
        if isinstance(holder.name, str)
        else f"process {holder.pid}, which cannot be seen from here,"
    )
    size = "an unknown amount" if isinstance(holder.used_bytes, Unknown) else human_bytes(holder.used_bytes)
    return f"{who} holds {size} of GPU {holder.gpu}"


def _size(holder: Holder) -> int:
    return -1 if isinstance(holder.used_bytes, Unknown) else holder.used_bytes
