"""How far a mean could lie from the truth: units drawn again, thousands of times.

Three ways, all over independent units (clusters of tasks) and any number of columns at a time:

- ``percentile``: quantiles of the drawn means; too narrow with few units.
- ``bca``: bias-corrected and accelerated (Efron 1987), widened for the number of units as Student's t is.
- ``bounded``: units get random weights (Rubin's Bayesian bootstrap), and one more unit, as large as the largest, is
  added that has the worst value there can be for a lower bound, the best for an upper one (Gaffke 2005). Needs only
  that values are bounded, so it holds for few units and few that differ. For 0/1 values it is Clopper and Pearson's
  exact interval, for differences of 0/1 values against zero the exact test of McNemar; for other values no exception is
  known, and it is not proved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special

from evalsuite.statistics.units import Floats, Units

DRAWS = 10_000
FEW_UNITS = 50
FEW_DIFFERING = 25
"""Below either, what units were not drawn matters more than those that were: ``bounded``."""
Truths = NDArray[np.bool_]
_AT_A_TIME = 1_000_000
"""Units drawn at a time; a few tens of MB."""


class Bounds(Protocol):
    """What the data say about the means of all columns. Every method gives one number a column."""

    @property
    def method(self) -> str: ...

    def lower(self, confidence: float) -> Floats:
        """The mean is above it, with ``confidence`` (one-sided)."""

    def upper(self, confidence: float) -> Floats:
        """The mean is below it, with ``confidence`` (one-sided)."""

    def p_above(self, threshold: float) -> Floats:
        """How likely data like these would be, at most, if the mean were not above ``threshold``."""

    def p_below(self, threshold: float) -> Floats:
        """How likely data like these would be, at most, if the mean were not below ``threshold``."""


def drawn_means(units: Units, draws: int, seed: int) -> Floats:
    """(draws, columns): the means of as many units as there are, drawn with replacement.

    A draw is a row of a sparse matrix that counts the units in it: one product does all columns, which stay paired.
    """
    count, columns = units.sums.shape
    generator = np.random.Generator(np.random.SFC64(seed))
    even = bool((units.sizes == units.sizes[0]).all())
    table = units.sums if even else np.column_stack([units.sums, units.sizes])
    rows = max(1, min(draws, _AT_A_TIME // count))
    ones = np.ones(rows * count)
    starts = np.arange(0, rows * count + 1, count, dtype=np.int32)
    found = np.empty((draws, columns))
    for first in range(0, draws, rows):
        size = min(rows, draws - first)
        chosen = generator.integers(0, count, size=size * count).astype(np.int32)  # much faster than drawing int32
        counts = sparse.csr_array((ones[: size * count], chosen, starts[: size + 1]), shape=(size, count))
        sums = counts @ table
        sizes = units.sizes[0] * count if even else sums[:, -1:]
        found[first : first + size] = sums[:, :columns] / sizes
    return found


@dataclass(frozen=True)
class Percentile:
    """Quantiles of ``means`` (draws, columns)."""

    means: Floats
    method: str = "percentile"

    def lower(self, confidence: float) -> Floats:
        return np.asarray(np.quantile(self.means, 1 - confidence, axis=0))

    def upper(self, confidence: float) -> Floats:
        return np.asarray(np.quantile(self.means, confidence, axis=0))

    def p_above(self, threshold: float) -> Floats:
        return _at_least_one_draw(self.means <= threshold)

    def p_below(self, threshold: float) -> Floats:
        return _at_least_one_draw(self.means >= threshold)


@dataclass(frozen=True)
class Bca:
    """``bias`` and ``acceleration`` (columns,) shift the quantiles of ``means`` (draws, columns) that are taken.

    ``units`` widens them to those of Student's t; None leaves them as Efron has them.
    """

    means: Floats
    bias: Floats
    acceleration: Floats
    units: int | None = None
    method: str = "bca"

    def lower(self, confidence: float) -> Floats:
        return self._quantile(self._widened(special.ndtri(1 - confidence)))

    def upper(self, confidence: float) -> Floats:
        return self._quantile(self._widened(special.ndtri(confidence)))

    def p_above(self, threshold: float) -> Floats:
        return self._chance(self._level(self.means <= threshold))

    def p_below(self, threshold: float) -> Floats:
        return self._chance(-self._level(self.means < threshold))

    def _quantile(self, z: float) -> Floats:
        moved = self.bias + z
        shares = special.ndtr(self.bias + moved / (1 - self.acceleration * moved))
        return np.asarray([np.quantile(column, share) for column, share in zip(self.means.T, shares, strict=True)])

    def _level(self, below: Truths) -> Floats:
        """The z whose quantile is the threshold: the inverse of :meth:`_quantile`."""
        draws = len(below)
        share = np.clip(below.sum(axis=0), 1, draws) / (draws + 1)
        moved = special.ndtri(share) - self.bias
        return np.asarray(moved / (1 + self.acceleration * moved) - self.bias)

    def _widened(self, z: float) -> float:
        if self.units is None:
            return z
        t = special.stdtrit(self.units - 1, special.ndtr(z))
        return float(np.sqrt(self.units / (self.units - 1)) * t)

    def _chance(self, z: Floats) -> Floats:
        if self.units is None:
            return np.asarray(special.ndtr(z))
        return np.asarray(special.stdtr(self.units - 1, z * np.sqrt((self.units - 1) / self.units)))


@dataclass(frozen=True)
class Bounded:
    """``lows`` and ``highs`` (draws, columns): weighted means with one more unit of the worst and of the best value."""

    lows: Floats
    highs: Floats
    method: str = "bounded"

    def lower(self, confidence: float) -> Floats:
        return np.asarray(np.quantile(self.lows, 1 - confidence, axis=0))

    def upper(self, confidence: float) -> Floats:
        return np.asarray(np.quantile(self.highs, confidence, axis=0))

    def p_above(self, threshold: float) -> Floats:
        return _at_least_one_draw(self.lows <= threshold)

    def p_below(self, threshold: float) -> Floats:
        return _at_least_one_draw(self.highs >= threshold)


def percentile(units: Units, draws: int = DRAWS, seed: int = 0) -> Percentile:
    return Percentile(drawn_means(units, draws, seed))


def bca(units: Units, draws: int = DRAWS, seed: int = 0, *, widened: bool = True) -> Bca:
    """Two units at least; columns of which no unit differs have no spread and no sense here."""
    means = drawn_means(units, draws, seed)
    observed = units.means
    share = ((means < observed).sum(axis=0) + (means <= observed).sum(axis=0)) / (2 * draws)
    away = units.left_out.mean(axis=0) - units.left_out
    with np.errstate(invalid="ignore"):
        acceleration = (away**3).sum(axis=0) / (6 * (away**2).sum(axis=0) ** 1.5)
    return Bca(means, special.ndtri(share), np.asarray(acceleration), units.count if widened else None)


def bounded(units: Units, low: float, high: float, draws: int = DRAWS, seed: int = 0) -> Bounded:
    """Values lie between ``low`` and ``high``. The unit that is added is as large as the largest: what was not drawn
    might have been, and with one large unit among many small ones a smaller one would say nothing about it."""
    count, columns = units.sums.shape
    generator = np.random.Generator(np.random.SFC64(seed))
    table = np.column_stack([units.sums, units.sizes])
    largest = float(units.sizes.max())
    rows = max(1, min(draws, _AT_A_TIME // (count + 1)))
    lows, highs = np.empty((draws, columns)), np.empty((draws, columns))
    for first in range(0, draws, rows):
        size = min(rows, draws - first)
        weights = generator.standard_exponential((size, count + 1))
        sums = weights[:, 1:] @ table
        added = weights[:, :1] * largest
        sizes = sums[:, -1:] + added
        lows[first : first + size] = (sums[:, :-1] + added * low) / sizes
        highs[first : first + size] = (sums[:, :-1] + added * high) / sizes
    return Bounded(lows, highs)


def fitting(units: Units, low: float, high: float, draws: int = DRAWS, seed: int = 0) -> Bounds:
    """For one column: ``bca`` where there are enough units that differ, ``bounded`` where there are not. Uneven units
    count for fewer (Kish): sixty clusters of which one has half of the tasks are nearly one."""
    if units.effective < FEW_UNITS or int(units.differing[0]) < FEW_DIFFERING:
        return bounded(units, low, high, draws, seed)
    return bca(units, draws, seed)


def _at_least_one_draw(against: Truths) -> Floats:
    """The share of draws that speak against it; never nothing, since there are only so many draws."""
    return np.asarray((against.sum(axis=0) + 1) / (len(against) + 1))
