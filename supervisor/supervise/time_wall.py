"""The time wall at work: it counts a run's hours, warns when they won't do, and says when they are used up.

All time counts for which a supervisor works on the run or its trainer lives: attempts, pauses and waits, over all
`mens-sup run` calls on the run directory.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable

from supervisor.pace import remember_pace
from supervisor.protocol.heartbeat import Phase, read_heartbeat
from supervisor.supervise.foreign import how_it_goes_on
from supervisor.supervise.hours import (
    Forecast,
    Pace,
    allowed_seconds,
    authorise_at_least,
    forecast_before_launch,
    hours,
)
from supervisor.supervise.opening import Run

SAVE_SECONDS = 30.0
"""The time used is written down at least this often, also while nothing else is going on."""


class TimeWall:
    """Counts the run's time while it is being supervised. ``tell``: (what, message), for people who aren't watching."""

    def __init__(self, run: Run, tell: Callable[[str, str], None], now: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._tell = tell
        self._now = now
        self._base = run.state.seconds_used
        self._since = now()
        self._saved = self._since
        self._pace = Pace()
        self._warned = False
        self._max_hours = run.config.own.limits.max_hours

    def announce(self) -> None:
        """Say what is known before the first attempt, and that nothing is where that is so."""
        run = self._run
        found = forecast_before_launch(run.state, run.config)
        if found.needed is None:
            about = "how long it will take is not known before its first steps"
        else:
            about = f"about {hours(found.needed)} to go ({found.source})"
        used = f", {hours(found.used)} are used" if found.used >= 1 else ""
        run.journal.event("estimate", f"{about}; it may take {hours(found.allowed)} in all{used}")

    def add_unobserved(self, *, alive: bool) -> None:
        """The time since the supervisor before us died for which its trainer lived on: until now, or its last beat."""
        run = self._run
        if not run.left_at:
            return
        until = time.time()
        if not alive:
            beat = run.paths.attempt(run.state.attempt).heartbeat
            until = beat.stat().st_mtime if beat.exists() else run.left_at
        self._base += max(until - run.left_at, 0.0)

    def reached(self) -> bool:
        """Look at the clock and at the trainer's pace; True when the run's time is used up."""
        state, now = self._run.state, self._now()
        state.seconds_used = self._base + now - self._since
        if now - self._saved > SAVE_SECONDS:
            self._saved = now
            self._run.journal.save()
        self._look_at_pace(now)
        return state.seconds_used >= self._allowed()

    def forecast(self) -> Forecast:
        state = self._run.state
        left = max(state.planned_steps - state.step, 0)
        needed = left * state.seconds_per_step if state.seconds_per_step and state.planned_steps else None
        return Forecast(state.seconds_used, self._allowed(), needed)

    def explanation(self) -> str:
        """What to say when the wall ended the run."""
        found, state = self.forecast(), self._run.state
        more = "" if found.needed is None else f", it needs about {hours(found.needed)} more"
        planned = f" of {state.planned_steps}" if state.planned_steps else ""
        again = f"mens-sup run --run-dir {shlex.quote(str(self._run.paths.root))} {authorise_at_least(found)}"
        return (
            f"time_limit at step {state.step}{planned}: the {hours(found.allowed)} that this run may take "
            f"(limits.max_hours, or what was authorised) are used up{more}. What to do now: `{again}` "
            f"{how_it_goes_on(self._run)}."
        )

    def remember(self) -> None:
        """Keep the pace for the next run like this one. Says it when that cannot be written."""
        state, config = self._run.state, self._run.config
        if not state.seconds_per_step or not state.planned_steps:
            return
        try:
            remember_pace(self._run.kind, config.document, state.seconds_per_step, state.planned_steps)
        except OSError as error:
            self._run.journal.event("warning", f"the pace of this run could not be kept: {error.strerror}")

    def _allowed(self) -> float:
        return allowed_seconds(self._run.state, self._max_hours)

    def _look_at_pace(self, now: float) -> None:
        state = self._run.state
        beat = read_heartbeat(self._run.paths.attempt(state.attempt).heartbeat)
        if beat is None or beat.phase <= Phase.LOADING:
            return
        pace = self._pace.take(state.attempt, beat.step, now)
        if pace is None:
            return
        state.seconds_per_step = pace
        if not state.planned_steps:
            return
        found = self.forecast()
        if found.over and not self._warned and found.needed:
            self._warned = True
            message = (
                f"at {hours(pace)} a step this run needs about {hours(found.needed)} more, but of the "
                f"{hours(found.allowed)} that it may take (limits.max_hours) {hours(found.used)} are used: it will be "
                f"stopped there with a checkpoint. {authorise_at_least(found)} lets it go on when you run it again"
            )
            self._run.journal.event("time_wall", message, step=state.step, needed_seconds=found.needed)
            self._tell("time_wall", message)
