"""Train a few steps of a configuration in a folder of its own, so that its speed and its peak memory are known."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from supervisor.config import LoadedConfig
from supervisor.jobs import PlansSteps
from supervisor.problems import InputError
from supervisor.protocol.paths import RunPaths
from supervisor.state import read_state

STEPS = 8
"""Optimiser steps: the first ones warm up, the rest is the measurement."""


def probe(path: Path, sets: Sequence[str], config: LoadedConfig, runs: Path) -> float:
    """Seconds per optimiser step. Raises InputError when the probe fails."""
    kind = config.kind
    if not isinstance(kind, PlansSteps):
        raise InputError(f"{path}: a job of kind {kind.name} plans no steps, so a few of them cannot be tried.")
    runs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=runs) as folder:
        run_dir = Path(folder) / "run"
        options = [f"{kind.steps_key}={STEPS}", "limits.admission=off", "launch.standby=off"]
        command = [sys.executable, "-Pm", "supervisor.cli", "run", str(path), "--no-live", "--run-dir", str(run_dir)]
        for option in (*sets, *options):
            command += ["--set", option]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        if done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip()
            raise InputError(f"{path}: the probe of {STEPS} steps failed, so the time stays unknown. {words}")
        state = read_state(RunPaths(run_dir).state)
        if state is None or not state.seconds_per_step:
            raise InputError(f"{path}: the probe of {STEPS} steps told no speed, so the time stays unknown.")
        return state.seconds_per_step
