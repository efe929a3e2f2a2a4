"""Hours: how many a run may take, what it is likely to take, how fast it is. Pure but for the file of known paces."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.config import LoadedConfig
from supervisor.jobs import keeps_own_state
from supervisor.pace import known_pace
from supervisor.state import RunState

HOUR = 3600.0
WARM_STEPS = 5
"""Steps after the first one of an attempt before its pace is believed."""


@dataclass(frozen=True)
class Forecast:
    """Seconds used, allowed, and still needed (None: not known), with ``source`` saying how the last is known."""

    used: float
    allowed: float
    needed: float | None
    source: str = ""

    @property
    def over(self) -> bool:
        return self.used >= self.allowed or (self.needed is not None and self.used + self.needed > self.allowed)


def hours(seconds: float) -> str:
    """For people: `3.2 h`, or minutes and seconds where hours would say nothing."""
    if seconds >= HOUR:
        return f"{seconds / HOUR:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.1f} s"


def authorise_at_least(forecast: Forecast) -> str:
    """The option that lets the run go on, with hours that are enough for what is known."""
    # What is not known may well take as long again.
    needed = forecast.needed if forecast.needed is not None else max(forecast.used, forecast.allowed)
    enough = max((forecast.used + needed) * 1.1, forecast.allowed * 1.1) / HOUR
    return f"--authorize-hours {_rounded_up(enough)}"


def _rounded_up(number: float) -> str:
    return f"{int(number) + 1}" if number >= 10 else f"{int(number * 100 + 1) / 100:g}"


def refusal(forecast: Forecast) -> str:
    """Why no attempt is made, one paragraph."""
    wall = f"The wall is {hours(forecast.allowed)} (limits.max_hours, or what was authorised)"
    if forecast.used >= forecast.allowed:
        return (
            f"The time of this run is used up: {hours(forecast.used)}. {wall}. What was trained so far is kept. To go "
            f"on, run it again with more hours in all: {authorise_at_least(forecast)}."
        )
    assert forecast.needed is not None
    before = f"{hours(forecast.used)} are used, and " if forecast.used >= 1 else ""
    return (
        f"This run would take too long: {before}it needs about {hours(forecast.needed)} more ({forecast.source}). "
        f"{wall}. Nothing was started. Plan fewer steps, or allow more hours in all: {authorise_at_least(forecast)}."
    )


def allowed_seconds(state: RunState, max_hours: float) -> float:
    return max(max_hours, state.authorized_hours or 0.0) * HOUR


def forecast_before_launch(state: RunState, config: LoadedConfig) -> Forecast:
    """What is known before an attempt: the run's own pace or, for a fresh run, that of an earlier one like it."""
    allowed = allowed_seconds(state, config.own.limits.max_hours)
    if state.seconds_per_step and state.planned_steps:
        saved = state.step if keeps_own_state(config.kind) else _step_saved(state)
        left = max(state.planned_steps - saved, 0)
        source = f"{left} steps at the {hours(state.seconds_per_step)} that each took so far"
        return Forecast(state.seconds_used, allowed, left * state.seconds_per_step, source)
    pace = known_pace(config.kind, config.sections, config.document) if not state.attempt else None
    if pace is None:
        return Forecast(state.seconds_used, allowed, None)
    source = f"{pace.planned_steps} steps at {hours(pace.seconds_per_step)} each, as an earlier run like this one took"
    return Forecast(state.seconds_used, allowed, pace.planned_steps * pace.seconds_per_step, source)


def _step_saved(state: RunState) -> int:
    """The step of the newest checkpoint, from its name."""
    digits = (state.last_checkpoint or "").rstrip("/").rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0


class Pace:
    """Seconds per step of the present attempt, once it is warm. Evaluations and saves are part of it."""

    def __init__(self) -> None:
        self._attempt = -1
        self._step = 0
        self._since = 0.0
        self._last = 0

    def take(self, attempt: int, step: int, now: float) -> float | None:
        """What is new since the last call; None as long as nothing is known or no step was done."""
        if attempt != self._attempt:
            self._attempt, self._step, self._since, self._last = attempt, -1, now, step
            return None
        if step <= self._last:
            return None
        self._last = step
        if self._step < 0:  # the first step, which also warms up, has just been done
            self._step, self._since = step, now
            return None
        done = step - self._step
        return (now - self._since) / done if done >= WARM_STEPS else None
