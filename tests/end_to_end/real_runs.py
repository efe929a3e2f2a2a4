"""Runs of the real trainer under the real command line, and SIGKILLs at chosen moments of them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from supervisor.protocol.attempt import ExitReport, read_exit_report
from supervisor.protocol.events import Event, read_events
from supervisor.protocol.heartbeat import Phase, read_heartbeat
from supervisor.protocol.manifest import Manifest, read_manifest
from supervisor.protocol.paths import RunPaths
from supervisor.state import RunState, read_state

PROJECT = Path(__file__).parents[2]
STAND_INS = PROJECT / "tests" / "stand_ins"
TINY = PROJECT / "configs" / "tiny.yaml"
MENS_SUP = Path(sys.executable).with_name("mens-sup")

QUICK: Mapping[str, Any] = {
    "model.base": "random:1x64",
    "data.sources": [{"type": "python_declarations", "path": "stdlib", "max_rows": 120}],
    "data.validation.max_rows": 2,
    "eval.min_delta": 1000.0,  # two rows can show nothing smaller
    "train.max_steps": 12,
    "train.max_length": 96,
    "checkpoint.save_steps": 2,
    "checkpoint.keep": 9,
    "limits.backoff_seconds": 0.0,
    "limits.admission": "off",
}
"""configs/tiny.yaml made smaller still: 12 steps, six checkpoints."""

LOADING = (Phase.STARTING, Phase.LOADING)


def sets(changes: Mapping[str, Any]) -> list[str]:
    """``--set`` options; JSON is YAML."""
    return [option for key, value in changes.items() for option in ("--set", f"{key}={json.dumps(value)}")]


def faults(*listed: dict[str, Any]) -> dict[str, Any]:
    """Changes that let the real trainer run with these faults (see stand_ins/faulty_trainer.py)."""
    return {"kind": "faulty", "launch.env": {"MENS_FAULTS": json.dumps(listed)}}


def start(
    run_dir: Path, changes: Mapping[str, Any], *options: str, config: Path = TINY, cgroup: Path | None = None
) -> subprocess.Popen[str]:
    """``mens-sup run`` in a process of its own, both its streams in RUN_DIR.log.

    ``cgroup``: the ``cgroup.procs`` file of the cgroup that it shall live in.
    """
    environment = {**os.environ, "PYTHONPATH": str(STAND_INS), "HF_HUB_OFFLINE": "1"}
    command = [MENS_SUP, "run", config, "--no-live", "--run-dir", run_dir, *sets(changes), *options]
    if cgroup is not None:
        command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', cgroup, *command]
    with open(log_of(run_dir), "a") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, text=True)


def run(
    run_dir: Path, changes: Mapping[str, Any], *options: str, config: Path = TINY, cgroup: Path | None = None
) -> int:
    """The exit code of ``mens-sup run``; what it printed is in RUN_DIR.log."""
    return start(run_dir, changes, *options, config=config, cgroup=cgroup).wait()


def mens_sup(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(STAND_INS)}
    return subprocess.run([MENS_SUP, *arguments], env=environment, capture_output=True, text=True, check=False)


def log_of(run_dir: Path) -> Path:
    return run_dir.with_name(f"{run_dir.name}.log")


def state(run_dir: Path) -> RunState:
    found = read_state(RunPaths(run_dir).state)
    assert found is not None
    return found


def events(run_dir: Path, kind: str) -> list[Event]:
    return [event for event in read_events(RunPaths(run_dir).events) if event.kind == kind]


def report(run_dir: Path, attempt: int) -> ExitReport:
    found = read_exit_report(RunPaths(run_dir).attempt(attempt).exit_report)
    assert found is not None
    return found


def final_manifest(run_dir: Path) -> Manifest:
    return read_manifest(run_dir / "final")


def same_adapter(one: Path, other: Path) -> bool:
    """Are the final adapters of two runs equal bit for bit, and has something been learnt at all?"""
    ours, theirs = (load_file(place / "final" / "adapter_model.safetensors") for place in (one, other))
    learnt = any(bool(tensor.any()) for name, tensor in ours.items() if "lora_B" in name)
    return learnt and {key: _bits(value) for key, value in ours.items()} == {
        key: _bits(value) for key, value in theirs.items()
    }


def _bits(tensor: np.ndarray[Any, Any]) -> tuple[str, tuple[int, ...], bytes]:
    return str(tensor.dtype), tensor.shape, tensor.tobytes()


@dataclass(frozen=True)
class Moment:
    """When to kill: ``delay`` seconds after one of ``phases`` was seen at optimiser step ``step`` or later."""

    phases: tuple[Phase, ...]
    step: int = 0
    delay: float = 0.0


@dataclass(frozen=True)
class Kill:
    """A SIGKILL as it happened. ``staging``: half-written checkpoints that lay there at that moment."""

    attempt: int
    phase: Phase
    step: int
    staging: tuple[str, ...]


def run_with_kills(
    run_dir: Path, changes: Mapping[str, Any], moments: Sequence[Moment], config: Path = TINY
) -> tuple[int, list[Kill]]:
    """Run to the end, killing one attempt after the other at the given moments, each attempt at most once."""
    process = start(run_dir, changes, "--max-attempts", str(len(moments) + 1), config=config)
    kills: list[Kill] = []
    try:
        for moment in moments:
            if (kill := _kill_at(run_dir, process, moment, kills)) is not None:
                kills.append(kill)
        return process.wait(), kills
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _kill_at(run_dir: Path, process: subprocess.Popen[str], moment: Moment, before: Sequence[Kill]) -> Kill | None:
    """Wait for the moment and kill; None when the run ended without it."""
    paths = RunPaths(run_dir)
    # Attempts are numbered one by one, so the next to live is the one after the last killed.
    attempt = before[-1].attempt + 1 if before else 1
    while process.poll() is None:
        beat = read_heartbeat(paths.attempt(attempt).heartbeat)
        if beat is not None and beat.phase in moment.phases and beat.step >= moment.step:
            time.sleep(moment.delay)
            return _kill(paths, attempt, beat.pid)
        time.sleep(0.001)
    return None


def _kill(paths: RunPaths, attempt: int, pid: int) -> Kill:
    """SIGSTOP first, so that what is recorded is what was killed."""
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("T", "Z"):
        time.sleep(0.0002)
    beat = read_heartbeat(paths.attempt(attempt).heartbeat)
    assert beat is not None
    staging = tuple(path.name for path in paths.checkpoints().glob(".staging-step-*"))
    os.kill(pid, signal.SIGKILL)
    return Kill(attempt, beat.phase, beat.step, staging)


def random_moments(choose: random.Random, number: int, last_step: int) -> list[Moment]:
    """``number`` moments in the order of the run: the first while loading, one inside a save, the others anywhere."""
    kinds = [choose.choice(("loading", "training", "evaluating", "saving")) for _ in range(number - 2)]
    kinds.append("saving")
    choose.shuffle(kinds)
    steps = sorted(choose.randrange(1, last_step) for _ in kinds)
    return [_random_moment(choose, kind, step) for kind, step in zip(["loading", *kinds], [0, *steps], strict=True)]


def _random_moment(choose: random.Random, kind: str, step: int) -> Moment:
    if kind == "loading":
        # Most of loading is the import of the stack, during which the phase is still "starting".
        return choose.choice((Moment((Phase.STARTING,), 0, choose.uniform(0, 5)),
                              Moment((Phase.LOADING,), 0, choose.uniform(0, 1))))  # fmt: skip
    if kind == "training":
        return Moment((Phase.TRAINING,), step, choose.uniform(0, 0.5))
    if kind == "saving":
        return Moment((Phase.SAVING,), step, choose.uniform(0, 0.006))  # which is over after a hundredth of a second
    return Moment((Phase[kind.upper()],), step, choose.uniform(0, 0.04))
