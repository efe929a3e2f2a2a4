"""The page of one run: how it went, drawn, and every attempt with what it died of.

Everything in a run directory is untrusted: log lines and messages are escaped by the shared HTML pieces, and secrets
are taken out of them here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from supervisor.html.markup import Content, Html, element, joined
from supervisor.html.page import badge, facts, folded, page, preformatted, section, table
from supervisor.problems import InputError
from supervisor.protocol.events import read_events
from supervisor.protocol.paths import RunPaths
from supervisor.redact import hide_secrets, shown_value
from supervisor.report.charts import charts, disk_charts, timeline
from supervisor.report.history import Attempt, History, fold
from supervisor.report.summary import RunSummary, read_summary
from supervisor.report.wording import day, outcome_kind, short, whole
from supervisor.sensors.disk import human_bytes
from supervisor.sensors.report import SensorReport, read_report
from supervisor.sensors.snapshot import Unknown
from supervisor.state import RunState
from supervisor.view.text import clean, count, duration
from supervisor.view.wording import clock, number, with_noise
from supervisor.yaml_source import read_yaml

MOST_ATTEMPTS_SHOWN = 100
_VERDICTS = {"pass": "good", "passed": "good", "fail": "bad", "failed": "bad"}


def run_page(paths: RunPaths) -> bytes:
    """The page of the run in ``paths``, UTF-8. Raises InputError when there is no readable run."""
    summary = read_summary(paths.root)
    if summary is None:
        raise InputError(f"{paths.root} holds no run (no state.json). Name a run's folder, usually one under runs/.")
    if summary.state is None:
        raise InputError(f"{paths.root}: {summary.problem}. The events are in {paths.events}.")
    history = fold(read_events(paths.events))
    sensors = read_report(paths.sensors)
    settings = _settings(paths)
    return page(summary.name, *_sections(summary, summary.state, history, sensors, settings)).encode()


def _sections(
    run: RunSummary,
    state: RunState,
    history: History,
    sensors: SensorReport | None,
    settings: Mapping[str, Any] | str,
) -> Iterator[Content]:
    yield element("p", badge(run.standing, outcome_kind(run.standing)), " ", _text(state.explanation))
    if run.running:
        yield element("p", f"As of {day(time.time())}; this page does not renew itself.", class_="soft")
    yield facts(_facts(run, state, history))
    if (drawn := charts(history)) != "":
        yield section("How it went", drawn, name="curves")
    yield section("Attempts", timeline(history), *_attempts(history), name="attempts")
    if state.relief:
        yield section("Relief taken", _relief(state), name="relief")
    if history.gates:
        yield section("Gates", _gates(history), name="gates")
    if (disk := joined(*_disk(history, sensors))) != "":
        yield section("Disk", disk, name="disk")
    if (machine := joined(*_machine(history, sensors))) != "":
        yield section("Machine", machine, name="machine")
    yield section("What happened", *_events(history), name="events")
    yield section("Configuration", *_configuration(settings), name="configuration")


def _facts(run: RunSummary, state: RunState, history: History) -> Iterator[tuple[str, Content]]:
    yield "kind", state.kind
    yield "folder", str(run.directory)
    yield "started", day(state.started)
    yield "last sign", day(state.updated)
    if state.seconds_used:
        yield "time used", duration(state.seconds_used)
    failed = f", {len(state.failures)} of them failed" if state.failures else ""
    yield "attempts", f"{state.attempt}{failed}; at most {state.max_attempts} in a call"
    planned = count(state.planned_steps) if state.planned_steps else "?"
    yield "steps", f"{count(run.step)} of {planned}"
    if history.progress_message:
        yield "standing", _text(history.progress_message)
    if state.tokens_seen:
        yield "tokens", count(state.tokens_seen)
    if (losses := history.curve("loss")) != []:
        first, last = losses[0], losses[-1]
        yield "loss", f"{first.value:.4f} at step {first.step}, {last.value:.4f} at step {last.step}"
    if history.evaluations:
        best = min(history.evaluations, key=lambda each: each.loss)
        newest = history.evaluations[-1]
        yield "evaluation loss", (
            f"{with_noise(newest.loss, newest.stderr)} at step {newest.step}, "
            f"lowest {with_noise(best.loss, best.stderr)} at step {best.step}"
        )
    if state.last_checkpoint or history.checkpoints:
        yield "checkpoints", f"newest {state.last_checkpoint or 'none'}, best {state.best_checkpoint or 'none'}"
    corpus = history.facts.get("corpus", {})
    if (rows := number(corpus, "rows")) is not None:
        tokens = number(corpus, "tokens")
        yield "corpus", f"{count(rows)} rows" + ("" if tokens is None else f", {count(tokens)} tokens")


def _attempts(history: History) -> Iterator[Html]:
    if not history.attempts:
        yield element("p", "No attempt was made.")
        return
    shown = list(history.attempts.values())[-MOST_ATTEMPTS_SHOWN:]
    left_out = history.attempts_left_out + len(history.attempts) - len(shown)
    if left_out:
        yield element("p", f"{left_out} earlier attempts are not shown.", class_="soft")
    heads = ("attempt", "began", "took", "steps", "ended", "diagnosis", "what was changed for the next")
    yield table(heads, [_attempt(each) for each in shown], left=(0, 1, 4, 5, 6))


def _attempt(attempt: Attempt) -> tuple[Content, ...]:
    steps = f"{_step(attempt.first_step)} to {_step(attempt.last_step)}"
    if attempt.failure:
        sure = "" if attempt.confidence is None else f" ({attempt.confidence:.0%} sure)"
        kind = element("strong", attempt.failure, class_="bad")
        verdict: Content = joined(kind, f"{sure}: ", _text(attempt.explanation), _evidence(attempt))
    else:
        verdict = "no failure" if attempt.over else "still going on, or its end was not seen"
    changed = joined(*(element("p", _text(each)) for each in attempt.relief))
    took = duration(attempt.ended - attempt.started)
    began, how = whole(day(attempt.started)), _text(attempt.how)
    return (attempt.number, began, whole(took), whole(steps), how, verdict, changed)


def _evidence(attempt: Attempt) -> Html:
    if not attempt.evidence:
        return joined()
    return folded(f"evidence ({len(attempt.evidence)})", preformatted(_lines("\n".join(attempt.evidence))))


def _relief(state: RunState) -> Html:
    heads = ("before attempt", "rung", "because of", "price", "lossless", "changes")
    rows = []
    for taken in state.relief:
        changes = [f"{key}: {hide_secrets(str(shown_value(key, value)))}" for key, value in taken.patches.items()]
        price = _text(taken.price) if not taken.in_vain else joined(_text(taken.price), " (in vain)")
        lossless: Content = "yes" if taken.lossless else badge("no", "unsure")
        rows.append((taken.attempt, whole(taken.rung), taken.kind, price, lossless, _text("; ".join(changes))))
    return table(heads, rows, left=(0, 1, 2, 3, 4, 5))


def _gates(history: History) -> Html:
    rows = []
    for name, found in history.gates.items():
        verdict = str(found.data.get("verdict") or "unknown")
        word = badge(verdict, _VERDICTS.get(verdict.lower(), "unsure"))
        rows.append((_text(name), word, _text(found.message), day(found.time)))
    return table(("gate", "verdict", "why", "at"), rows, left=(0, 1, 2, 3))


def _disk(history: History, sensors: SensorReport | None) -> Iterator[Content]:
    if sensors is not None:
        ahead = {found.mount: found.seconds for found in sensors.forecasts}
        rows = []
        for mount in sensors.snapshot.mounts:
            free = "?" if isinstance(mount.free_bytes, Unknown) else human_bytes(mount.free_bytes)
            total = "?" if isinstance(mount.total_bytes, Unknown) else human_bytes(mount.total_bytes)
            seconds = ahead.get(mount.mount)
            full: Content = "not filling up" if seconds is None else badge(f"full in {duration(seconds)}", "bad")
            rows.append((whole(mount.mount), ", ".join(mount.uses), whole(free), whole(total), full))
        yield element("p", f"As the sensors saw it at {day(sensors.snapshot.time)}.", class_="soft")
        yield table(("mount", "what for", "free", "of", "forecast"), rows, left=(0, 1, 4))
        yield disk_charts(sensors)
    if history.forecasts:
        said = [(day(found.time), _text(found.message)) for found in history.forecasts]
        yield table(("forecast at", "said"), said, left=(0, 1))


def _machine(history: History, sensors: SensorReport | None) -> Iterator[Content]:
    pairs: list[tuple[str, Content]] = []
    if (admission := history.facts.get("admission")) is not None:
        predicted, room = number(admission, "predicted_bytes"), number(admission, "room_bytes")
        if predicted is not None and room is not None:
            pairs.append(("predicted peak memory", f"{human_bytes(int(predicted))} of {human_bytes(int(room))}"))
    if (measured := number(history.facts.get("memory", {}), "measured_bytes")) is not None:
        pairs.append(("measured peak memory", human_bytes(int(measured))))
    if sensors is not None:
        snapshot = sensors.snapshot
        if isinstance(snapshot.gpus, Unknown):
            pairs.append(("GPU", f"unknown: {snapshot.gpus.reason}"))
        else:
            pairs += [(f"GPU {gpu.index}", _gpu_name(gpu.name, gpu.total_bytes)) for gpu in snapshot.gpus]
        total = snapshot.host.ram_total
        pairs.append(("RAM", "?" if isinstance(total, Unknown) else human_bytes(total)))
    if pairs:
        yield facts(pairs)


def _events(history: History) -> Iterator[Html]:
    lines = "\n".join(f"{clock(moment)} {text}" for moment, text in history.notable)
    yield folded(f"the last {len(history.notable)} events", preformatted(_lines(lines), most=60_000))


def _configuration(settings: Mapping[str, Any] | str) -> Iterator[Html]:
    if isinstance(settings, str):
        yield element("p", settings)
        return
    rows = [(key, _text(short(str(shown_value(key, value)), 500))) for key, value in _flat(settings, "")]
    yield folded("as submitted", table(("key", "value"), rows, left=(0, 1)))


def _settings(paths: RunPaths) -> Mapping[str, Any] | str:
    """run.yaml as plain data, or why it cannot be shown."""
    try:
        return read_yaml(paths.run_yaml)[0]
    except InputError as error:
        return str(hide_secrets(str(error)))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        return f"run.yaml cannot be read: {type(error).__name__}"


def _flat(document: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _gpu_name(name: str | Unknown, total: int | Unknown) -> str:
    what = "?" if isinstance(name, Unknown) else name
    return f"{what}, {'?' if isinstance(total, Unknown) else human_bytes(total)}"


def _step(step: int | None) -> str:
    return "?" if step is None else count(step)


def _text(text: str) -> str:
    """Untrusted words in one line."""
    return clean(str(hide_secrets(text)))


def _lines(text: str) -> str:
    return clean(str(hide_secrets(text)), lines=True)


