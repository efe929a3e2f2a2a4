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
EXIT_STOPPED = 4
"""Not that of INCONCLUSIVE, which a gate that was judged before says without an event."""
JUDGED = (0, 1, 3)


def run_gates(directory: Path, gates: Sequence[str], notify: NotifySettings) -> bool:
    """Judge a completed run by its gates and tell who wants to know; False when that was stopped on request.

    What is judged already isn't judged again. A gate that could not be judged is an event like any other.
    """
    events = RunPaths(directory).events
    log, reader = EventLog(events, "supervisor"), EventReader(events)
    for _ in reader.new():
        continue
    found: list[Event] = []
    code = 0
    for gate in gates:
        code = run_forwarding([sys.executable, "-P", "-m", "supervisor.cli", COMMAND, "gates", str(directory), gate])
        said = [event for event in reader.new() if event.kind == "gate"]
        found += said
        if code == EXIT_STOPPED:
            break
        if not said and code not in JUDGED:
            name = Path(gate).name
            message = f"{name} could not be judged (exit code {code}); run: mens-sup eval gates {directory} {gate}"
            found.append(log.append("gate", message, gate=name, verdict="unjudged"))
            for _ in reader.new():  # one's own
                continue
    _tell(directory, found, notify, log)
    return code != EXIT_STOPPED


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
