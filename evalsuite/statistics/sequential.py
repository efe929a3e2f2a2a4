"""Evidence that may be looked at after every task: bets on independent units, one after the other. Pure.

For each side a gambler starts with 1 and bets against the hypothesis that the mean is not beyond a threshold. While it
is true, the capital is a non-negative martingale, so it reaches 1/alpha with a chance of at most alpha, at any time and
however often one looks (Ville 1939; Waudby-Smith and Ramdas 2024). How much is bet is decided before each unit from the
earlier ones, so as to grow fastest if the mean lies ``effect`` beyond the threshold; that is a matter of speed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from evalsuite.statistics.units import Floats, Units

_MOST = 0.9
"""Share of the capital that the worst unit may cost."""
_GUESS_WEIGHT = 10.0
"""Units that the variance supposed before there are any counts for."""
_HALVINGS = 40


@dataclass(frozen=True)
class Wealth:
    """``above`` and ``below`` (units, columns): the capital of the two gamblers after each unit, and its highest value
    so far counts: its inverse is a p-value that is valid whenever one stops."""

    above: Floats
    below: Floats

    @property
    def p_above(self) -> Floats:
        return _inverse(self.above)

    @property
    def p_below(self) -> Floats:
        return _inverse(self.below)


def order_of(clusters: Sequence[str], seed: int) -> list[str]:
    """The clusters of a bench in the order in which a sequential gate asks them: random, the same for each model."""
    names = sorted(set(clusters))
    return [names[place] for place in np.random.Generator(np.random.PCG64(seed)).permutation(len(names))]


@dataclass(frozen=True)
class Design:
    """What is settled before the first unit is seen.

    ``effect``: the distance from a threshold that bets are made for. ``variance``: of a task's value, supposed until
    there are units to tell. Values lie between ``low`` and ``high``. ``largest``: tasks of the bench's largest unit.
    """

    effect: float
    variance: float
    low: float = -1.0
    high: float = 1.0
    largest: float = 1.0


def wealth(units: Units, above: float, below: float, design: Design) -> Wealth:
    """Bets that the mean is more than ``above``, and that it is less than ``below``, both inside the range.

    ``units`` in the order of :func:`order_of`.
    """
    stakes = _stakes(units, design)
    x, n = units.sums / design.largest, (units.sizes / design.largest)[:, None]
    up = np.minimum(stakes, _MOST / (above - design.low))
    down = np.minimum(stakes, _MOST / (design.high - below))
    with np.errstate(over="ignore"):
        return Wealth(
            np.exp(np.cumsum(np.log1p(up * (x - above * n)), axis=0)),
            np.exp(np.cumsum(np.log1p(-down * (x - below * n)), axis=0)),
        )


def bounds(units: Units, alpha: float, design: Design) -> tuple[Floats, Floats]:
    """(columns,) each: the mean is above the first, and below the second, with confidence 1 - alpha each, whenever one
    looks: the thresholds that :func:`wealth` has just not refuted."""
    lowest, highest = np.empty(units.sums.shape[1]), np.empty(units.sums.shape[1])
    for column in range(len(lowest)):
        one = units.column(column)

        def refuted(threshold: float, one: Units = one) -> tuple[bool, bool]:
            found = wealth(one, threshold, threshold, design)
            return bool(found.p_above[0] <= alpha), bool(found.p_below[0] <= alpha)

        lowest[column] = _edge(design.low, design.high, lambda at: not refuted(at)[0])
        highest[column] = -_edge(-design.high, -design.low, lambda at: not refuted(-at)[1])
    return lowest, highest


def _stakes(units: Units, design: Design) -> Floats:
    """(units, columns): what to bet on each unit, known before it is seen."""
    x, n = units.sums / design.largest, (units.sizes / design.largest)[:, None]
    seen = np.arange(len(n))[:, None]
    total, sizes = _before(x), _before(n)
    size = np.where(seen > 0, sizes / np.maximum(seen, 1), n[0])
    mean = total / np.maximum(sizes, n[0] * 1e-12)
    squares = _before(x**2) - 2 * mean * _before(x * n) + mean**2 * _before(n**2)
    supposed = design.variance * size / design.largest
    variance = (squares + supposed * _GUESS_WEIGHT) / (seen + _GUESS_WEIGHT)
    shift = design.effect * size
    return np.asarray(shift / (variance + shift**2))


def _before(values: Floats) -> Floats:
    """Running sums over units, without the unit itself."""
    return np.cumsum(values, axis=0) - values


def _edge(low: float, high: float, holds: Callable[[float], bool]) -> float:
    """Where ``holds`` turns from false to true, to a tiny part of the range; ``low`` if it is true everywhere."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return low


def _inverse(capital: Floats) -> Floats:
    return np.asarray(np.minimum(1.0, 1.0 / np.maximum(capital.max(axis=0), 1.0)))
