"""proves RFT-4: kill -9 anywhere loses no sample, doubles none, draws none twice."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from toy_job import ToySampler, ToyVerifier, attempt, final_set, parts, run, toy_tasks

from rft.seeds import sample_seed
from rft.store import STORE_NAME
from supervisor.protocol.attempt import SPEC_VARIABLE, ExitKind, read_exit_report
from supervisor.protocol.paths import RunPaths

TASKS = 80
PATIENCE = 120.0


def stored(run_dir: Path) -> int:
    if not (run_dir / STORE_NAME).is_file():
        return 0
    with sqlite3.connect(f"file:{run_dir / STORE_NAME}?mode=ro", uri=True) as database:
        try:
            return int(database.execute("SELECT count(*) FROM sample").fetchone()[0])
        except sqlite3.OperationalError:  # it has no tables yet
            return 0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def killed_at_random(run_dir: Path, kills: int, seed: int) -> int:
    """Run the toy job in processes of its own, killing ``kills`` of them; how many were killed while it worked."""
    dice = random.Random(seed)
    hit = 0
    for number in range(1, kills + 1):
        spec = attempt(run_dir, number)
        environment = {**os.environ, SPEC_VARIABLE: str(RunPaths(run_dir).attempt(number).spec)}
        before = stored(run_dir)
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("toy_job.py")), str(TASKS)], env=environment
        )
        try:
            if dice.random() < 0.8:  # some die before they have done anything
                until(lambda: process.poll() is not None or stored(run_dir) > before)  # noqa: B023
            time.sleep(dice.uniform(0, 0.25))
            hit += process.poll() is None
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert spec.attempt == number
    return hit


def check(run_dir: Path, whole_dir: Path, kills: int, seed: int) -> None:
    print(f"seed {seed}")
    run(whole_dir, parts(toy_tasks(TASKS), ToySampler(room=3)))
    hit = killed_at_random(run_dir, kills, seed)
    between = stored(run_dir)
    judge = ToyVerifier()
    report = run(run_dir, parts(toy_tasks(TASKS), ToySampler(), judge), number=kills + 1)
    assert report.kind is ExitKind.COMPLETED and report.planned == report.done
    found, whole = final_set(run_dir), final_set(whole_dir)
    assert [row[:3] for row in found] == [row[:3] for row in whole]
    assert found == whole
    assert all(seed == sample_seed(7, task, index) for task, index, seed, *_ in found)
    print(f"{hit} of {kills} killed at work, {between} of {len(found)} samples stored by then")
    assert hit


def test_a_job_killed_a_few_times_ends_with_the_same_samples(tmp_path: Path) -> None:
    check(tmp_path / "killed", tmp_path / "whole", 3, seed=random.SystemRandom().randrange(1000))


@pytest.mark.slow
def test_a_job_killed_at_20_random_moments_ends_with_the_same_samples(tmp_path: Path) -> None:
    check(tmp_path / "killed", tmp_path / "whole", 20, seed=random.SystemRandom().randrange(1000))


def test_a_job_in_its_own_process_leaves_a_report(tmp_path: Path) -> None:
    attempt(tmp_path)
    files = RunPaths(tmp_path).attempt(1)
    program = [sys.executable, str(Path(__file__).with_name("toy_job.py")), "4"]
    done = subprocess.run(program, env={**os.environ, SPEC_VARIABLE: str(files.spec)}, check=False)
    report = read_exit_report(files.exit_report)
    assert done.returncode == 0 and report is not None and report.kind is ExitKind.COMPLETED
    assert report.planned == report.done and len(final_set(tmp_path)) == report.done["steps"]


def test_only_one_job_works_on_a_run(tmp_path: Path) -> None:
    attempt(tmp_path)
    spec = str(RunPaths(tmp_path).attempt(1).spec)
    program = [sys.executable, str(Path(__file__).with_name("toy_job.py")), "400"]
    first = subprocess.Popen(program, env={**os.environ, SPEC_VARIABLE: spec})
    try:
        until(lambda: stored(tmp_path) > 0)
        second = subprocess.run(
            program, env={**os.environ, SPEC_VARIABLE: spec}, check=False, capture_output=True, text=True
        )
        assert second.returncode != 0 and f"another process ({first.pid}) works on" in second.stderr
    finally:
        first.kill()
        first.wait()
