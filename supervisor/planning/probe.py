"""Train a few steps of a configuration in a folder of its own, so that its speed and its peak memory are known."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from supervisor.config import LoadedConfig
from supervisor.jobs import PlansSteps
from supervisor.problems import InputError
from supervisor.process.leftovers import end_leftovers
from supervisor.protocol.events import read_events
from supervisor.protocol.paths import RunPaths
from supervisor.state import read_state

LOOK_SECONDS = 0.1
STEPS = 8
"""Optimiser steps: the first ones warm up, the rest is the measurement."""
ALONE = (
    "limits.admission=off", "launch.standby=off", "notify.command=[]", "notify.urls_file=null", "notify.ping_file=null",
)  # fmt: skip
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
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=runs) as folder:
        run_dir = Path(folder) / "run"
        code, words = run_to_its_end(probe_command(path, sets, kind, run_dir), run_dir, patience)
        if code != 0:
            raise InputError(f"{path}: the probe of {STEPS} steps failed, so the time stays unknown. {words}")
        state = read_state(RunPaths(run_dir).state)
        pace = (state and state.seconds_per_step) or pace_told(RunPaths(run_dir))
        if not pace:
            raise InputError(
                f"{path}: the probe of {STEPS} steps told no speed, so the time stays unknown. Plan without --probe, "
                "or run it: a finished run's pace is remembered."
            )
        return pace


def pace_told(paths: RunPaths) -> float | None:
    """Seconds per optimiser step by the trainer's own events: where a few steps are over before their supervisor has
    looked twice. Of the last attempt; None for fewer than two steps."""
    told = [event for event in read_events(paths.events) if event.kind == "progress"]
    times = [event.time for event in told if event.attempt == told[-1].attempt]
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


def probe_command(path: Path, sets: Sequence[str], kind: PlansSteps, run_dir: Path) -> list[str]:
    """Its few steps may be many for small data, so they are forced."""
    command = [sys.executable, "-Pm", "supervisor.cli", "run", str(path), "--no-live", "--force-overfit"]
    command += ["--run-dir", str(run_dir)]
    for option in (*sets, f"{kind.steps_key}={STEPS}", *ALONE, *kind.silent):
        command += ["--set", option]
    return command


def run_to_its_end(command: Sequence[str], run_dir: Path, patience_seconds: float) -> tuple[int, str]:
    """The exit code of a ``mens-sup run`` in ``run_dir``, and what it said on stderr. Main thread only.

    On SIGINT or SIGTERM it is asked to stop and has ``patience_seconds`` for it, until the second such signal; then
    KeyboardInterrupt or SystemExit is raised. Nothing of it is left in any case.
    """
    with tempfile.TemporaryFile() as stderr, noted_signals() as asked:
        # In a session of its own: Ctrl-C is for us, and we ask it once.
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True)
        try:
            while process.poll() is None and not asked:
                time.sleep(LOOK_SECONDS)
            if asked and process.poll() is None:
                process.terminate()
                until = time.monotonic() + patience_seconds
                while process.poll() is None and len(asked) == 1 and time.monotonic() < until:
                    time.sleep(LOOK_SECONDS)
        finally:
            process.kill()
            process.wait()
            # A trainer outlives a supervisor that was killed.
            for attempt in sorted(RunPaths(run_dir).attempts.glob("*")):
                end_leftovers(RunPaths(run_dir).attempt(int(attempt.name)).spec)
        stderr.seek(0)
        words = stderr.read().decode(errors="replace").strip()
    if asked:
        raise KeyboardInterrupt if asked[0] == signal.SIGINT else SystemExit(128 + asked[0])
    return process.returncode, words


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM are only noted: an exception between the start of a process and our knowing of it would leave
    it behind."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
