"""The trainer's side of the run directory: heartbeat, events, and the request to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from supervisor.protocol.attempt import AttemptSpec
from supervisor.protocol.events import EventLog
from supervisor.protocol.heartbeat import HeartbeatWriter, Phase
from supervisor.protocol.paths import RunPaths
from trainer.errors import StopRequestedError

INTERRUPTIBLE = (Phase.STARTING, Phase.LOADING)
"""Phases with nothing to save, in which SIGTERM ends the process at once."""
STOPPED_LOADING = "asked to stop while loading; nothing new to save"


class Reporter:
    """One attempt's heartbeat and event log, and the flag that SIGTERM sets.

    SIGTERM while loading raises StopRequestedError in the main thread; later it only sets
    ``stop_requested``, which the training loop honours at the next step boundary.
    """

    def __init__(self, spec: AttemptSpec) -> None:
        self.spec = spec
        self.paths = RunPaths(Path(spec.run_dir))
        self._heartbeat = HeartbeatWriter(self.paths.attempt(spec.attempt).heartbeat)
        self._events = EventLog(self.paths.events, "trainer", spec.attempt)
        self.stop_requested = False
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self.beat()

    @property
    def phase(self) -> Phase:
        return self._heartbeat.phase

    @property
    def step(self) -> int:
        return self._heartbeat.step

    def beat(self, step: int | None = None, planned_steps: int | None = None) -> None:
        self._heartbeat.beat(None, step, planned_steps)

    def enter(self, phase: Phase) -> None:
        """Change the phase, and say so in the event log as well."""
        if phase is not self._heartbeat.phase:
            self._heartbeat.beat(phase)
            self.event("phase", phase=phase.name.lower())

    @contextmanager
    def within(self, phase: Phase) -> Iterator[None]:
        """A phase that returns to the one before, such as saving."""
        before = self.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def event(self, kind: str, message: str = "", **data: Any) -> None:
        self._events.append(kind, message, step=self.step, **data)

    def warn(self, message: str) -> None:
        self.event("warning", message)

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        self.stop_requested = True
        if self.phase in INTERRUPTIBLE:
            raise StopRequestedError(STOPPED_LOADING)


class SilentReporter(Reporter):
    """For a rank that trains along: it knows where it is and hears SIGTERM, but beats and writes nothing."""

    def __init__(self, spec: AttemptSpec) -> None:
        self.spec = spec
        self.paths = RunPaths(Path(spec.run_dir))
        self._phase, self._step = Phase.STARTING, 0
        self.stop_requested = False
        signal.signal(signal.SIGTERM, self._on_sigterm)

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def step(self) -> int:
        return self._step

    def beat(self, step: int | None = None, planned_steps: int | None = None) -> None:
        self._step = self._step if step is None else step

    def enter(self, phase: Phase) -> None:
        self._phase = phase

    def event(self, kind: str, message: str = "", **data: Any) -> None:
        pass
