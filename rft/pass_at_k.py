"""pass@k of tasks that all got the same number of samples. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable


def pass_at_k(samples: int, accepted: int, k: int) -> float:
    """The unbiased estimate that one of ``k`` samples is accepted (Chen et al. 2021), 1 <= k <= samples."""
    if not 1 <= k <= samples:
        raise ValueError(f"k is {k}, and there are {samples} samples")
    if samples - accepted < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(samples - accepted + 1, samples + 1))


def mean_pass_at_k(tasks: Iterable[tuple[int, int]], k: int) -> float:
    """Over tasks, ``(samples, accepted)`` each; ValueError when there are none or one has fewer than ``k`` samples."""
    values = [pass_at_k(samples, accepted, k) for samples, accepted in tasks]
    if not values:
        raise ValueError("there are no tasks")
    return math.fsum(values) / len(values)
