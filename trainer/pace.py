"""How fast a training is: tokens per second and the time left, without what was no training."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch


class Pace:
    """Tokens per second between two reports. ``tokens``: done before."""

    def __init__(self, tokens: int) -> None:
        self._mark = (time.monotonic(), tokens)

    def restart(self, tokens: int) -> None:
        """Tokens per second count from now on."""
        self._mark = (time.monotonic(), tokens)

    def tokens_per_second(self, tokens: int) -> float:
        """Since the last call; ``tokens``: done by now."""
        now = time.monotonic()
        then, before = self._mark
        self._mark = (now, tokens)
        return (tokens - before) / max(now - then, 1e-9)

    def leave_out(self, started: float) -> float:
        """Seconds since ``started`` (monotonic), which were no training and shall not slow the rate and the ETA."""
        seconds = time.monotonic() - started
        then, tokens = self._mark
        self._mark = (then + seconds, tokens)
        return seconds


def memory_bytes(device: torch.device) -> int | None:
    """Peak bytes held by the allocator on a GPU, the process's resident bytes on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return None
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
