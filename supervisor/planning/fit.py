"""Does it fit, and which rung of relief would make it fit: the very rungs, in the order that failures take them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from supervisor.config import set_key
from supervisor.diagnosis.kinds import FailureKind
from supervisor.jobs import Patch, Relief, Rung
from supervisor.protocol.forecast import MemoryForecast
from supervisor.relief.effective import taken
from supervisor.relief.ladder import helps_with, next_relief
from supervisor.relief.ledger import used_before
from supervisor.state import ReliefTaken

CERTAINLY_TOO_MUCH = 1.3
"""Predictions are a few per cent off. Beyond this many times the memory there is, no doubt is left."""
MOST_RUNGS = 16


@dataclass(frozen=True)
class Room:
    """Memory that there is on ``device``; ``total`` None: not known, and ``source`` says why."""

    device: str
    total: int | None
    source: str


@dataclass(frozen=True)
class Step:
    """One rung taken: the configuration after it, and what is predicted for that."""

    relief: Relief
    forecast: MemoryForecast
    fits: bool | None


@dataclass(frozen=True)
class Fit:
    """``fits`` None: not known. ``steps``: the rungs that would be taken, in order, until it fits or none is left."""

    forecast: MemoryForecast
    room: Room
    fits: bool | None
    steps: tuple[Step, ...] = ()

    @property
    def share(self) -> float | None:
        """Predicted peak over the memory there is."""
        return share(self.forecast, self.room)

    @property
    def way_out(self) -> Step | None:
        """The first rung with which it fits, those before it taken as well."""
        return self.steps[-1] if self.steps and self.steps[-1].fits else None

    @property
    def hopeless(self) -> bool:
        """Certainly too much, whatever relief is taken."""
        tried = [self.forecast, *(step.forecast for step in self.steps)]
        if any(forecast.at_most for forecast in tried):
            return False
        shares = [share(forecast, self.room) for forecast in tried]
        return all(part is not None and part > CERTAINLY_TOO_MUCH for part in shares)


def share(forecast: MemoryForecast, room: Room) -> float | None:
    if forecast.unknown or not room.total:
        return None
    return forecast.peak_bytes / room.total


def fits_in(forecast: MemoryForecast, room: Room) -> bool | None:
    part = share(forecast, room)
    return None if part is None else part <= 1.0


def judge(
    document: Mapping[str, Any],
    room: Room,
    ladder: Sequence[str],
    rungs: Callable[[Sequence[ReliefTaken]], Mapping[str, Rung]],
    facts: Mapping[str, Any],
    predict: Callable[[Mapping[str, Any]], MemoryForecast],
) -> Fit:
    """Predict ``document`` and, as long as that is too much, what each next rung for a lack of memory would leave.

    ``rungs`` gives the rungs by what was taken of them. Pure but for ``predict``.
    """
    forecast = predict(document)
    fits = fits_in(forecast, room)
    steps: list[Step] = []
    applied: list[ReliefTaken] = []
    kind = FailureKind.CUDA_OOM if room.device == "cuda" else FailureKind.HOST_OOM
    present = copy.deepcopy(dict(document))
    while fits is False and len(steps) < MOST_RUNGS and (not steps or steps[-1].fits is False):
        relief = next_relief(
            ladder,
            rungs(applied),
            present,
            facts,
            None,
            lambda relief: helps_with(relief, kind) and not used_before(relief, applied),
        )
        if relief is None:
            break
        present = patched(present, relief.patches)
        applied.append(taken(relief, 0, kind.value))
        after = predict(present)
        steps.append(Step(relief, after, fits_in(after, room)))
    return Fit(forecast, room, fits, tuple(steps))


def patched(document: Mapping[str, Any], patches: Sequence[Patch]) -> dict[str, Any]:
    changed = copy.deepcopy(dict(document))
    for patch in patches:
        set_key(changed, patch.key, copy.deepcopy(patch.new))
    return changed
