"""configs/command-example.yaml, a plain transformers script with our callback, run for real. proves SUP-20."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_runs import MENS_SUP, PROJECT, events, log_of, report, run, start, state

from supervisor.protocol.heartbeat import Phase, read_heartbeat
from supervisor.protocol.paths import RunPaths
from supervisor.yaml_source import render_yaml

EXAMPLE = PROJECT / "configs" / "command-example.yaml"
SCRIPT = PROJECT / "configs" / "command_example_trainer.py"


def wait_for(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def beat_at(run_dir: Path, attempt: int, step: int) -> int:
    """The pid of the trainer of an attempt once it has done ``step`` steps."""

    def look() -> int:
        beat = read_heartbeat(RunPaths(run_dir).attempt(attempt).heartbeat)
        return beat.pid if beat is not None and beat.step >= step and beat.phase is Phase.TRAINING else 0

    return int(wait_for(look))


# killed in the middle with the newest checkpoint torn, it goes on from the whole one before and completes
@pytest.mark.slow
def test_killed_and_resumed_from_its_own_checkpoint(tmp_path: Path) -> None:
    place = tmp_path / "r"
    process = start(place, {"values.step_seconds": 0.3, "limits.backoff_seconds": 0.0}, config=EXAMPLE)
    pid = beat_at(place, 1, 11)
    os.kill(pid, signal.SIGSTOP)
    weights = place / "output" / "checkpoint-10" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 100)
    os.kill(pid, signal.SIGKILL)
    assert process.wait() == 0, log_of(place).read_text()
    found = state(place)
    assert [failure.kind for failure in found.failures] == ["killed"]
    assert found.failures[0].step >= 11
    assert (place / "output" / "quarantine" / "checkpoint-10").is_dir()
    assert events(place, "attempt_started")[-1].step == 5
    assert next(event.step for event in events(place, "progress") if event.attempt == 2) == 6
    last = report(place, 2)
    assert (last.planned, last.done) == ({"steps": 20}, {"steps": 20})
    assert (found.step, found.planned_steps) == (20, 20)
    assert "All planned steps are done. Planned tokens and rows are not known here" in found.explanation
    assert {event.step for event in events(place, "checkpoint")} == {5, 10, 15, 20}


# proves SUP-9 for any trainer: asked to stop, it saves at the next step and ends; the run can go on
@pytest.mark.slow
def test_stopped_with_a_checkpoint(tmp_path: Path) -> None:
    place = tmp_path / "r"
    process = start(place, {"values.step_seconds": 0.3, "checkpoint.save_steps": 100}, config=EXAMPLE)
    beat_at(place, 1, 3)
    process.terminate()
    assert process.wait() == 3, log_of(place).read_text()
    last = report(place, 1)
    assert last.kind == "interrupted"
    assert (place / "output" / f"checkpoint-{last.step}" / "trainer_state.json").is_file()
    assert 3 <= last.step < 20
    assert f"goes on from output/checkpoint-{last.step}" in state(place).explanation
    assert last.planned == {"steps": 20}


@pytest.mark.slow
def test_two_ranks_stop_at_the_same_step(tmp_path: Path) -> None:
    place = tmp_path / "r"
    file = tmp_path / "two.yaml"
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    command = [
        torchrun, "--standalone", "--nproc-per-node=2", str(SCRIPT), ["--output", "{output_dir}"],
        ["--step-seconds", "0.3"], ["--resume", "{resume_from}"],
    ]  # fmt: skip
    file.write_text(render_yaml({"kind": "command", "command": command, "checkpoints": {"dir": "{output_dir}"}}))
    process = start(place, {}, config=file)
    beat_at(place, 1, 3)
    process.terminate()
    assert process.wait() == 3, log_of(place).read_text()
    stopped = report(place, 1)
    assert stopped.kind == "interrupted"
    assert (place / "output" / f"checkpoint-{stopped.step}" / "rng_state_1.pth").is_file()  # rank 1 was there as well
    beats = [event for event in events(place, "progress") if event.attempt == 1]
    assert len({event.step for event in beats}) == len(beats)  # only one rank writes
    assert run(place, {}, config=file) == 0, log_of(place).read_text()
    assert report(place, 2).done == {"steps": 20}
    assert events(place, "attempt_started")[-1].step == stopped.step


def test_the_readme_names_what_is_there() -> None:
    assert MENS_SUP.exists()
    page = (PROJECT / "docs" / "any-trainer.md").read_text()
    for name in re.findall(r"configs/[\w.-]+", page):
        assert (PROJECT / name).is_file(), name
