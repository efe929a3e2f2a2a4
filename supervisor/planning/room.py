"""How much memory there is for a run: of the GPU, or of this machine and our control group."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from supervisor.planning.fit import Room
from supervisor.sensors.cgroup import MemoryCgroup, find_cgroup, read_cgroup
from supervisor.sensors.gpu import Gpus, GpuSensor
from supervisor.sensors.host import read_host
from supervisor.sensors.snapshot import GpuReading, Unknown

GIB = 1 << 30


def find_room(
    wanted: str, gpu_gib: float | None, gpus: Gpus, environment: Mapping[str, str], processes: int = 1
) -> Room:
    """For each of ``processes`` on GPUs, for all of them on a CPU.

    ``wanted``: cuda, cpu or auto. ``gpu_gib``: of a card that need not be in this machine.
    """
    if wanted == "cpu":
        return host_room()
    if gpu_gib is not None:
        return Room("cuda", round(gpu_gib * GIB), f"a GPU of {gpu_gib:g} GiB, as asked")
    found = gpu_room(gpus, environment, processes)
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


def gpu_room(gpus: Gpus, environment: Mapping[str, str], processes: int = 1) -> Room:
    """The largest of the cards that the trainer may see; it takes the fastest one, which is rarely a smaller one.

    With more ``processes`` each takes a card, so that one counts of which as many are at least as large.
    """
    if isinstance(gpus, Unknown):
        return Room("cuda", None, f"no GPU can be looked at here ({gpus.reason})")
    seen = visible(gpus, environment)
    known = [(gpu.total_bytes, gpu) for gpu in seen if isinstance(gpu.total_bytes, int)]
    if not known:
        return Room("cuda", None, "no GPU that the trainer may use tells its memory")
    if len(known) < processes:
        return Room("cuda", None, f"{processes} processes need as many GPUs, and the trainer may use {len(known)}")
    total, chosen = sorted(known, key=lambda entry: entry[0], reverse=True)[processes - 1]
    name = "GPU" if isinstance(chosen.name, Unknown) else chosen.name
    return Room("cuda", total, f"{name} (GPU {chosen.index})")


def visible(gpus: Sequence[GpuReading], environment: Mapping[str, str]) -> list[GpuReading]:
    """Those that CUDA_VISIBLE_DEVICES leaves, or all of them where its numbers may mean any.

    The driver numbers cards by their place on the bus; CUDA does so only with CUDA_DEVICE_ORDER=PCI_BUS_ID, and
    otherwise puts the fastest first. CUDA takes the names up to the first that is none.
    """
    names = environment.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return list(gpus)
    alike = len({(str(gpu.name), str(gpu.total_bytes)) for gpu in gpus}) <= 1
    numbers_agree = alike or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    found: list[GpuReading] = []
    for name in (part.strip() for part in names.split(",")):
        if name.isdigit() and not numbers_agree:
            return list(gpus) if int(name) < len(gpus) else found
        named = [gpu for gpu in gpus if _is_called(gpu, name)]
        if len(named) != 1:
            break
        found += named
    return found


def _is_called(gpu: GpuReading, name: str) -> bool:
    """By its number, or by its UUID or the beginning of it."""
    if name.isdigit():
        return gpu.index == int(name)
    return name.startswith("GPU-") and not isinstance(gpu.uuid, Unknown) and gpu.uuid.startswith(name)


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
