"""Where a value stands on an axis, and the round numbers written along it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from supervisor.html.markup import number


@dataclass(frozen=True)
class Axis:
    """What an axis shows. ``low`` and ``high`` hold it open at least so far; ``text`` writes its ticks.

    ``whole``: it counts things, so a tick between two whole numbers means nothing.
    """

    label: str = ""
    log: bool = False
    low: float | None = None
    high: float | None = None
    text: Callable[[float], str] = number
    whole: bool = False


@dataclass(frozen=True)
class Scale:
    """From values ``low`` to ``high`` to places ``start`` to ``end`` of a drawing."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    whole: bool = False

    def at(self, value: float) -> float:
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        there = math.log10(max(value, self.low)) if self.log else value
        return self.start + (self.end - self.start) * (there - low) / (high - low)

    def ticks(self, most: int = 6) -> list[float]:
        """At most about ``most`` round values inside."""
        if self.whole:
            return [tick for tick in _round_steps(self.low, self.high, most) if tick == int(tick)]
        if not self.log:
            return _round_steps(self.low, self.high, most)
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        if last - first < 1:
            return [tick for tick in _round_steps(self.low, self.high, most) if tick > 0]
        each = -(-(last - first + 1) // most)
        return [10.0**power for power in range(first, last + 1, each)]


DRAWABLE = 1e150
"""What is larger in magnitude has no place on an axis, like what isn't finite."""


def drawable(value: float) -> bool:
    return abs(value) < DRAWABLE  # false for NaN as well


def fitted(axis: Axis, values: Iterable[float], start: float, end: float) -> Scale:
    """The scale that holds all drawable ``values``; a log one only the positive ones."""
    found = [value for value in values if drawable(value) and (not axis.log or value > 0)]
    found += [bound for bound in (axis.low, axis.high) if bound is not None and (not axis.log or bound > 0)]
    low, high = (min(found), max(found)) if found else (1.0, 10.0) if axis.log else (0.0, 1.0)
    if low == high:
        low, high = (low / 2, high * 2) if axis.log else (low - (abs(low) / 10 or 1), high + (abs(high) / 10 or 1))
    return Scale(low, high, start, end, axis.log, axis.whole)


def _round_steps(low: float, high: float, most: int) -> list[float]:
    raw = (high - low) / max(1, most)
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 0.0
    if not math.isfinite(raw) or power == 0:
        return [low]
    step = next((factor * power for factor in (1, 2, 2.5, 5) if factor * power >= raw), 10 * power)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12 - math.floor(math.log10(step))) for index in range(first, last + 1)]
