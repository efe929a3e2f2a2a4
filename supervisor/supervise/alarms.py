"""What in a snapshot a person should hear about, and saying it once. Pure but for the memory of what was said."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from supervisor.sensors.disk import human_bytes
from supervisor.sensors.gpu import DRIVER_HANGS
from supervisor.sensors.holders import foreign_memory, holders_text
from supervisor.sensors.report import MountForecast
from supervisor.sensors.snapshot import CgroupReading, GpuReading, KernelEvent, MountReading, Snapshot, Unknown
from supervisor.view.text import count, duration

REPEAT_SECONDS = 6 * 3600.0
DISK_LEVELS = (("1 h", 3600.0), ("6 h", 6 * 3600.0))
"""A forecast is told when it falls under each of these, the most urgent one first."""
FOREIGN_BYTES = 256 << 20
RAM_SHARE = 0.05
SWAP_SHARE = 0.10
CGROUP_SHARE = 0.95
_HARMFUL_THROTTLING = ("thermal", "hardware")
_OWN_ONLY = frozenset({"crash", "hung_task"})


@dataclass(frozen=True)
class Alarm:
    """``key``: two alarms with the same key are the same news. ``kind`` and the rest are the event's."""

    key: str
    kind: str
    message: str
    data: dict[str, Any] = field(default_factory=dict)


def alarms(before: Snapshot | None, now: Snapshot, forecasts: Sequence[MountForecast]) -> tuple[Alarm, ...]:
    """Everything alarming in ``now``; ``before`` is the snapshot before it, for what only a change tells."""
    return (*_disk(now, forecasts), *_memory(now), *_cgroup(before, now), *_gpus(before, now), *_kernel(before, now))


class AlarmBook:
    """Remembers what was said, so that nothing is said again within six hours."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def new(self, found: Iterable[Alarm], now: float) -> tuple[Alarm, ...]:
        """Those that are news at ``now`` (monotonic seconds)."""
        self._said = {key: moment for key, moment in self._said.items() if now - moment < REPEAT_SECONDS}
        news = []
        for alarm in found:
            if alarm.key not in self._said:
                news.append(alarm)
                self._said[alarm.key] = now
        return tuple(news)


def _disk(now: Snapshot, forecasts: Sequence[MountForecast]) -> Iterator[Alarm]:
    mounts = {mount.mount: mount for mount in now.mounts}
    for found in forecasts:
        mount, seconds = mounts.get(found.mount), found.seconds
        if mount is None or seconds is None:
            continue
        level = next((name for name, limit in DISK_LEVELS if seconds < limit), None)
        if level is not None:
            yield Alarm(
                f"disk {found.mount} {level}",
                "disk_forecast",
                f"{found.mount} ({', '.join(mount.uses)}) {filling(mount, found)}",
                {"mount": found.mount, "seconds": round(seconds)},
            )


def filling(mount: MountReading, found: MountForecast) -> str:
    """``will be full in 3 h 10 m: 2.0 GiB free, 10.8 MiB less each minute``; empty when it is not filling up."""
    size, inodes = found.bytes, found.inodes
    if size is not None and (inodes is None or size.seconds <= inodes.seconds):
        free = "?" if isinstance(mount.free_bytes, Unknown) else human_bytes(mount.free_bytes)
        rate = human_bytes(round(60 * size.per_second))
        return f"will be full in {duration(size.seconds)}: {free} free, {rate} less each minute"
    if inodes is not None:
        free = "?" if isinstance(mount.free_inodes, Unknown) else count(mount.free_inodes)
        rate = count(60 * inodes.per_second)
        return f"will have no inodes left in {duration(inodes.seconds)}: {free} free, {rate} less each minute"
    return ""


def _memory(now: Snapshot) -> Iterator[Alarm]:
    host = now.host
    total, available = host.ram_total, host.ram_available
    if isinstance(total, Unknown) or isinstance(available, Unknown) or available > RAM_SHARE * total:
        return
    swap_total, swap_free = host.swap_total, host.swap_free
    if isinstance(swap_total, Unknown) or isinstance(swap_free, Unknown):
        swap = "swap unknown"
    elif swap_free > SWAP_SHARE * swap_total:
        return
    else:
        swap = f"swap {human_bytes(swap_free)} free" if swap_total else "no swap"
    held = "" if isinstance(host.trainer, Unknown) else f"; the trainer holds {human_bytes(trainer_bytes(now) or 0)}"
    message = f"memory is nearly used up: {human_bytes(available)} of {human_bytes(total)} available, {swap}{held}"
    yield Alarm("memory", "alarm", message, {"what": "memory"})


def trainer_bytes(snapshot: Snapshot) -> int | None:
    """Resident memory of the trainer and its descendants together (shared pages count for each), None if unknown."""
    trainer = snapshot.host.trainer
    return None if isinstance(trainer, Unknown) else sum(process.rss_bytes for process in trainer)


def _cgroup(before: Snapshot | None, now: Snapshot) -> Iterator[Alarm]:
    group = now.cgroup
    if isinstance(group, Unknown):
        return
    limit, used = group.limit_bytes, group.used_bytes
    if isinstance(limit, int) and isinstance(used, int) and used > CGROUP_SHARE * limit:
        message = f"the control group {group.limited_by} holds {human_bytes(used)} of its limit of {human_bytes(limit)}"
        yield Alarm("cgroup", "alarm", message, {"what": "cgroup_memory"})
    earlier = before.cgroup if before is not None else None
    if isinstance(earlier, CgroupReading) and earlier.path == group.path:
        killed = _more(earlier.oom_kills, group.oom_kills)
        if killed:
            message = f"the kernel ended {killed} process(es) in {group.path} for want of memory"
            yield Alarm(f"cgroup kills {group.oom_kills}", "alarm", message, {"what": "oom_kill"})


def _gpus(before: Snapshot | None, now: Snapshot) -> Iterator[Alarm]:
    earlier = before.gpus if before is not None else Unknown("")
    if isinstance(now.gpus, Unknown):
        if now.gpus.reason.startswith(DRIVER_HANGS) or not isinstance(earlier, Unknown):
            message = f"the GPUs cannot be read any more: {now.gpus.reason}"
            yield Alarm("gpus unreadable", "alarm", message, {"what": "gpu_unreadable"})
        return
    old = {} if isinstance(earlier, Unknown) else {gpu.index: gpu for gpu in earlier}
    for gpu in now.gpus:
        yield from _gpu(old.get(gpu.index), gpu)
    if before is not None and before.trainer_pids and now.trainer_pids:
        yield from _strangers(before, now)


def _gpu(before: GpuReading | None, now: GpuReading) -> Iterator[Alarm]:
    if not isinstance(now.throttling, Unknown):
        for reason in now.throttling:
            if any(word in reason for word in _HARMFUL_THROTTLING):
                heat = now.temperature_celsius
                at = "" if isinstance(heat, Unknown) else f" at {heat} C"
                message = f"GPU {now.index} is slowed down{at}: {reason}"
                yield Alarm(f"throttle {now.index} {reason}", "alarm", message, {"what": "gpu_throttled"})
    if isinstance(now.xids, tuple):
        known = len(before.xids) if before is not None and isinstance(before.xids, tuple) else 0
        for number, code in enumerate(now.xids[known:], known):
            message = f"GPU {now.index} reports the critical error Xid {code}"
            yield Alarm(f"xid {now.index} {number} {code}", "alarm", message, {"what": "xid", "code": code})
    errors = _more(before.ecc_uncorrected, now.ecc_uncorrected) if before is not None else 0
    if errors:
        message = f"GPU {now.index} had {errors} memory error(s) that ECC could not correct"
        yield Alarm(f"ecc {now.index} {now.ecc_uncorrected}", "alarm", message, {"what": "ecc"})


def _strangers(before: Snapshot, now: Snapshot) -> Iterator[Alarm]:
    """Only who was there twice: a child of the trainer that has just come or gone may look like a stranger."""
    own = before.trainer_pids | now.trainer_pids
    earlier, found = foreign_memory(before.gpus, own), foreign_memory(now.gpus, own)
    if isinstance(earlier, Unknown) or isinstance(found, Unknown):
        return
    stayed = {holder.pid for holder in earlier}
    for holder in found:
        size = holder.used_bytes
        if holder.pid in stayed and holder.certain and isinstance(size, int) and size >= FOREIGN_BYTES:
            data = {"what": "gpu_foreign_memory", "pid": holder.pid, "bytes": size}
            yield Alarm(f"foreign {holder.gpu} {holder.pid}", "alarm", holders_text([holder]), data)


def _kernel(before: Snapshot | None, now: Snapshot) -> Iterator[Alarm]:
    if isinstance(now.kernel, Unknown):
        return
    ours = now.trainer_pids | (before.trainer_pids if before is not None else frozenset())
    for event in now.kernel:
        if event.what not in _OWN_ONLY or event.pid in ours:
            yield Alarm(_kernel_key(event), "alarm", f"the kernel says: {event.text}", {"what": event.what})


def _kernel_key(event: KernelEvent) -> str:
    """A flood of input/output errors, which differ in sector numbers only, is one piece of news."""
    return f"kernel {re.sub('[0-9]+', '#', event.text)}" if event.what == "io_error" else f"kernel {event.text}"


def _more(before: int | Unknown, now: int | Unknown) -> int:
    """By how much a counter rose; 0 when either reading is unknown."""
    return 0 if isinstance(before, Unknown) or isinstance(now, Unknown) else max(0, now - before)
