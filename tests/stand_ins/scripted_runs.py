"""Short words for tests that run the supervisor around the scripted trainer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripted_kind import SCRIPTED

from supervisor.config import LoadedConfig, load_document
from supervisor.protocol.events import Event, read_events
from supervisor.protocol.paths import RunPaths
from supervisor.state import Outcome, RunState, read_state
from supervisor.supervise import RunRequest, supervise

QUICK = {"backoff_seconds": 0.0, "backoff_max_seconds": 0.0, "stop_grace_seconds": 20.0}


def document(*faults: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    """A configuration of kind scripted: 12 steps, a checkpoint every 3, no pauses between attempts."""
    limits = {**QUICK, **sections.pop("limits", {})}
    checkpoint = {"save_steps": 3, **sections.pop("checkpoint", {})}
    return {"kind": "scripted", "limits": limits, "checkpoint": checkpoint, "faults": list(faults), **sections}


def config(*faults: dict[str, Any], **sections: dict[str, Any]) -> LoadedConfig:
    return load_document(document(*faults, **sections), SCRIPTED)


def run(loaded: LoadedConfig | None, run_dir: Path, **request: Any) -> Outcome:
    return supervise(RunRequest(loaded, run_dir, **request), lambda: None)


def state(run_dir: Path) -> RunState:
    found = read_state(RunPaths(run_dir).state)
    assert found is not None
    return found


def events(run_dir: Path, kind: str) -> list[Event]:
    return [event for event in read_events(RunPaths(run_dir).events) if event.kind == kind]


def final_adapter(run_dir: Path) -> bytes:
    return (run_dir / "final" / "adapter.bin").read_bytes()


def start_supervisor(
    config_file: Path, run_dir: Path, *options: str, dies_at: str | None = None
) -> subprocess.Popen[bytes]:
    """`mens-sup run` in a process of its own, its output in RUN_DIR.log. ``dies_at``: see dying_supervisor.py."""
    stand_ins = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": stand_ins, **({"MENS_DIES_AT": dies_at} if dies_at else {})}
    module = "dying_supervisor" if dies_at else "supervisor.cli"
    command = [sys.executable, "-m", module, "run", str(config_file), "--run-dir", str(run_dir), "--no-live"]
    with open(run_dir.with_suffix(".log"), "ab") as log:
        return subprocess.Popen([*command, *options], env=environment, stdout=log, stderr=log)


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first true value of ``condition``; fails when it never is."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def alive(pid: int) -> bool:
    """Does the process exist and is it more than a zombie?"""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
