"""The gates of a completed run, judged by `mens-sup eval gates`: a command of another package, whose evaluations are
supervised runs of their own. What they found stands in the events of the run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from supervisor.config_sections import NotifySettings
from supervisor.forwarding import run_forwarding
from supervisor.notify import Teller
from supervisor.protocol.events import Event, EventLog, EventReader
from supervisor.protocol.paths import RunPaths

COMMAND = "eval"
"""The command that judges; the name of its entry point."""
EXIT_STOPPED = 3


def run_gates(directory: Path, gates: Sequence[str], notify: NotifySettings) -> bool:
    """Judge a completed run by its gates and tell who wants to know; False when that was stopped on request.

    What is judged already isn't judged again. A gate that could not be judged is an event like any other.
    """
    events = RunPaths(directory).events
    log, reader = EventLog(events, "supervisor"), EventReader(events)
    for _ in reader.new():
        continue
    command = [sys.executable, "-P", "-m", "supervisor.cli", COMMAND, "gates", str(directory), *gates]
    code = run_forwarding(command)
    found = [event for event in reader.new() if event.kind == "gate"]
    if not found and code not in (0, EXIT_STOPPED):
        names = ", ".join(Path(gate).name for gate in gates)
        message = f"{names} could not be judged (exit code {code}); run: mens-sup eval gates {directory} GATE"
        found.append(log.append("gate", message, gate=names, verdict="unjudged"))
    _tell(directory, found, notify, log)
    return code != EXIT_STOPPED or bool(found)


def _tell(directory: Path, found: Sequence[Event], notify: NotifySettings, log: EventLog) -> None:
    teller = Teller(lambda sentence: log.append("warning", sentence))
    for event in found:
        payload: dict[str, object] = {
            "event": "gate",
            "run": directory.resolve().name,
            "run_dir": str(directory),
            "message": event.message,
            **{key: event.data[key] for key in ("gate", "verdict") if key in event.data},
        }
        teller.tell(notify, "gate", payload)
    teller.finish()
