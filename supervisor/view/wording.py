"""Events in words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from supervisor.protocol.events import Event
from supervisor.redact import hide_secrets
from supervisor.sensors.disk import human_bytes
from supervisor.view.text import clean, count

_ROUTINE = frozenset({"progress", "phase", "checkpoint_verified", "checkpoint_deleted", "retention", "standby_started"})
"""Frequent, and shown in other ways."""
_WHOLE_SENTENCES = frozenset(
    {
        "adopted", "already_completed", "attempt_ended", "attempt_started", "best", "checkpoint_quarantined",
        "disk_forecast", "disk_low", "ended_unseen", "gate", "leftovers_killed", "rank_ended", "run_continued",
        "standby_discarded", "standby_lost", "standby_ready", "standby_skipped", "standby_took_over", "stood_still",
        "stop_requested", "stray_trainer", "stray_trainer_ended", "trainer_stopped", "waited", "waiting",
    }
)  # fmt: skip
"""Their messages need no label."""
_ALARMING = frozenset(
    {
        "alarm", "attempt_ended", "checkpoint_quarantined", "disk_forecast", "disk_low", "failure", "hang",
        "quarantine", "rank_ended", "relief", "time_wall", "trainer_stopped", "waiting", "warning",
    }
)  # fmt: skip
MAX_CHARACTERS = 600


def describe(event: Event) -> str | None:
    """One line about an event, or None when it is routine. Free of control characters and of secrets."""
    if event.kind in _ROUTINE:
        return None
    text = str(hide_secrets(_special(event) or clean(event.message)))
    if not text:
        return None
    if event.kind in _WHOLE_SENTENCES:
        return text[:MAX_CHARACTERS]
    label = clean(event.kind).replace("_", " ")
    return f"{label}: {text}"[:MAX_CHARACTERS]


def is_alarming(event: Event) -> bool:
    return event.kind in _ALARMING


def clock(moment: float) -> str:
    """Local time of day of Unix seconds."""
    return local_time(moment, "%H:%M:%S")


def local_time(moment: float, form: str) -> str:
    """Unix seconds as local time, ``?`` for what is no moment: a trainer may write anything into its events."""
    try:
        return time.strftime(form, time.localtime(moment))
    except (OSError, OverflowError, ValueError):
        return "?"


def number(data: Mapping[str, Any], key: str) -> float | None:
    """A finite number out of an event's data; anything else there is unknown."""
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
        return None
    return value


def with_noise(value: float, stderr: float | None) -> str:
    """A figure and, where it is known, its standard error."""
    return f"{value:.4f}" + ("" if stderr is None else f" ± {stderr:.4f}")


def _special(event: Event) -> str | None:
    data, step = event.data, event.step
    match event.kind:
        case "corpus":
            return _corpus(data)
        case "plan":
            parts = [_counted(data, f"planned_{what}", what) for what in ("steps", "tokens", "rows")]
            return ", ".join(part for part in parts if part)
        case "evaluation":
            loss = number(data, "eval_loss")
            tokens = _counted(data, "eval_tokens", "tokens")
            where = "" if step is None else f"step {step}, "
            verdict = f", {clean(event.message)}" if event.message else ""
            shown = "" if loss is None else f"{where}loss {with_noise(loss, number(data, 'eval_loss_stderr'))}"
            return f"{shown}{f' over {tokens}' if tokens else ''}{verdict}" if shown else None
        case "checkpoint":
            size, seconds = number(data, "bytes"), number(data, "seconds")
            size_text = "" if size is None else f", {human_bytes(int(size))}"
            return f"step {step} saved{size_text}" + ("" if seconds is None else f" in {seconds:.1f} s")
        case "resumed":
            return f"at step {step}"
        case "outcome":
            return clean(f"{data.get('outcome', '')}: {event.message}".replace("_", " ", 1))
    return None


def _corpus(data: Mapping[str, Any]) -> str:
    parts = [
        _counted(data, "rows", "rows"),
        _counted(data, "tokens", "tokens"),
        _counted(data, "unique_responses", "unique responses"),
    ]
    dropped = data.get("dropped")
    if isinstance(dropped, Mapping) and dropped:
        reasons = ", ".join(f"{clean(str(reason))} {how_many}" for reason, how_many in dropped.items())
        parts.append(f"dropped: {clean(reasons)}")
    return ", ".join(part for part in parts if part)


def _counted(data: Mapping[str, Any], key: str, what: str) -> str:
    value = number(data, key)
    return "" if value is None else f"{count(value)} {what}"
