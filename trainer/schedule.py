"""The learning rate as a pure function of the optimiser step."""

from __future__ import annotations

import math


def warmup_steps(total_steps: int, warmup_ratio: float) -> int:
    """Steps of linear warm-up: ``warmup_ratio`` of all planned steps, rounded up."""
    return math.ceil(total_steps * warmup_ratio)


def lr_factor(step: int, total_steps: int, warmup: int, kind: str) -> float:
    """Multiplier of the peak learning rate at 0-based ``step`` of ``total_steps``.

    Warm-up runs through 1/(w+1), ..., w/(w+1), so that not even the first step is wasted at zero.
    Afterwards ``constant`` stays at 1; ``linear`` and ``cosine`` fall from 1 to 0, which they would
    reach at step ``total_steps``, one past the last.
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if kind == "constant":
        return 1.0
    progress = (step - warmup) / max(1, total_steps - warmup)
    if progress >= 1:
        return 0.0
    if kind == "linear":
        return 1.0 - progress
    if kind == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    raise ValueError(f"unknown lr_scheduler_type {kind!r}")
