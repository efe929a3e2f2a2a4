"""When a file system that fills up will be full. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import combinations

import msgspec

MIN_SAMPLES = 8
MIN_SPAN_SECONDS = 60.0
SIGNIFICANCE = 3.0
"""Standard deviations of the Mann-Kendall statistic from which on a fall is believed."""
EXTRAPOLATION = 24.0
"""A forecast reaches at most this many times as far ahead as the samples reach back."""
MAX_SECONDS = 30 * 86400.0
KEPT_SAMPLES = 64
RECENT_SECONDS = 600.0


class Sample(msgspec.Struct, frozen=True):
    """``free``: bytes or inodes left at ``time`` (seconds on a monotonic clock)."""

    time: float
    free: float


class Forecast(msgspec.Struct, frozen=True):
    """Full in ``seconds`` when it goes on at ``per_second`` (bytes or inodes, positive)."""

    seconds: float
    per_second: float


def forecast(samples: Sequence[Sample], reserved: float = 0.0) -> Forecast | None:
    """Extrapolate the Theil-Sen slope of ``samples`` (in any order) from the newest one.

    ``reserved``: what is free but spoken for. None when it isn't filling, when there are too few samples
    over too short a time, when chance could make such a fall (the Mann-Kendall test), or when "full" is further
    away than can be said from so short an observation.
    """
    ordered = sorted(samples, key=lambda sample: sample.time)
    if len(ordered) < MIN_SAMPLES:
        return None
    span = ordered[-1].time - ordered[0].time
    if span < MIN_SPAN_SECONDS:
        return None
    slopes = [
        (later.free - earlier.free) / (later.time - earlier.time)
        for earlier, later in combinations(ordered, 2)
        if later.time > earlier.time
    ]
    slope = statistics.median(slopes)
    if slope >= 0:
        return None
    count = len(ordered)
    surplus = sum(each < 0 for each in slopes) - sum(each > 0 for each in slopes)
    if surplus < SIGNIFICANCE * math.sqrt(count * (count - 1) * (2 * count + 5) / 18):
        return None
    seconds = max(0.0, ordered[-1].free - reserved) / -slope
    if seconds > min(EXTRAPOLATION * span, MAX_SECONDS):
        return None
    return Forecast(seconds, -slope)


class FillHistory:
    """Samples of one file system: evenly spread over all the time, and closely over the last ten minutes."""

    def __init__(self) -> None:
        self._recent: list[Sample] = []
        self._long: list[Sample] = []
        self._step = 0.0

    def add(self, sample: Sample) -> None:
        self._recent = [kept for kept in self._recent if kept.time > sample.time - RECENT_SECONDS][1 - KEPT_SAMPLES :]
        self._recent.append(sample)
        if self._long and sample.time - self._long[-1].time < self._step:
            return
        self._long.append(sample)
        if len(self._long) > KEPT_SAMPLES:
            self._long = self._long[::2]
            self._step = 1.5 * (self._long[-1].time - self._long[0].time) / (len(self._long) - 1) / 2

    def over_time(self) -> tuple[Sample, ...]:
        """From the first sample to the newest one, at most 65 of them."""
        newest = self._recent[-1:]
        return tuple(self._long if self._long[-1:] == newest else [*self._long, *newest])

    def forecast(self, reserved: float = 0.0) -> Forecast | None:
        """The earlier of what the last minutes and what the whole history say."""
        found = [forecast(self._recent, reserved), forecast(self.over_time(), reserved)]
        return min((each for each in found if each is not None), key=lambda each: each.seconds, default=None)
