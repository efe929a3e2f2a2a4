"""GPU memory that others hold on the trainer's cards: how much, who, and is it to blame. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from supervisor.diagnosis.gpu_memory import read_gpu_memory
from supervisor.sensors.history import own_pids
from supervisor.sensors.holders import Holder, foreign_memory
from supervisor.sensors.snapshot import GpuReading, Snapshot, Unknown

MUCH_SHARE = 0.05
MUCH_LEAST_BYTES = 256 << 20
MUCH_MOST_BYTES = 1 << 30
"""Others press on a card from a share of it on that a desktop's display server does not reach, 1 GiB at most."""
LAST_READINGS = 2
"""Somebody may be gone again by the reading after the trainer's end."""


def blamed(message: str, snapshots: Sequence[Snapshot]) -> tuple[Holder, ...]:
    """The processes without which what the out-of-memory ``message`` asked for would have fitted; empty if none."""
    ours, cards = own_pids(snapshots), trainer_cards(snapshots, message)
    read = [snapshot for snapshot in snapshots if not isinstance(snapshot.gpus, Unknown)]
    for snapshot in reversed(read[-LAST_READINGS:]):
        holders = pressing(snapshot.gpus, ours, cards)
        if not isinstance(holders, Unknown) and holders and _covers(message, _bytes_of(holders, snapshot.gpus)):
            return holders
    return ()


def pressing(
    gpus: Sequence[GpuReading] | Unknown, ours: Collection[int], cards: Collection[int]
) -> tuple[Holder, ...] | Unknown:
    """Strangers on ``cards`` that together hold much of one, the largest first; empty when there is no pressure.

    Only who can be seen counts: a process in another PID namespace may be the trainer itself.
    """
    found = foreign_memory(gpus, ours)
    if isinstance(found, Unknown) or isinstance(gpus, Unknown):
        return found if isinstance(found, Unknown) else ()
    holders: list[Holder] = []
    for gpu in gpus:
        here = [holder for holder in found if holder.gpu == gpu.index and holder.certain]
        if gpu.index in cards and here and _bytes_of(here, [gpu]) >= much(gpu):
            holders += here
    return tuple(holders)


def much(gpu: GpuReading) -> int:
    """From how many bytes on strangers press on this card."""
    total = 0 if isinstance(gpu.total_bytes, Unknown) else gpu.total_bytes
    return max(MUCH_LEAST_BYTES, min(MUCH_MOST_BYTES, round(MUCH_SHARE * total)))


def still_held(gpus: Sequence[GpuReading] | Unknown, dead: Collection[int]) -> tuple[Holder, ...]:
    """What the driver still holds for processes of ours that have ended; empty as well when it cannot be read."""
    if isinstance(gpus, Unknown):
        return ()
    return tuple(
        Holder(gpu.index, process.pid, process.name, process.owner, process.used_bytes)
        for gpu in gpus
        if not isinstance(gpu.processes, Unknown)
        for process in gpu.processes
        if process.pid in dead
    )


def trainer_cards(snapshots: Sequence[Snapshot], message: str = "") -> frozenset[int]:
    """The GPUs that the trainer worked on: where it held memory, else the one named in ``message``, else the only one.

    Empty when that cannot be told: somebody on another card is not to blame.
    """
    ours = own_pids(snapshots)
    read = [snapshot.gpus for snapshot in snapshots if not isinstance(snapshot.gpus, Unknown)]
    if held := frozenset(holder.gpu for gpus in read for holder in still_held(gpus, ours)):
        return held
    present = frozenset(gpu.index for gpu in read[-1]) if read else frozenset()
    named = re.search(r"\bGPU (\d+)\b", message)
    if len(present) > 1 and named and int(named[1]) in present:
        return frozenset({int(named[1])})
    return present if len(present) == 1 else frozenset()


def _covers(message: str, size: int) -> bool:
    """Would these bytes have been enough for what was asked? True when the message gives no figures."""
    memory = read_gpu_memory(message)
    return memory.asked is None or memory.free is None or memory.asked - memory.free <= size


def _bytes_of(holders: Sequence[Holder], gpus: Sequence[GpuReading] | Unknown) -> int:
    """Bytes that they hold; where the driver does not say, what is used on the card and not accounted for."""
    known = sum(holder.used_bytes for holder in holders if isinstance(holder.used_bytes, int))
    dark = {holder.gpu for holder in holders if isinstance(holder.used_bytes, Unknown)}
    return known + sum(_unaccounted(gpu) for gpu in (() if isinstance(gpus, Unknown) else gpus) if gpu.index in dark)


def _unaccounted(gpu: GpuReading) -> int:
    if isinstance(gpu.used_bytes, Unknown) or isinstance(gpu.processes, Unknown):
        return 0
    told = sum(process.used_bytes for process in gpu.processes if isinstance(process.used_bytes, int))
    return max(0, gpu.used_bytes - told)
