"""``mens-sup submit``, ``queue``, ``cancel``, ``pause``, ``resume`` and ``schedule``: questions to the daemon."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from supervisor.daemon.control.client import DaemonClient
from supervisor.daemon.control.errors import NoDaemonError
from supervisor.daemon.control.stopping import ask_to_stop
from supervisor.daemon.control.which import find_entry
from supervisor.daemon.control.wire import encode
from supervisor.daemon.service import Entry, EntryState, Schedule
from supervisor.problems import InputError
from supervisor.view.text import clean, duration

ENDED_SHOWN = 10
ALL = 100_000


def submit(options: argparse.Namespace) -> int:
    """The daemon looks the configuration through before it queues it, and says what is wrong with line and key."""
    client = DaemonClient()
    request: dict[str, Any] = {
        "config": str(options.config.absolute()),
        "name": options.name,
        "run_dir": None if options.run_dir is None else str(options.run_dir.absolute()),
        "after": [find_entry(client, each).id for each in options.after],
        "priority": options.priority,
        "sets": options.sets,
        "accept_change": options.accept_change,
        "max_attempts": options.max_attempts,
        "authorize_hours": options.authorize_hours,
        "force_overfit": options.force_overfit,
    }
    entry = client.submit(request)
    _say_entry(entry, options, f"queued as {entry.id} ({clean(entry.name)}). Follow it with: mens-sup watch {entry.id}")
    return 0


def queue(options: argparse.Namespace) -> int:
    entries = DaemonClient().entries(ALL if options.whole else ENDED_SHOWN)
    _print(encode(entries).decode() if options.as_json else render_queue(entries, time.time()))
    return 0


def act(options: argparse.Namespace) -> int:
    """``cancel``, ``pause`` and ``resume``; without a daemon on the folder of a run."""
    client = DaemonClient()
    try:
        entry = find_entry(client, options.run)
    except InputError as error:
        if not Path(options.run).is_dir():
            raise
        return _act_alone(Path(options.run), options.action, error)
    entry = client.act(entry.id, options.action)
    _say_entry(entry, options, f"{entry.id} ({clean(entry.name)}) is {_state(entry)}")
    return 0


def schedule_add(options: argparse.Namespace) -> int:
    added = DaemonClient().add_schedule(options.config.absolute(), options.cron)
    _print(encode(added).decode() if options.as_json else f"schedule {added.id}: {_due(added, time.time())}")
    return 0


def schedule_list(options: argparse.Namespace) -> int:
    found = DaemonClient().schedules()
    if options.as_json:
        _print(encode(found).decode())
    elif not found:
        _print("There are no schedules.")
    else:
        now = time.time()
        rows = [(each.id, each.cron, each.kind, _due(each, now), str(each.config)) for each in found]
        _print(_columns(("id", "cron", "kind", "next", "job"), rows))
    return 0


def schedule_remove(options: argparse.Namespace) -> int:
    DaemonClient().remove_schedule(options.schedule)
    _print(f"schedule {options.schedule} is removed; what it has queued stays.")
    return 0


def render_queue(entries: Sequence[Entry], now: float) -> str:
    """A table for people."""
    if not entries:
        return "The queue is empty."
    rows = [
        (str(each.id), each.state.value, str(each.priority), each.kind, each.name, _since(each, now), _why(each))
        for each in entries
    ]
    return _columns(("id", "state", "priority", "kind", "name", "for", ""), rows)


def _act_alone(folder: Path, action: str, error: InputError) -> int:
    """Without the daemon's help; ``error``: why there is none."""
    if action == "resume":
        raise InputError(f"{folder} is in no queue; go on with: mens-sup run --run-dir {folder}. ({error})")
    if not ask_to_stop(folder):
        said = f" {error}" if isinstance(error, NoDaemonError) else ""
        raise InputError(f"{folder}: nobody supervises this run, there is nothing to {action}.{said}")
    _print(f"{folder}: asked to save a checkpoint and end. Go on with: mens-sup run --run-dir {folder}")
    return 0


def _say_entry(entry: Entry, options: argparse.Namespace, sentence: str) -> None:
    _print(encode(entry).decode() if options.as_json else sentence)


def _state(entry: Entry) -> str:
    return f"{entry.state}. {clean(entry.explanation)}".rstrip() if entry.explanation else f"{entry.state}."


def _since(entry: Entry, now: float) -> str:
    if entry.state.ended:
        begun, end = entry.started_at or entry.ended_at, entry.ended_at
    elif entry.state is EntryState.RUNNING:
        begun, end = entry.started_at, now
    else:
        begun, end = entry.submitted_at, now
    return "" if begun is None or end is None else duration(max(0.0, end - begun))


def _why(entry: Entry) -> str:
    after = f"after {', '.join(map(str, entry.after))}" if entry.state is EntryState.BLOCKED and entry.after else ""
    return "; ".join(part for part in (after, entry.explanation) if part)


def _due(schedule: Schedule, now: float) -> str:
    if schedule.next_at is None:
        return "never again"
    at = time.strftime("%Y-%m-%d %H:%M", time.localtime(schedule.next_at))
    return f"{at} (in {duration(max(0.0, schedule.next_at - now))})"


def _columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned; the last column is as long as it is."""
    lines = [tuple(clean(cell) for cell in row) for row in (tuple(heads), *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")

