"""What a bench can tell: the smallest effect it would notice, and how much of it is needed for one. Pure.

Tests are one-sided with level ``alpha``; ``spread`` is the standard deviation of the tasks' differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import optimize, special

from evalsuite.statistics.units import Floats


def detectable_effect(
    spread: float, tasks: int, alpha: float = 0.05, power: float = 0.8, design_effect: float = 1.0
) -> float:
    """The effect that ``tasks`` tasks show with ``power``. ``design_effect``: :func:`design_effect` of clusters."""
    if tasks < 1 or spread < 0:
        raise ValueError(f"{tasks} tasks with a spread of {spread}")
    return _deviates(alpha, power) * spread * math.sqrt(design_effect / tasks)


def tasks_needed(
    effect: float, spread: float, alpha: float = 0.05, power: float = 0.8, design_effect: float = 1.0
) -> int:
    """Tasks that show ``effect`` with ``power``."""
    if effect <= 0:
        raise ValueError(f"an effect of {effect} is none")
    return max(1, math.ceil((_deviates(alpha, power) * spread / effect) ** 2 * design_effect))


def power_of(effect: float, spread: float, tasks: int, alpha: float = 0.05, design_effect: float = 1.0) -> float:
    """The chance that ``tasks`` tasks show ``effect``."""
    if spread <= 0:
        return 1.0 if effect > 0 else alpha
    shift = effect / (spread * math.sqrt(design_effect / tasks))
    return float(special.ndtr(shift - special.ndtri(1 - alpha)))


def design_effect(units: int, tasks: int, correlation: float) -> float:
    """By how much clusters of the mean size multiply the variance (Kish), given the correlation inside them."""
    return 1 + (tasks / units - 1) * max(correlation, 0.0)


def correlation_within(values: Floats, clusters: Sequence[str]) -> float:
    """Of values (tasks,) in the same cluster, by analysis of variance; 0 where clusters say nothing about it."""
    names, places, sizes = np.unique(np.asarray(clusters), return_inverse=True, return_counts=True)
    units, tasks = len(names), len(values)
    if units < 2 or tasks <= units:
        return 0.0
    means = np.bincount(places, weights=values) / sizes
    between = float((sizes * (means - values.mean()) ** 2).sum()) / (units - 1)
    within = float(((values - means[places]) ** 2).sum()) / (tasks - units)
    total = between + (tasks / units - 1) * within
    return max(0.0, (between - within) / total) if total > 0 else 0.0


def sequential_power(effect: float, spread: float, tasks: float, alpha: float = 0.05) -> float:
    """The chance that a sequential gate tuned to ``effect`` has shown it by ``tasks`` tasks.

    The logarithm of the evidence wanders like a Brownian motion with drift that must once reach log(1/alpha).
    """
    if tasks <= 0:
        return 0.0
    steps = tasks * (effect / spread) ** 2
    wall = math.log(1 / alpha)
    root = math.sqrt(steps)
    return float(special.ndtr(root / 2 - wall / root) + math.exp(wall) * special.ndtr(-root / 2 - wall / root))


def sequential_tasks(effect: float, spread: float, alpha: float = 0.05, power: float = 0.8) -> int:
    """Tasks at most, that a sequential gate needs for ``power``; on average it needs far fewer."""
    if effect <= 0:
        raise ValueError(f"an effect of {effect} is none")
    steps = optimize.brentq(lambda each: sequential_power(1.0, 1.0, each, alpha) - power, 1e-6, 1e6)
    return max(1, math.ceil(float(steps) * (spread / effect) ** 2))


def sequential_detectable(spread: float, tasks: int, alpha: float = 0.05, power: float = 0.8) -> float:
    """The effect that a sequential gate shows with ``power`` by ``tasks`` tasks."""
    steps = optimize.brentq(lambda each: sequential_power(1.0, 1.0, each, alpha) - power, 1e-6, 1e6)
    return float(spread * math.sqrt(steps / tasks))


def _deviates(alpha: float, power: float) -> float:
    return float(special.ndtri(1 - alpha) + special.ndtri(power))
