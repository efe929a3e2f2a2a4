"""A real run of one of our configurations, a little changed, and the events that it left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from supervisor.protocol.events import Event, read_events

PROJECT = Path(__file__).parents[1]


def events_of_run(config: str, run_dir: Path, settings: Mapping[str, object]) -> list[Event]:
    """``config``: a file of configs/. Exits with what the run said when it fails."""
    command = [Path(sys.executable).with_name("mens-sup"), "run", PROJECT / "configs" / config]
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    done = subprocess.run(
        [*command, "--no-live", "--run-dir", run_dir, *sets], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"the run failed: {done.stdout}{done.stderr}")
    return list(read_events(run_dir / "events.jsonl"))
