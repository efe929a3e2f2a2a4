"""What the sensors saw at one moment, as frozen values. A figure that could not be read is an Unknown, never 0."""

from __future__ import annotations

import msgspec


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    """In place of a value that could not be read; ``reason`` is for people."""

    reason: str


class GpuProcess(msgspec.Struct, frozen=True):
    """A process that holds memory of one GPU.

    ``name`` and ``owner`` are unknown for a process that has just ended or that lives in a PID namespace
    that cannot be seen from here; such a pid may even be one of our own.
    """

    pid: int
    used_bytes: int | Unknown
    name: str | Unknown = Unknown("not looked up")
    owner: str | Unknown = Unknown("not looked up")


class GpuReading(msgspec.Struct, frozen=True):
    """One GPU. ``index`` counts as NVML does (by PCI bus), which CUDA_VISIBLE_DEVICES does not change.

    ``throttling``: why the clocks are held down now, empty when they aren't; idleness is no reason.
    ``ecc_uncorrected``: memory errors since the driver was loaded. ``xids``: critical Xid codes since the
    sensor was started, oldest first.
    """

    index: int
    uuid: str | Unknown
    name: str | Unknown
    total_bytes: int | Unknown
    used_bytes: int | Unknown
    free_bytes: int | Unknown
    utilisation_percent: int | Unknown
    temperature_celsius: int | Unknown
    throttling: tuple[str, ...] | Unknown
    ecc_uncorrected: int | Unknown
    compute_mode: str | Unknown
    xids: tuple[int, ...] | Unknown
    processes: tuple[GpuProcess, ...] | Unknown


class MountReading(msgspec.Struct, frozen=True):
    """One file system that the run touches. ``uses``: what for. Room is that of an ordinary user."""

    mount: str
    uses: tuple[str, ...]
    total_bytes: int | Unknown
    free_bytes: int | Unknown
    free_inodes: int | Unknown


class ProcessMemory(msgspec.Struct, frozen=True):
    pid: int
    name: str
    rss_bytes: int


class HostReading(msgspec.Struct, frozen=True):
    """Memory of the machine in bytes; ``load`` is the one-minute load average.

    ``trainer``: the trainer and its descendants, the trainer first.
    """

    ram_total: int | Unknown
    ram_available: int | Unknown
    swap_total: int | Unknown
    swap_free: int | Unknown
    load: float | Unknown
    trainer: tuple[ProcessMemory, ...] | Unknown


class CgroupReading(msgspec.Struct, frozen=True, tag="cgroup"):
    """The memory control group of the trainer.

    ``limit_bytes``: the tightest limit from here up to the root, None where there is none; ``limited_by`` is
    the group that sets it. ``used_bytes``: of that group (without a limit: of the trainer's own), page cache
    that the kernel can drop at once left out. ``oom_kills``: processes of the trainer's own group that the kernel
    has killed since the group exists; compare two readings.
    """

    version: int
    path: str
    limit_bytes: int | Unknown | None
    limited_by: str | None
    used_bytes: int | Unknown
    oom_kills: int | Unknown


class KernelEvent(msgspec.Struct, frozen=True):
    """A line of the kernel log that matters to a run.

    ``what``: oom_kill, xid, io_error, crash or hung_task. ``seconds``: since boot, None where the line does
    not say. ``pid``: the process concerned (for oom_kill the victim). ``code``: of an Xid.
    """

    what: str
    text: str
    seconds: float | None = None
    pid: int | None = None
    code: int | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """All sensors at one moment. ``time``: Unix seconds; ``monotonic``: CLOCK_MONOTONIC, seconds.

    ``kernel``: what the kernel logged since the attempt began, oldest first.
    """

    time: float
    monotonic: float
    gpus: tuple[GpuReading, ...] | Unknown
    mounts: tuple[MountReading, ...]
    host: HostReading
    cgroup: CgroupReading | Unknown
    kernel: tuple[KernelEvent, ...] | Unknown

    @property
    def trainer_pids(self) -> frozenset[int]:
        """The trainer and its descendants at that moment; empty when that is unknown."""
        trainer = self.host.trainer
        return frozenset() if isinstance(trainer, Unknown) else frozenset(process.pid for process in trainer)
