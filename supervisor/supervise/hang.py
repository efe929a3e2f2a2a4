"""When a silent trainer counts as hung. Pure: beats and clocks in, a judgement out.

Only silence that the supervisor itself watched counts, tick by tick. A suspended laptop, a supervisor that was
stopped, a frozen container: after a gap in the supervisor's own ticks the watching begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor.protocol.heartbeat import Heartbeat, Phase

FACTOR = 4.0
"""How many times the longest silence that a phase has survived so far it may be silent."""
TICK_AT_MOST = 2.0
"""Seconds of silence that one tick can prove; the rest of a longer gap we did not watch."""
STOOD_STILL_SECONDS = 10.0
"""A gap between two ticks, or in the machine's being awake, after which nothing before it counts."""
MOVED_BYTES = 8 * 1024 * 1024
"""Read and written in a phase that only moves data: the sign of life of a loader that cannot beat in between."""

FLOORS: Mapping[Phase, float] = {
    Phase.STARTING: 2.0,
    Phase.LOADING: 3.0,
    Phase.COMPILING: 6.0,
    Phase.WARMING_UP: 3.0,
    Phase.TRAINING: 1.0,
    Phase.EVALUATING: 2.0,
    Phase.SAVING: 3.0,
    Phase.FINISHED: 0.5,
}
"""The least limit of each phase, in units of limits.hang_seconds."""
MOVING = frozenset({Phase.STARTING, Phase.LOADING, Phase.SAVING})
"""Phases in which reading and writing is progress."""


@dataclass(frozen=True)
class Look:
    """What one tick of the supervisor saw, in seconds and bytes.

    ``monotonic`` stands still while the machine sleeps, ``boottime`` does not. ``moved``: read and written by the
    trainer so far, None when that cannot be seen.
    """

    monotonic: float
    boottime: float
    beat: Heartbeat | None
    moved: int | None = None


@dataclass(frozen=True)
class Judgement:
    """``silent`` and ``limit`` in seconds. ``stood_still``: seconds that nobody watched, 0 when there was no gap."""

    phase: Phase
    silent: float
    limit: float
    hung: bool
    stood_still: float = 0.0


@dataclass
class HangJudge:
    """Learns how long each phase is silent and says when it is too long.

    ``unit``: limits.hang_seconds. ``longest``: phase name -> the longest time between two beats so far, in seconds; it
    is kept over attempts. A trainer that has not beaten is judged only when an earlier attempt's has (``longest`` is
    not empty): for all we know it cannot. ``foreign``: a program that may do anything before and after it trains.
    """

    unit: float
    longest: dict[str, float] = field(default_factory=dict)
    foreign: bool = False
    _last: Look | None = None
    _silent: float = 0.0
    _moved: int | None = None

    def limit(self, phase: Phase) -> float:
        return max(FLOORS[phase] * self.unit, FACTOR * self.longest.get(phase.name.lower(), 0.0))

    def look(self, now: Look) -> Judgement:
        last, self._last = self._last, now
        phase = now.beat.phase if now.beat is not None else Phase.STARTING
        if last is None:
            self._moved = now.moved
            return Judgement(phase, 0.0, self.limit(phase), hung=False)
        gap = now.monotonic - last.monotonic
        asleep = (now.boottime - last.boottime) - gap
        too_long = min(STOOD_STILL_SECONDS, max(TICK_AT_MOST, self.unit))
        stood_still = gap + max(asleep, 0.0) if gap > too_long or asleep > 1.0 else 0.0
        if now.beat is not None and not _same(now.beat, last.beat):
            if last.beat is not None and not stood_still and gap <= TICK_AT_MOST:
                self._learn(last.beat, now.beat)
            self._silent = 0.0
            self._moved = now.moved
        elif stood_still:
            self._silent = 0.0
        else:
            self._silent += min(gap, TICK_AT_MOST)
        if phase in MOVING and now.moved is not None and now.moved - (self._moved or 0) >= MOVED_BYTES:
            self._silent, self._moved = 0.0, now.moved
        limit = self.limit(phase)
        if self.foreign:
            judged = now.beat is not None and phase is not Phase.FINISHED
        else:
            judged = now.beat is not None or bool(self.longest)
        return Judgement(phase, self._silent, limit, judged and self._silent > limit, stood_still)

    def _learn(self, before: Heartbeat, after: Heartbeat) -> None:
        """The time between two beats belongs to the phase that the first of them named; many beats count as one."""
        name = before.phase.name.lower()
        seconds = (after.monotonic_ns - before.monotonic_ns) / 1e9
        if before.pid == after.pid and seconds > self.longest.get(name, 0.0):
            self.longest[name] = round(seconds, 3)


def _same(one: Heartbeat, other: Heartbeat | None) -> bool:
    return other is not None and (one.pid, one.sequence) == (other.pid, other.sequence)
