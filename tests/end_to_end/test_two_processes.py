"""Two processes of one training under ``mens-sup run``, killed one after the other."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from real_runs import QUICK, events, log_of, report, run, same_adapter, start, state

from supervisor.process.leftovers import processes_of
from supervisor.process.ranks import other_ranks
from supervisor.protocol.heartbeat import Phase, read_heartbeat
from supervisor.protocol.lock import lock_holder
from supervisor.protocol.paths import RunPaths

TWO: Mapping[str, Any] = {
    **QUICK,
    "launch.processes": 2,
    "train.per_device_train_batch_size": 1,
    "model.lora.lora_dropout": 0.1,
    "limits.hang_seconds": 600,
}


@pytest.fixture(scope="module")
def undisturbed_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("two") / "run"
    assert run(place, TWO) == 0, log_of(place).read_text()
    return place


def wait_for_step(run_dir: Path, attempt: int, step: int, alive: Callable[[], bool]) -> int:
    """The pid of rank 0, once this attempt has done ``step`` steps."""
    files = RunPaths(run_dir).attempt(attempt)
    while alive():
        beat = read_heartbeat(files.heartbeat)
        if beat is not None and beat.phase is Phase.TRAINING and beat.step >= step:
            return beat.pid
        time.sleep(0.005)
    raise AssertionError(log_of(run_dir).read_text())


# proves TRN-19, TRN-12, SUP-11: rank 1 killed, then rank 0, then the launcher; the adapter is bit for bit the same
@pytest.mark.slow
def test_two_processes_survive_the_loss_of_any(tmp_path: Path, undisturbed_two: Path) -> None:
    place = tmp_path / "run"
    process = start(place, TWO, "--max-attempts", "4")
    try:
        told = []
        for attempt, (victim, step) in enumerate((("rank 1", 3), ("rank 0", 6), ("launcher", 9)), start=1):
            first = wait_for_step(place, attempt, step, lambda: process.poll() is None)
            launcher = lock_holder(RunPaths(place).trainer_lock)
            assert launcher and launcher != first
            ranks = other_ranks(launcher, first, processes_of(RunPaths(place).attempt(attempt).spec))
            assert list(ranks.values()) == [1]
            killed = {"rank 1": next(iter(ranks)), "rank 0": first, "launcher": launcher}[victim]
            os.kill(killed, signal.SIGKILL)
            told.append((victim, killed))
        assert process.wait() == 0, log_of(place).read_text()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    assert [failure.kind for failure in state(place).failures] == ["killed"] * 3
    said = [event.message for event in events(place, "rank_ended")]
    assert [text.split(" was ended")[0] for text in said] == [f"{who} (process {pid})" for who, pid in told[:2]]
    started = [event.step or 0 for event in events(place, "attempt_started")]
    assert started[1] >= 2 and started[2] >= 5 and started[3] >= 8, started
    assert same_adapter(place, undisturbed_two)
    assert report(place, 4).done == report(undisturbed_two, 1).done == report(undisturbed_two, 1).planned


# proves TRN-19, SUP-9: a request to stop is agreed on, saves once, and the run goes on from there
@pytest.mark.slow
def test_two_processes_stop_together(tmp_path: Path, undisturbed_two: Path) -> None:
    place = tmp_path / "run"
    process = start(place, TWO)
    wait_for_step(place, 1, 4, lambda: process.poll() is None)
    process.terminate()
    assert process.wait() != 0
    assert state(place).outcome == "stopped", log_of(place).read_text()
    assert report(place, 1).kind == "interrupted"
    assert not processes_of(RunPaths(place).attempt(1).spec)
    assert run(place, TWO) == 0, log_of(place).read_text()
    assert same_adapter(place, undisturbed_two)


# proves TRN-19, SUP-8: a rank that was stopped keeps the other waiting; the verdict names it
@pytest.mark.slow
def test_a_rank_that_hangs_is_named(tmp_path: Path) -> None:
    place = tmp_path / "run"
    process = start(place, {**TWO, "limits.hang_seconds": 20.0, "limits.max_attempts": 2})
    first = wait_for_step(place, 1, 3, lambda: process.poll() is None)
    launcher = lock_holder(RunPaths(place).trainer_lock)
    assert launcher
    (other,) = other_ranks(launcher, first, processes_of(RunPaths(place).attempt(1).spec))
    os.kill(other, signal.SIGSTOP)
    assert process.wait() == 0, log_of(place).read_text()
    (hang,) = events(place, "hang")
    assert f"rank 1 (process {other}) is stopped by a signal" in hang.message
    assert "--- rank 1, process" in RunPaths(place).attempt(1).stacks.read_text()
    assert state(place).failures[0].kind == "hang"
    assert "the training has 2 processes" in events(place, "standby_skipped")[0].message


# proves TRN-19: each rank holds half of a 4-bit base, and bit for bit the same is learnt
@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["nf4", "none"])
def test_a_divided_base_learns_the_same(tmp_path: Path, quantization: str) -> None:
    changes = {**TWO, "model.quantization": quantization, "train.max_steps": 4, "train.gradient_checkpointing": True}
    whole, divided = tmp_path / "whole", tmp_path / "divided"
    assert run(divided, {**changes, "launch.strategy": "fsdp"}) == 0, log_of(divided).read_text()
    assert run(whole, changes) == 0, log_of(whole).read_text()
    assert same_adapter(divided, whole)
    (event,) = events(divided, "divided")
    held = event.data["bytes_held"]
    assert held["here"] < 0.6 * held["whole"]
