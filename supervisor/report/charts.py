"""The drawings of a run's page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from supervisor.html.charts import Curve, Line, Mark, Span, curves, spans
from supervisor.html.markup import Html, joined
from supervisor.html.scale import Axis
from supervisor.redact import hide_secrets
from supervisor.report.history import Happening, History, Point
from supervisor.sensors.disk import human_bytes
from supervisor.sensors.report import SensorReport
from supervisor.view.text import clean, count
from supervisor.view.wording import number

MOST_MARKS = 40
NEAR = 0.14
"""Marks nearer to each other than this share of the axis have one label together."""
_STEPS = Axis("step", text=count, whole=True)
_GIB = float(1 << 30)
_UNITS = ((2 * 86400.0, 86400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (120.0, 60.0, "minutes"))


@dataclass(frozen=True)
class Clock:
    """Time as an axis shows it: since ``start`` (Unix seconds), ``unit`` seconds long each ``name``."""

    start: float
    unit: float
    name: str

    @classmethod
    def of(cls, history: History) -> Clock:
        start = history.started or 0.0
        unit, name = _unit((history.ended or start) - start)
        return cls(start, unit, name)

    def at(self, moment: float) -> float:
        return (moment - self.start) / self.unit

    @property
    def axis(self) -> Axis:
        return Axis(f"{self.name} since the start", low=0.0)


def charts(history: History) -> Html:
    """Everything over steps or time that the run has told; empty when it has told nothing."""
    return joined(*_training(history), *_sampling(history), *_memory(history), *_speed(history))


def timeline(history: History) -> Html:
    """Every attempt as a stretch of time, in the colour of its end, with what was changed between them."""
    attempts = list(history.attempts.values())
    if not attempts:
        return joined()
    clock = Clock.of(history)
    shown = []
    for attempt in attempts:
        kind = "bad" if attempt.failure else "good" if attempt.over else "c0"
        what = f"attempt {attempt.number}: {attempt.failure or attempt.how or 'going on'}"
        row = f"attempt {attempt.number}" if len(attempts) <= MOST_MARKS else "attempts"
        shown.append(Span(row, clock.at(attempt.started), clock.at(attempt.ended), kind, what))
    relief = [found for found in history.happenings if found.kind == "relief"]
    marks = [Mark(clock.at(found.time), "", "unsure", _plain(found.message)) for found in relief]
    caption = "Attempts over time (red: failed; green: ended well, or as asked; dashed: relief)"
    return spans(caption, shown, clock.axis, marks[-MOST_MARKS:])


def disk_charts(sensors: SensorReport) -> Html:
    """Free room over time, drawn on to the moment at which it will be gone."""
    drawn = []
    ahead = {found.mount: found.bytes for found in sensors.forecasts}
    for fill in sensors.fill:
        if len(fill.samples) < 2:
            continue
        now, found = fill.samples[-1], ahead.get(fill.mount)
        unit, name = _unit(max(now.time - fill.samples[0].time, found.seconds if found is not None else 0.0))
        free = [((sample.time - now.time) / unit, sample.free / _GIB) for sample in fill.samples]
        shown = [Curve("free", free, "c0")]
        if found is not None:
            shown.append(Curve("forecast", [(0.0, now.free / _GIB), (found.seconds / unit, 0.0)], "c1"))
        x = Axis(f"{name} before and after the last look")
        drawn.append(curves(f"Room on {fill.mount} (GiB)", shown, x, Axis(low=0.0), height=180))
    return joined(*drawn)


def _training(history: History) -> Iterator[Html]:
    losses = _by_step(history.curve("loss"))
    evaluations = [(float(each.step), each.loss) for each in history.evaluations]
    marks = _marks_by_step(history)
    if losses or evaluations:
        shown = [Curve("training", losses, "c0"), Curve("evaluation", evaluations, "c1", dots=True)]
        yield curves(
            "Loss (nats per token)", [curve for curve in shown if curve.points], _STEPS, Axis(), marks, height=260
        )
    if rates := _by_step(history.curve("learning_rate")):
        yield curves("Learning rate", [Curve("", rates, "c2")], _STEPS, Axis(low=0.0, text=_rate), marks, height=160)
    if norms := _by_step(history.curve("grad_norm")):
        clipped = _by_step(history.curve("grad_norm_clipped"))
        shown = [Curve("before clipping", norms, "c3"), Curve("after clipping", clipped, "c4")]
        yield curves(
            "Gradient norm", [curve for curve in shown if curve.points], _STEPS, Axis(log=True), marks, height=180
        )


def _sampling(history: History) -> Iterator[Html]:
    """What a job that samples tells instead of a loss."""
    accepted, tasks = history.curve("accepted"), history.curve("tasks_done")
    if accepted:
        clock = Clock.of(history)
        judged = [(clock.at(point.time), float(point.step)) for point in accepted if point.step is not None]
        shown = [
            Curve("judged", judged, "c5"),
            Curve("accepted", _by_time(history, "accepted"), "c0"),
            Curve("different", _by_time(history, "distinct"), "c2"),
        ]
        yield _over_time(history, "Samples", shown)
    shown = [
        Curve("judged", _by_time(history, "samples_per_second"), "c5"),
        Curve("accepted", _by_time(history, "accepted_per_second"), "c0"),
    ]
    yield _over_time(history, "Samples per second", shown, height=180)
    total = number(history.facts.get("plan", {}), "tasks")
    lines = [] if total is None else [Line(total, f"{count(total)} tasks", "c5")]
    yield _over_time(history, "Tasks done", [Curve("", _by_time(history, "tasks_done"), "c1")], lines, height=180)
    if tasks:
        yield _over_time(history, "Tokens sampled", [Curve("", _by_time(history, "tokens_seen"), "c3")], height=180)


def _memory(history: History) -> Iterator[Html]:
    admission = history.facts.get("admission", {})
    lines = []
    if (room := number(admission, "room_bytes")) is not None:
        lines.append(Line(room / _GIB, f"there is {human_bytes(int(room))}", "bad"))
    if (predicted := number(admission, "predicted_bytes")) is not None:
        lines.append(Line(predicted / _GIB, f"predicted peak {human_bytes(int(predicted))}", "c5"))
    yield _over_time(history, "Memory of the trainer (GiB)", [Curve("", _with_gaps(history), "c0")], lines)


def _speed(history: History) -> Iterator[Html]:
    shown = [Curve("", _by_time(history, "tokens_per_second"), "c2")]
    yield _over_time(history, "Tokens per second", shown, height=160)


def _over_time(
    history: History, caption: str, shown: Sequence[Curve], lines: Sequence[Line] = (), height: int = 220
) -> Html:
    """The curves that have points; nothing without any."""
    found = [curve for curve in shown if curve.points]
    if not found:
        return joined()
    y = Axis(low=0.0, text=_figure)
    return curves(caption, found, Clock.of(history).axis, y, _marks_by_time(history), lines, height)


def _by_step(points: Sequence[Point]) -> list[tuple[float, float | None]]:
    return [(float(point.step), point.value) for point in points if point.step is not None]


def _by_time(history: History, name: str) -> list[tuple[float, float | None]]:
    clock = Clock.of(history)
    return [(clock.at(point.time), point.value) for point in history.curve(name)]


def _with_gaps(history: History) -> list[tuple[float, float | None]]:
    """Memory over time, broken where an attempt begins: between two nothing was measured."""
    clock = Clock.of(history)
    begins = sorted(attempt.started for attempt in history.attempts.values())
    found: list[tuple[float, float | None]] = []
    due = 0
    for point in history.memory.points:
        while due < len(begins) and begins[due] <= point.time:
            found.append((clock.at(begins[due]), None))
            due += 1
        found.append((clock.at(point.time), point.value / _GIB))
    return found if history.memory.points else []


def _marks_by_step(history: History) -> list[Mark]:
    last = max((point.step or 0 for name in ("loss", "grad_norm") for point in history.curve(name)), default=0)
    return _labelled_together(list(_marks(history, by_step=True))[-MOST_MARKS:], NEAR * last)


def _marks_by_time(history: History) -> list[Mark]:
    clock = Clock.of(history)
    whole = clock.at(history.ended or clock.start)
    return _labelled_together(list(_marks(history, by_step=False))[-MOST_MARKS:], NEAR * whole)


def _labelled_together(marks: Sequence[Mark], near: float) -> list[Mark]:
    """Labels that would lie over each other are written one after the other, beside the first of their marks."""
    found: list[Mark] = []
    first = -1
    for mark in sorted(marks, key=lambda mark: mark.at):
        if mark.text and first >= 0 and mark.at - found[first].at < near:
            if mark.text not in found[first].text.split(", "):
                together = f"{found[first].text}, {mark.text}"
                found[first] = replace(found[first], text=together if len(together) < 60 else found[first].text)
            mark = replace(mark, text="")
        elif mark.text:
            first = len(found)
        found.append(mark)
    return found


def _marks(history: History, *, by_step: bool) -> Iterator[Mark]:
    """Attempts after the first, failures and relief."""
    clock = Clock.of(history)
    for found in history.happenings:
        at = found.step if by_step else clock.at(found.time)
        if at is None:
            at = _step_of(history, found)
        if at is None or (found.kind == "attempt_started" and found.attempt < 2):
            continue
        name, kind = _name(found)
        yield Mark(float(at), name, kind, f"{found.kind.replace('_', ' ')}: {_plain(found.message)}")


def _step_of(history: History, found: Happening) -> int | None:
    attempt = history.attempts.get(found.attempt)
    return attempt.last_step if attempt is not None else None


def _name(found: Happening) -> tuple[str, str]:
    match found.kind:
        case "attempt_started":
            return f"attempt {found.attempt}", "c5"
        case "relief":
            return _plain(str(found.data.get("rung") or "relief")), "unsure"
        case "failure":
            return "", "bad"
        case _:
            return _plain(found.kind.replace("_", " ")), "bad"


def _plain(text: str) -> str:
    return clean(str(hide_secrets(text)))[:300]


def _unit(seconds: float) -> tuple[float, str]:
    """In what a stretch of so many seconds is measured best: how long that is, and its name."""
    return next(((unit, name) for least, unit, name in _UNITS if seconds >= least), (1.0, "seconds"))


def _figure(value: float) -> str:
    return count(value) if abs(value) >= 10 or value == 0 else f"{value:.3g}"


def _rate(value: float) -> str:
    return f"{value:.2g}"
