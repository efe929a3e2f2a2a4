"""A run's whole event log folded into what a page shows of it. Pure, and bounded however long the log is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from supervisor.protocol.events import Event
from supervisor.view.wording import describe, number

KEPT_POINTS = 4000
KEPT_ATTEMPTS = 500
KEPT_EVENTS = 200
KEPT_LINES = 30
SERIES = (
    "loss", "learning_rate", "grad_norm", "grad_norm_clipped", "tokens_per_second", "memory_bytes", "tokens_seen",
    "accepted", "distinct", "tasks_done", "accepted_per_second", "samples_per_second",
)  # fmt: skip
"""The figures of ``progress`` events that are kept as curves."""


@dataclass(frozen=True)
class Point:
    """A figure as it was said at ``time`` (Unix seconds); ``step`` None where the event named none."""

    step: int | None
    time: float
    value: float


@dataclass(frozen=True)
class Evaluation:
    """``loss``: nats per token, ``stderr`` its standard error where it is known."""

    step: int
    time: float
    loss: float
    stderr: float | None


@dataclass
class Attempt:
    """One attempt as the log tells it. Times are Unix seconds; ``ended`` is the last sign of it while it goes on."""

    number: int
    started: float
    ended: float
    first_step: int | None = None
    last_step: int | None = None
    over: bool = False
    how: str = ""
    """How its process ended, in words."""
    failure: str = ""
    """The kind of failure, empty for none."""
    confidence: float | None = None
    explanation: str = ""
    evidence: tuple[str, ...] = ()
    relief: list[str] = field(default_factory=list)
    """What was changed after it, each with its price."""


@dataclass(frozen=True)
class Happening:
    """Something worth a mark: ``kind`` is that of the event."""

    time: float
    step: int | None
    attempt: int
    kind: str
    message: str
    data: Mapping[str, Any]


class Curve:
    """Points in the order in which they came; when they become too many, of each four the lowest and the highest stay.

    ``counting``: a resumed attempt does steps again, and only the last doing of each step counts.
    """

    def __init__(self, *, counting: bool) -> None:
        self.points: list[Point] = []
        self._counting = counting

    def add(self, point: Point) -> None:
        if self._counting and point.step is not None:
            while self.points and (self.points[-1].step or 0) >= point.step:
                self.points.pop()
        self.points.append(point)
        if len(self.points) > KEPT_POINTS:
            self.points = list(_thinned(self.points))


def _thinned(points: list[Point]) -> Iterator[Point]:
    for start in range(0, len(points), 4):
        group = points[start : start + 4]
        places = sorted(range(len(group)), key=lambda place: group[place].value)
        yield from (group[place] for place in sorted({places[0], places[-1]}))


@dataclass
class History:
    """What the events add up to.

    ``curves``: of the steps that count, by figure. ``memory``: bytes over time, of all attempts. ``facts``: the data
    of the newest event of each kind that says something about the whole run (corpus, plan, admission, memory, ...).
    """

    curves: dict[str, Curve] = field(default_factory=lambda: {name: Curve(counting=True) for name in SERIES})
    memory: Curve = field(default_factory=lambda: Curve(counting=False))
    evaluations: list[Evaluation] = field(default_factory=list)
    attempts: dict[int, Attempt] = field(default_factory=dict)
    happenings: deque[Happening] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))
    forecasts: deque[Happening] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))
    gates: dict[str, Happening] = field(default_factory=dict)
    """The newest result of each gate, by its name."""
    notable: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)
    progress_message: str = ""
    started: float | None = None
    ended: float | None = None
    checkpoints: int = 0
    attempts_left_out: int = 0

    def add(self, event: Event) -> None:
        if self.started is None:
            self.started = event.time
        self.ended = event.time
        self._attempt(event)
        match event.kind:
            case "progress":
                self._progress(event)
            case "evaluation":
                self._evaluation(event)
            case "checkpoint_verified":
                self.checkpoints += 1
            case "disk_forecast":
                self.forecasts.append(_happening(event))
            case "gate":
                name = event.data.get("gate") or event.data.get("name")
                self.gates[str(name) if name else event.message] = _happening(event)
            case "relief" | "failure" | "attempt_started" | "hang" | "checkpoint_quarantined":
                self.happenings.append(_happening(event))
            case "corpus" | "plan" | "admission" | "memory" | "sampler":
                self.facts[event.kind] = event.data
        if (text := describe(event)) is not None:
            self.notable.append((event.time, text))

    def curve(self, name: str) -> list[Point]:
        return self.curves[name].points

    def _progress(self, event: Event) -> None:
        self.progress, self.progress_message = event.data, event.message
        for name in SERIES:
            if (value := number(event.data, name)) is not None:
                self.curves[name].add(Point(event.step, event.time, value))
                if name == "memory_bytes":
                    self.memory.add(Point(event.step, event.time, value))

    def _evaluation(self, event: Event) -> None:
        loss = number(event.data, "eval_loss")
        if event.step is None or loss is None:
            return
        while self.evaluations and self.evaluations[-1].step >= event.step:
            self.evaluations.pop()
        self.evaluations.append(Evaluation(event.step, event.time, loss, number(event.data, "eval_loss_stderr")))

    def _attempt(self, event: Event) -> None:
        if event.attempt < 1:
            return
        known = self.attempts.get(event.attempt)
        if known is None:
            if event.kind != "attempt_started" and event.source != "trainer":
                return  # of an attempt that the log does not begin
            if len(self.attempts) >= KEPT_ATTEMPTS:
                self.attempts_left_out += 1
                del self.attempts[next(iter(self.attempts))]
            known = self.attempts[event.attempt] = Attempt(event.attempt, event.time, event.time, event.step)
        if not known.over:
            known.ended = event.time
            known.last_step = event.step if event.step is not None else known.last_step
        match event.kind:
            case "attempt_ended":
                known.over, known.how = True, str(event.data.get("status") or event.message)
            case "failure":
                known.failure = str(event.data.get("failure") or "failure")
                known.confidence = number(event.data, "confidence")
                known.explanation = event.message
                lines = event.data.get("evidence")
                known.evidence = tuple(str(line) for line in lines[:KEPT_LINES]) if isinstance(lines, list) else ()
            case "relief":
                known.relief.append(event.message)


def fold(events: Iterable[Event]) -> History:
    history = History()
    for event in events:
        history.add(event)
    return history


def _happening(event: Event) -> Happening:
    return Happening(event.time, event.step, event.attempt, event.kind, event.message, event.data)
