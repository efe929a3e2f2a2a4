"""Two-sided intervals for a score and for a difference; exact ones where the values allow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from evalsuite.statistics.bootstrap import DRAWS, fitting
from evalsuite.statistics.units import units_of


@dataclass(frozen=True)
class Interval:
    """``low`` to ``high`` holds the truth with ``confidence``, by ``method``."""

    estimate: float
    low: float
    high: float
    confidence: float
    method: str


def clopper_pearson(accepted: int, samples: int, confidence: float = 0.95) -> Interval:
    """The exact interval for a share, of independent samples; never too narrow."""
    _check(accepted, samples)
    tail = (1 - confidence) / 2
    low = float(special.betaincinv(accepted, samples - accepted + 1, tail)) if accepted else 0.0
    high = float(special.betaincinv(accepted + 1, samples - accepted, 1 - tail)) if accepted < samples else 1.0
    return Interval(accepted / samples, low, high, confidence, "clopper_pearson")


def beta_interval(accepted: int, samples: int, confidence: float = 0.95, prior: float = 0.5) -> Interval:
    """Bayesian, with a Beta(prior, prior) belief about the share before the first sample (1/2: that of Jeffreys)."""
    _check(accepted, samples)
    tail = (1 - confidence) / 2
    a, b = accepted + prior, samples - accepted + prior
    low, high = special.betaincinv(a, b, tail), special.betaincinv(a, b, 1 - tail)
    return Interval(accepted / samples, float(low), float(high), confidence, "beta")


def score_interval(
    values: ArrayLike,
    clusters: Sequence[str] | None = None,
    confidence: float = 0.95,
    *,
    low: float = 0.0,
    high: float = 1.0,
    draws: int = DRAWS,
    seed: int = 0,
) -> Interval:
    """For the mean over tasks of ``values`` (tasks,), each between ``low`` and ``high``: one score, or with -1 and 1
    the differences of two. Tasks of a cluster stay together."""
    table = np.asarray(values, dtype=np.float64)
    units = units_of(table, clusters)
    if (low, high) == (0.0, 1.0) and units.count == len(table) and bool(np.isin(table, (0.0, 1.0)).all()):
        return clopper_pearson(int(table.sum()), len(table), confidence)
    bounds = fitting(units, low, high, draws, seed)
    each = (1 + confidence) / 2
    return Interval(
        float(units.means[0]), float(bounds.lower(each)[0]), float(bounds.upper(each)[0]), confidence, bounds.method
    )


def _check(accepted: int, samples: int) -> None:
    if not (samples > 0 and 0 <= accepted <= samples):
        raise ValueError(f"{accepted} accepted of {samples} samples")
