"""What can be seen of a run from its directory, as one frozen value."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from supervisor.protocol.events import Event, EventReader, last_event
from supervisor.protocol.heartbeat import Heartbeat, Phase, read_heartbeat
from supervisor.protocol.lock import lock_holder
from supervisor.protocol.paths import RunPaths
from supervisor.sensors.report import SensorReport, read_report
from supervisor.state import Outcome, RunState, read_state
from supervisor.view.wording import describe, number

RECENT_EVENTS = 60
LOSSES_KEPT = 4096


@dataclass(frozen=True)
class RunView:
    """A run at one moment. None is unknown; ``state`` is None before the run directory is set up.

    ``losses``: (optimiser step, nats per token), rising steps, of the attempts that count.
    ``progress``: the data of the newest ``progress`` event of the present attempt, ``progress_message`` its words.
    ``new_events`` came since the view before; ``recent_events`` are the last ones worth a line.
    ``supervisor_alive``: whether a process holds the supervisor's lock.
    ``sensors``: what the supervisor's sensors saw last, about ten seconds ago while it runs.
    ``gates``: the newest result of each gate, by its name.
    """

    directory: Path
    state: RunState | None
    heartbeat: Heartbeat | None
    progress: dict[str, Any]
    losses: tuple[tuple[int, float], ...]
    eval_loss: tuple[int | None, float] | None
    new_events: tuple[Event, ...]
    recent_events: tuple[Event, ...]
    trainer_rss_bytes: int | None
    disk_free_bytes: int | None
    supervisor_alive: bool
    sensors: SensorReport | None = None
    eval_loss_stderr: float | None = None
    gates: Mapping[str, Event] = field(default_factory=dict)
    progress_message: str = ""

    @property
    def running(self) -> bool:
        return self.state is not None and self.state.outcome is Outcome.RUNNING

    @property
    def beat(self) -> Heartbeat | None:
        """The heartbeat while a trainer runs; one that an ended attempt left behind says nothing."""
        return self.heartbeat if self.running and self.state and self.state.trainer_pid else None

    @property
    def phase(self) -> str | None:
        """The trainer's phase in words, None without a trainer."""
        if self.beat is not None:
            return self.beat.phase.name.lower().replace("_", " ")
        return "starting" if self.running and self.state and self.state.trainer_pid else None

    @property
    def step(self) -> int:
        """Optimiser steps done; the heartbeat is ahead of state.json while the trainer trains."""
        done = self.state.step if self.state else 0
        if self.beat is None or self.beat.phase <= Phase.LOADING:
            return done
        return self.beat.step

    @property
    def planned_steps(self) -> int | None:
        if self.beat is not None and self.beat.planned_steps:
            return self.beat.planned_steps
        planned = self.state.planned_steps if self.state else 0
        return planned or None

    @property
    def tokens_seen(self) -> int:
        seen = number(self.progress, "tokens_seen") if self.running else None
        return int(seen) if seen is not None else (self.state.tokens_seen if self.state else 0)

    @property
    def attempt_of_call(self) -> int:
        """The attempt's number in this `mens-sup run`, which the limit counts."""
        return self.state.attempt - self.state.attempts_before if self.state else 0


@dataclass
class _History:
    """What the events so far add up to."""

    progress: dict[str, Any] = field(default_factory=dict)
    progress_message: str = ""
    losses: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=LOSSES_KEPT))
    eval_loss: tuple[int | None, float] | None = None
    eval_loss_stderr: float | None = None
    gates: dict[str, Event] = field(default_factory=dict)
    recent: deque[Event] = field(default_factory=lambda: deque(maxlen=RECENT_EVENTS))

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.kind == "progress":
                self._add_progress(event)
            elif event.kind == "attempt_started":
                self.progress, self.progress_message = {}, ""
            elif event.kind == "evaluation":
                self.add_evaluation(event)
            elif event.kind == "gate":
                self.gates[str(event.data.get("gate", "gate"))] = event
            if describe(event) is not None:
                self.recent.append(event)

    def add_evaluation(self, event: Event) -> None:
        if (loss := number(event.data, "eval_loss")) is not None:
            self.eval_loss = (event.step, loss)
            self.eval_loss_stderr = number(event.data, "eval_loss_stderr")

    def _add_progress(self, event: Event) -> None:
        self.progress, self.progress_message = event.data, event.message
        loss = number(event.data, "loss")
        if event.step is None or loss is None:
            return
        while self.losses and self.losses[-1][0] >= event.step:
            self.losses.pop()  # steps that a resumed attempt does again
        self.losses.append((event.step, loss))


class Follower:
    """Reads a run directory again and again; at first the end of its event log, then only what is new."""

    def __init__(self, directory: Path) -> None:
        self.paths = RunPaths(directory)
        self._reader: EventReader | None = None
        self._history = _History()
        self._sensors: SensorReport | None = None
        self._sensors_mtime = 0

    def update(self) -> RunView:
        """The run as it is now. Raises msgspec.DecodeError when state.json is damaged."""
        state = read_state(self.paths.state)
        heartbeat = read_heartbeat(self.paths.attempt(state.attempt).heartbeat) if state and state.attempt else None
        events = self._new_events()
        return RunView(
            directory=self.paths.root,
            state=state,
            heartbeat=heartbeat,
            progress=self._history.progress,
            losses=tuple(self._history.losses),
            eval_loss=self._history.eval_loss,
            eval_loss_stderr=self._history.eval_loss_stderr,
            gates=dict(self._history.gates),
            new_events=tuple(events),
            recent_events=tuple(self._history.recent),
            trainer_rss_bytes=_resident_bytes(state, heartbeat),
            disk_free_bytes=_free_bytes(self.paths.root),
            supervisor_alive=lock_holder(self.paths.supervisor_lock) is not None,
            sensors=self._sensor_report(),
            progress_message=self._history.progress_message,
        )

    def _new_events(self) -> list[Event]:
        if self._reader is None:
            self._reader = EventReader.of_tail(self.paths.events)
            if self._reader.offset and (evaluation := last_event(self.paths.events, "evaluation")) is not None:
                self._history.add_evaluation(evaluation)
        events = list(self._reader.new())
        self._history.add(events)
        return events

    def _sensor_report(self) -> SensorReport | None:
        """Read again only what was written anew."""
        try:
            mtime = self.paths.sensors.stat().st_mtime_ns
        except FileNotFoundError:
            return None
        if mtime != self._sensors_mtime:
            self._sensors_mtime = mtime
            self._sensors = read_report(self.paths.sensors)
        return self._sensors


def _resident_bytes(state: RunState | None, heartbeat: Heartbeat | None) -> int | None:
    """Resident memory of the trainer; its pid is believed only while the supervisor names the same one."""
    if state is None or heartbeat is None or heartbeat.pid != state.trainer_pid:
        return None
    try:
        return int(psutil.Process(heartbeat.pid).memory_info().rss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _free_bytes(directory: Path) -> int | None:
    try:
        figures = os.statvfs(directory)
    except OSError:
        return None
    return figures.f_bavail * figures.f_frsize
