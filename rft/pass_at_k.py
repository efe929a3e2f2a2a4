"""pass@k of tasks that all got a fixed number of samples. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pass_at_k(samples: int, accepted: ArrayLike, k: int) -> NDArray[np.float64]:
    """The unbiased estimate, for each number in ``accepted``, that one of ``k`` of ``samples`` answers is accepted.

    Chen et al. 2021; 1 <= k <= samples. The result has the shape of ``accepted``.
    """
    counts = np.asarray(accepted, dtype=np.int64)
    if not 1 <= k <= samples:
        raise ValueError(f"k is {k}, and there are {samples} samples")
    if counts.size and not 0 <= int(counts.min()) <= int(counts.max()) <= samples:
        raise ValueError(f"a task cannot have between {counts.min()} and {counts.max()} accepted of {samples} samples")
    # none[c]: all of k are wrong when c of the samples are right. A factor is 0 where fewer than k are wrong.
    factors = 1.0 - k / np.arange(samples, 0, -1, dtype=np.float64)
    none = np.concatenate(([1.0], np.cumprod(np.maximum(factors, 0.0))))
    return np.asarray(1.0 - none[counts])


def mean_pass_at_k(tasks: Iterable[tuple[int, int]], k: int) -> float:
    """Over tasks, ``(samples, accepted)`` each; ValueError when there are none or one has fewer than ``k`` samples."""
    values = [float(pass_at_k(samples, accepted, k)) for samples, accepted in tasks]
    if not values:
        raise ValueError("there are no tasks")
    return float(np.mean(values))
