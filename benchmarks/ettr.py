"""Useful time / wall time with a crash a minute on the quickstart model, against the undisturbed run.

Both runs do the same optimiser steps. The useful time is what the undisturbed run takes from its first to
its last step; the wall time is the disturbed run's between the same two. A crash is a SIGKILL of the trainer.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import describe, verdict

from supervisor.protocol.events import Event, read_events
from supervisor.protocol.lock import lock_holder
from supervisor.protocol.paths import RunPaths

PROJECT = Path(__file__).parents[1]
MENS_SUP = Path(sys.executable).with_name("mens-sup")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=PROJECT / "configs" / "quickstart.yaml")
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--crash-every", type=float, default=60.0, help="seconds of training between two crashes")
    options = parser.parse_args()
    print(f"{describe()}; {options.config.name}, {options.steps} optimiser steps")
    with tempfile.TemporaryDirectory(prefix="mens-ettr-") as place:
        calm = _train(Path(place) / "calm", options, crash_every=None)
        stormy = _train(Path(place) / "stormy", options, crash_every=options.crash_every)
    useful, wall = _between_steps(calm), _between_steps(stormy)
    crashes = sum(event.kind == "failure" for event in stormy)
    repeated = sum(event.kind == "progress" for event in stormy) - options.steps
    print(f"undisturbed: {useful:.1f} s; with {crashes} crashes: {wall:.1f} s, {repeated} steps done again")
    print(f"  seconds per crash: {(wall - useful) / max(crashes, 1):.1f}")
    verdict("ETTR (undisturbed / disturbed)", useful / wall, 0.97, at_least=True)
    return 0


def _train(run_dir: Path, options: argparse.Namespace, crash_every: float | None) -> list[Event]:
    command = [MENS_SUP, "run", options.config, "--no-live", "--run-dir", run_dir, "--max-attempts", "99"]
    command += ["--set", f"train.max_steps={options.steps}"]
    with open(run_dir.with_name(f"{run_dir.name}.log"), "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    paths = RunPaths(run_dir)
    try:
        _crash_now_and_then(process, paths, crash_every or float("inf"))
    finally:
        process.terminate()
        process.wait()
    if process.returncode != 0:
        end = "".join(Path(log.name).read_text().splitlines(keepends=True)[-5:])
        raise SystemExit(f"the run ended with exit code {process.returncode}:\n{end}")
    return list(read_events(paths.events))


def _crash_now_and_then(process: subprocess.Popen[bytes], paths: RunPaths, every: float) -> None:
    due: float | None = None
    while process.poll() is None:
        time.sleep(0.1)
        if due is None and paths.events.exists() and any(e.kind == "progress" for e in read_events(paths.events)):
            due = time.monotonic() + every
        if due is not None and time.monotonic() >= due:
            if pid := lock_holder(paths.trainer_lock):
                os.kill(pid, signal.SIGKILL)
            due += every


def _between_steps(events: list[Event]) -> float:
    """Seconds from the end of the first optimiser step to the end of the last one."""
    times = [event.time for event in events if event.kind == "progress"]
    return times[-1] - times[0]


if __name__ == "__main__":
    sys.exit(main())
