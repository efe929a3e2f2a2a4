"""A guard that notices when the loss jumps out of its own recent range."""

from __future__ import annotations

from collections import deque
from statistics import median

WINDOW = 64
"""Logged losses that make up the recent range."""
MINIMUM = 16
"""Losses needed before anything can be called a spike."""
DEVIATIONS = 8.0
"""How far above the median, in robust standard deviations (1.4826 x median absolute deviation)."""
RISE = 1.5
"""And at least this many times the median, so that a very quiet history does not make small moves alarming."""


class LossSpikeGuard:
    """Feed it every logged loss; a spike is reported once and stays out of the range."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=WINDOW)

    def spike(self, loss: float) -> float | None:
        """The median that ``loss`` (nats per token, finite) has left behind, or None while it is within range."""
        if len(self._recent) >= MINIMUM:
            middle = median(self._recent)
            deviation = 1.4826 * median(abs(value - middle) for value in self._recent)
            if loss > max(middle + DEVIATIONS * deviation, RISE * middle):
                return middle
        self._recent.append(loss)
        return None
