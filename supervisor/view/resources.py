"""What the sensors saw, in few words."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.sensors.disk import human_bytes
from supervisor.sensors.report import SensorReport
from supervisor.sensors.snapshot import GpuReading, HostReading, Unknown
from supervisor.view.text import clean, duration


def resource_parts(report: SensorReport) -> Iterator[str]:
    """``GPU 0 12.1 GiB of 16.0 GiB 71 C``, ``RAM free 9.8 GiB of 31.2 GiB``, ``/data full in 3 h 10 m``.

    A machine whose GPUs cannot be read has no part about them; :func:`gpu_problem` says why.
    """
    snapshot = report.snapshot
    if not isinstance(snapshot.gpus, Unknown):
        yield from (_gpu(gpu) for gpu in snapshot.gpus)
    yield _ram(snapshot.host)
    for found in report.forecasts:
        if (seconds := found.seconds) is not None:
            yield f"{clean(found.mount)} full in {duration(seconds)}"


def gpu_problem(report: SensorReport) -> str | None:
    """Why the GPUs are unknown, None when they are known."""
    gpus = report.snapshot.gpus
    return gpus.reason if isinstance(gpus, Unknown) else None


def _gpu(gpu: GpuReading) -> str:
    heat = "" if isinstance(gpu.temperature_celsius, Unknown) else f" {gpu.temperature_celsius} C"
    return f"GPU {gpu.index} {_size(gpu.used_bytes)} of {_size(gpu.total_bytes)}{heat}"


def _ram(host: HostReading) -> str:
    return f"RAM free {_size(host.ram_available)} of {_size(host.ram_total)}"


def _size(value: int | Unknown) -> str:
    return "?" if isinstance(value, Unknown) else human_bytes(value)
