"""Predicted against measured peaks on this machine: a small file in the user's cache that every run adds to."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from supervisor.protocol.atomic import write_atomic
from supervisor.protocol.lock import BlockingFileLock
from trainer.cache import cache_root

KEPT = 200
USED = 15
"""The newest measurements that a ratio is the median of."""
SMALLEST_BYTES = 256 << 20
"""Below this a process's own memory drowns that of its tensors, and a ratio would say nothing."""
ALLOCATOR_SHARE = 1.04
"""What torch's GPU allocator holds over the live tensors, until this machine has measured it."""
CONTEXT_BYTES = {"cuda": 600 << 20, "cpu": 650 << 20}
"""What there is besides tensors: on a GPU the CUDA context, the libraries' kernels and cuBLAS's workspace; on a CPU a
Python process that has imported torch, transformers and TRL (measured: 0.63 GiB resident)."""


class Measured(msgspec.Struct, frozen=True):
    """One run. ``device``: cuda or cpu; ``device_name`` of the card. Bytes of tensors, and what the device gave out.

    ``measured_bytes`` is the allocator's peak of reserved bytes on a GPU, and on a CPU the growth of the process's
    resident memory since before the model was loaded.
    """

    device: str
    device_name: str
    base: str
    key: str
    predicted_bytes: int
    measured_bytes: int
    time: float


@dataclass(frozen=True)
class Ratio:
    """Measured over predicted, and where that is from, for people."""

    value: float
    source: str


def calibration_file() -> Path:
    return cache_root() / "memory.json"


def read_measured() -> list[Measured]:
    try:
        return msgspec.json.decode(calibration_file().read_bytes(), type=list[Measured])
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):  # only ever a calibration: begin anew
        return []


def remember(measured: Measured) -> None:
    """Raises OSError."""
    file = calibration_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = BlockingFileLock(file.with_name(f".{file.name}.lock"))
    with lock:
        write_atomic(file, msgspec.json.encode([*read_measured(), measured][-KEPT:]))


def now_measured(device: str, device_name: str, base: str, key: str, predicted: int, measured: int) -> Measured:
    return Measured(device, device_name, base, key, predicted, measured, time.time())


def ratio_for(known: list[Measured], device: str, base: str) -> Ratio:
    """The median of the newest runs on this kind of device, those of the same base if there are any."""
    usable = [entry for entry in known if entry.device == device and entry.predicted_bytes >= SMALLEST_BYTES]
    same = [entry for entry in usable if entry.base == base]
    chosen = (same or usable)[-USED:]
    if not chosen:
        value = ALLOCATOR_SHARE if device == "cuda" else 1.0
        return Ratio(value, "no run measured on this machine yet; the built-in share is taken")
    value = statistics.median(entry.measured_bytes / entry.predicted_bytes for entry in chosen)
    whose = f"of {base}" if same else "of other models"
    number = f"{len(chosen)} run{'' if len(chosen) == 1 else 's'}"
    return Ratio(value, f"measured / predicted = {value:.3f} in {number} {whose} on this machine")
