"""A guard that notices when the loss jumps out of its own recent range."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

WINDOW = 64
"""Logged losses that make up the recent range."""
MINIMUM = 16
"""Losses needed before anything can be called a spike."""
DEVIATIONS = 8.0
"""How far above the median, in robust standard deviations (1.4826 x median absolute deviation)."""
RISE = 1.5
"""And at least this many times the median, so that a very quiet history does not make small moves alarming."""


LASTING = 16
"""Losses in a row above the range after which they are taken for the new range, so that later jumps are seen."""


@dataclass(frozen=True)
class Spike:
    """``usual``: the median, in nats per token, that the loss has left behind; ``lasting``: for LASTING losses now."""

    usual: float
    lasting: bool


class LossSpikeGuard:
    """Feed it every logged loss; a spike is reported when it begins and when it lasts, and stays out of the range.

    ``history``: the losses logged before, when a run is resumed.
    """

    def __init__(self, history: Iterable[float] = ()) -> None:
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._above: list[float] = []
        for loss in history:
            self.spike(loss)

    def spike(self, loss: float) -> Spike | None:
        """What to report of ``loss`` (nats per token, finite), None when there is nothing new."""
        if len(self._recent) >= MINIMUM:
            middle = median(self._recent)
            deviation = 1.4826 * median(abs(value - middle) for value in self._recent)
            if loss > max(middle + DEVIATIONS * deviation, RISE * middle):
                self._above.append(loss)
                if len(self._above) == LASTING:
                    self._recent = deque(self._above, maxlen=WINDOW)
                    self._above = []
                    return Spike(middle, lasting=True)
                return Spike(middle, lasting=False) if len(self._above) == 1 else None
        self._above = []
        self._recent.append(loss)
        return None


def spike_sentence(step: int, loss: float, spike: Spike) -> str:
    lasts = "; it has stayed there since and is taken for the new range now" if spike.lasting else ""
    return (
        f"loss spike at optimiser step {step}: {loss:.3f} nats per token where {spike.usual:.3f} was "
        f"usual{lasts}. Look at the rows of this step, or lower train.learning_rate or train.max_grad_norm"
    )
