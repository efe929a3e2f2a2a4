"""How much memory there is for a run: of the GPU, or of this machine and our control group."""

from __future__ import annotations

import os
from collections.abc import Mapping

from supervisor.planning.fit import Room
from supervisor.sensors.cgroup import MemoryCgroup, find_cgroup, read_cgroup
from supervisor.sensors.gpu import Gpus, GpuSensor
from supervisor.sensors.host import read_host
from supervisor.sensors.snapshot import GpuReading, Unknown

GIB = 1 << 30


def find_room(wanted: str, gpu_gib: float | None, gpus: Gpus, environment: Mapping[str, str]) -> Room:
    """``wanted``: cuda, cpu or auto. ``gpu_gib``: of a card that need not be in this machine."""
    if wanted == "cpu":
        return host_room()
    if gpu_gib is not None:
        return Room("cuda", round(gpu_gib * GIB), f"a GPU of {gpu_gib:g} GiB, as asked")
    found = gpu_room(gpus, environment)
    if wanted == "auto" and found.total is None:
        return host_room()
    return found


def read_gpus() -> Gpus:
    """What the driver says now; waits for it no longer than its deadline."""
    sensor = GpuSensor()
    try:
        return sensor.read()
    finally:
        sensor.close()


def gpu_room(gpus: Gpus, environment: Mapping[str, str]) -> Room:
    """The largest of the cards that the trainer may see; it takes the fastest one, which is rarely a smaller one."""
    if isinstance(gpus, Unknown):
        return Room("cuda", None, f"no GPU can be looked at here ({gpus.reason})")
    seen = [gpu for gpu in gpus if _visible(gpu, environment.get("CUDA_VISIBLE_DEVICES"))]
    known = [gpu for gpu in seen if not isinstance(gpu.total_bytes, Unknown)]
    if not known:
        return Room("cuda", None, "no GPU that the trainer may use tells its memory")
    chosen = max(known, key=lambda gpu: gpu.total_bytes if isinstance(gpu.total_bytes, int) else 0)
    assert isinstance(chosen.total_bytes, int)
    name = "GPU" if isinstance(chosen.name, Unknown) else chosen.name
    return Room("cuda", chosen.total_bytes, f"{name} (GPU {chosen.index})")


def _visible(gpu: GpuReading, visible: str | None) -> bool:
    if visible is None:
        return True
    names = [name.strip() for name in visible.split(",")]
    return str(gpu.index) in names or (not isinstance(gpu.uuid, Unknown) and gpu.uuid in names)


def host_room() -> Room:
    """The memory of this machine, or less where our control group has a limit."""
    host = read_host(None)
    if isinstance(host.ram_total, Unknown):
        return Room("cpu", None, f"the memory of this machine is unknown ({host.ram_total.reason})")
    total, source = host.ram_total, "this machine's memory"
    group = find_cgroup(os.getpid())
    if isinstance(group, MemoryCgroup):
        limit = read_cgroup(group).limit_bytes
        if isinstance(limit, int) and limit < total:
            total, source = limit, "the limit of our control group"
    return Room("cpu", total, source)
