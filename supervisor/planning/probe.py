"""Train a few steps of a configuration in a folder of its own, so that its speed and its peak memory are known."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from supervisor.config import LoadedConfig
from supervisor.jobs import PlansSteps
from supervisor.problems import InputError
from supervisor.process.leftovers import end_leftovers
from supervisor.protocol.paths import RunPaths
from supervisor.state import read_state

STEPS = 8
"""Optimiser steps: the first ones warm up, the rest is the measurement."""
ALONE = ("limits.admission=off", "launch.standby=off", "notify.command=[]")
"""Nobody is told of a run that is thrown away."""
BEYOND_GRACE_SECONDS = 15.0
"""For the supervisor of the probe to end, after the grace that it gives its trainer."""


def probe(path: Path, sets: Sequence[str], config: LoadedConfig, runs: Path) -> float:
    """Seconds per optimiser step. Raises InputError when the probe fails.

    However this function is left, SIGINT and SIGTERM included, the probe has ended and its folder is gone.
    """
    kind = config.kind
    if not isinstance(kind, PlansSteps):
        raise InputError(f"{path}: a job of kind {kind.name} plans no steps, so a few of them cannot be tried.")
    runs.mkdir(parents=True, exist_ok=True)
    patience = config.own.limits.stop_grace_seconds + BEYOND_GRACE_SECONDS
    with sigterm_raises(), tempfile.TemporaryDirectory(prefix=".probe-", dir=runs) as folder:
        run_dir = Path(folder) / "run"
        code, words = run_to_its_end(probe_command(path, sets, kind, run_dir), run_dir, patience)
        if code != 0:
            raise InputError(f"{path}: the probe of {STEPS} steps failed, so the time stays unknown. {words}")
        state = read_state(RunPaths(run_dir).state)
        if state is None or not state.seconds_per_step:
            raise InputError(f"{path}: the probe of {STEPS} steps told no speed, so the time stays unknown.")
        return state.seconds_per_step


def probe_command(path: Path, sets: Sequence[str], kind: PlansSteps, run_dir: Path) -> list[str]:
    """Its few steps may be many for small data, so they are forced."""
    command = [sys.executable, "-Pm", "supervisor.cli", "run", str(path), "--no-live", "--force-overfit"]
    command += ["--run-dir", str(run_dir)]
    for option in (*sets, f"{kind.steps_key}={STEPS}", *ALONE, *kind.silent):
        command += ["--set", option]
    return command


def run_to_its_end(command: Sequence[str], run_dir: Path, patience_seconds: float) -> tuple[int, str]:
    """The exit code of a ``mens-sup run`` in ``run_dir``, and what it said on stderr.

    When an exception cuts the waiting short, it is asked to stop (SIGTERM) and has ``patience_seconds`` for it. Nothing
    of it is left on return.
    """
    with tempfile.TemporaryFile() as stderr:
        # In a session of its own: Ctrl-C is for us, and we ask it once.
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True)
        try:
            process.wait()
        except BaseException:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience_seconds)
            raise
        finally:
            process.kill()
            process.wait()
            # A trainer outlives a supervisor that was killed.
            for attempt in sorted(RunPaths(run_dir).attempts.glob("*")):
                end_leftovers(RunPaths(run_dir).attempt(int(attempt.name)).spec)
        stderr.seek(0)
        return process.returncode, stderr.read().decode(errors="replace").strip()


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """SIGTERM ends us by way of every ``finally``, with the exit code that a shell gives it. Main thread only."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
