"""What a run directory tells after the fact: diagnoses, lost steps, recovery, and promises that were broken."""

from __future__ import annotations

from collections import Counter
from itertools import groupby, pairwise

import msgspec

from supervisor.diagnosis.values import Diagnosis
from supervisor.protocol.events import Event, read_events
from supervisor.protocol.paths import RunPaths
from supervisor.state import read_state


def newest_attempt(paths: RunPaths) -> int:
    if not paths.attempts.is_dir():
        return 0
    return max((int(place.name) for place in paths.attempts.iterdir() if place.name.isdigit()), default=0)


def _of_kind(paths: RunPaths, *kinds: str) -> list[Event]:
    return [event for event in read_events(paths.events) if event.kind in kinds]


def has_ended(paths: RunPaths, attempt: int) -> bool:
    return any(event.attempt == attempt for event in _of_kind(paths, "attempt_ended"))


def failed_as(paths: RunPaths, failure: str) -> int | None:
    """The first attempt that ended of it."""
    found = (event.attempt for event in _of_kind(paths, "failure") if event.data.get("failure") == failure)
    return next(found, None)


def has_begun(paths: RunPaths, since: float) -> bool:
    return any(event.time >= since for event in _of_kind(paths, "attempt_started", "adopted", "run_continued"))


def attempt_at(paths: RunPaths, moment: float) -> int | None:
    """The attempt that was under way at ``moment``."""
    return max(
        (event.attempt or 0 for event in _of_kind(paths, "attempt_started") if event.time <= moment), default=None
    )


def diagnosis(paths: RunPaths, attempt: int) -> Diagnosis | None:
    try:
        return msgspec.json.decode(paths.attempt(attempt).diagnosis.read_bytes(), type=Diagnosis)
    except FileNotFoundError:
        return None


def _done(paths: RunPaths, attempt: int) -> int | None:
    """The last optimiser step that an attempt has told of."""
    return max((event.step or 0 for event in _of_kind(paths, "progress") if event.attempt == attempt), default=None)


def steps_lost(paths: RunPaths, attempt: int) -> int | None:
    """Optimiser steps of ``attempt`` that the next one had to do again; None when none followed."""
    began = [event for event in _of_kind(paths, "attempt_started") if event.attempt == attempt + 1]
    done = _done(paths, attempt)
    if not began or done is None:
        return None
    return max(0, done - (began[0].step or 0))


def recovery_seconds(paths: RunPaths, attempt: int, since: float) -> float | None:
    """From the strike to the first optimiser step of the next attempt."""
    later = [event.time for event in _of_kind(paths, "progress") if event.attempt == attempt + 1]
    return later[0] - since if later else None


def broken_promises(paths: RunPaths) -> list[str]:
    """Lost or doubled events, a second trainer, an endless loop: whatever the event log shows of them."""
    listed = list(read_events(paths.events))
    state = read_state(paths.state)
    attempts = list(range(1, (state.attempt if state else 0) + 1))
    problems = []
    for kind in ("attempt_started", "attempt_ended"):
        found = [event.attempt for event in listed if event.kind == kind]
        if found != attempts:
            problems.append(f"{kind} of attempts {found} where {attempts} were made")
    by_trainer = [event.attempt for event in listed if event.source == "trainer"]
    if any(before > after for before, after in pairwise(by_trainer)):
        problems.append("two trainers wrote events at the same time")
    for attempt, group in groupby((event for event in listed if event.kind == "progress"), key=lambda e: e.attempt):
        steps = [event.step or 0 for event in group]
        if steps != list(range(steps[0], steps[0] + len(steps))):
            problems.append(f"attempt {attempt} told of steps {steps}")
    saved = Counter((event.attempt, event.step) for event in listed if event.kind == "checkpoint_verified")
    problems += [f"checkpoint_verified {times} times for {where}" for where, times in saved.items() if times > 1]
    failures = [(event.data.get("fingerprint"), event.step) for event in listed if event.kind == "failure"]
    for what, again in groupby(failures):
        if len(list(again)) > 2:
            problems.append(f"the same failure three times in a row: {what}")
    return problems
