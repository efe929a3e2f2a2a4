"""What a benchmark ran on, printed beside its numbers."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

import psutil


def describe() -> str:
    """Processor, cores, memory and the load before the benchmark began."""
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
              if line.startswith("model name")]  # fmt: skip
    cores = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{time.strftime('%Y-%m-%d')}, {models[0] if models else platform.machine()}, {cores} cores, "
        f"{memory:.0f} GiB, Python {platform.python_version()}, load before {os.getloadavg()[0]:.1f}"
    )


def verdict(what: str, value: float, target: float, *, at_least: bool) -> None:
    """Print one number beside its target, missed or met."""
    met = value >= target if at_least else value <= target
    bound = f"{'at least' if at_least else 'at most'} {target:g}"
    print(f"  {what}: {value:.4g}, target {bound}: {'met' if met else 'MISSED'}")
