"""SIGKILL to the daemon at any moment: no two jobs of one lease overlap, none is lost, none is run twice."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from daemons import PATIENCE, DaemonProcess
from scripted_runs import events, wait_for

sys.path.insert(0, str(Path(__file__).parents[1] / "stand_ins" / "nvml"))

from fake_driver import GIB, FakeDriver

from supervisor.daemon.queue import Job
from supervisor.daemon.service import EntryState
from supervisor.protocol.events import read_events
from supervisor.protocol.paths import RunPaths
from supervisor.state import Outcome, read_state


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    made = DaemonProcess(tmp_path)
    yield made
    made.clear()


def lifetime(job: Job) -> tuple[float, float]:
    """From the first to the last word of its run."""
    times = [event.time for event in read_events(RunPaths(Path(job.run_dir)).events)]
    return min(times), max(times)


def check_each_ran_once(daemon: DaemonProcess) -> None:
    """All completed, in one attempt each and without doing a step twice; and no two of them at a time."""
    finished = daemon.jobs()
    for job in finished:
        place = Path(job.run_dir)
        state = read_state(RunPaths(place).state)
        assert job.state is EntryState.COMPLETED, job
        assert state is not None and state.outcome is Outcome.COMPLETED and state.failures == []
        assert len(events(place, "run_started")) == len(events(place, "attempt_started")) == 1, job
        assert len(events(place, "outcome")) == 1
        steps = [event.step or 0 for event in events(place, "progress")]
        assert steps == sorted(steps)
        if job.kind == "scripted":
            assert steps == list(range(1, 13))
        if job.kind == "tally":
            assert (place / "tally.txt").read_text() == "1\n" * 10
    spans = sorted(lifetime(job) for job in finished)
    assert all(first[1] <= second[0] for first, second in pairwise(spans)), spans


# proves SUP-18: killed in the middle of a job, and again while the next one is about to start
def test_killed_daemons_lose_and_double_nothing(daemon: DaemonProcess) -> None:
    go_on = daemon.place / "go-on"
    first = daemon.submit("first", {"at": 5, "do": "wait_for_file", "file": str(go_on)})
    second = daemon.submit("second", kind="tally")
    daemon.start()
    daemon.until(first, EntryState.RUNNING)
    daemon.kill()
    daemon.start()
    while not daemon.said().startswith(b"STATUS=running first"):  # it has looked, and left the second where it is
        assert daemon.process is not None and daemon.process.poll() is None, daemon.log
    go_on.touch()
    daemon.until(first, EntryState.COMPLETED)
    daemon.kill()
    daemon.start()
    daemon.until(second, EntryState.COMPLETED)
    check_each_ran_once(daemon)
    assert daemon.end() == 0


# proves SUP-18: two runs and a sampling job queued for one lease, over 50 kills at random moments
@pytest.mark.slow
def test_fifty_random_kills(daemon: DaemonProcess) -> None:
    seed = int(time.time())
    print(f"seed {seed}")
    dice = random.Random(seed)
    states: Counter[EntryState] = Counter()
    number = 0
    for _ in range(50):
        while len(daemon.queue.unfinished()) < 3:
            number += 1
            daemon.submit(f"run{number}", train={"step_seconds": 0.05})
            daemon.submit(f"tally{number}", kind="tally", line_seconds=0.05)
            daemon.submit(f"rft{number}", kind="toy_rft")
        if dice.random() < 0.7:
            daemon.start()
        else:
            daemon.launch()  # it may not even get to its queue
        time.sleep(dice.uniform(0.0, 1.5))
        daemon.kill()
        states.update(job.state for job in daemon.queue.unfinished())
    daemon.start()
    wait_for(lambda: not daemon.queue.unfinished(), PATIENCE)
    check_each_ran_once(daemon)
    print(f"{len(daemon.jobs())} jobs; at the kills: {dict(states)}; launches {[job.launch for job in daemon.jobs()]}")


# proves SUP-18: stopping the daemon stops what runs, with a checkpoint, and starting goes on
@pytest.mark.slow
def test_stopping_and_starting(daemon: DaemonProcess) -> None:
    entry = daemon.submit("long", {"at": 8, "do": "hang", "attempt": 1})
    daemon.start()
    daemon.until(entry, EntryState.RUNNING)
    wait_for(lambda: len(events(entry.run_dir, "progress")) == 7, PATIENCE)
    assert daemon.end() == 0
    (job,) = daemon.jobs()
    assert (job.state, job.resumed, job.pid) == (EntryState.WAITING, True, 0)
    state = read_state(RunPaths(entry.run_dir).state)
    assert state is not None and state.outcome is Outcome.STOPPED and state.step == 8
    daemon.start()
    daemon.until(entry, EntryState.COMPLETED)
    assert [event.step for event in events(entry.run_dir, "progress")] == list(range(1, 13))


# proves SUP-18: a GPU is handed over only when the driver has let go of the old run's memory
@pytest.mark.slow
def test_a_card_is_handed_over_when_its_memory_is_free(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path / "driver")
    (place := tmp_path / "d").mkdir()
    daemon = DaemonProcess(place, "auto", driver.environment)
    try:
        first = daemon.submit("first", {"at": 5, "do": "wait_for_file", "file": str(place / "go-on")})
        second = daemon.submit("second")
        daemon.start()
        assert daemon.until(first, EntryState.RUNNING).resources == ("GPU-8f3a",)
        driver.set(f"process 0 compute 4194000 {3 * GIB}")  # of nobody who lives
        (place / "go-on").touch()
        daemon.until(first, EntryState.COMPLETED)
        (held,) = wait_for(
            lambda: [held for held in daemon.queue.held() if held.note.startswith("the driver")], PATIENCE
        )
        assert "still holds 3.0 GiB for process 4194000" in held.note
        assert daemon.queue.job(second.id).state is EntryState.WAITING
        driver.set()
        assert daemon.until(second, EntryState.COMPLETED).resources == ("GPU-8f3a",)
        assert lifetime(daemon.queue.job(first.id))[1] < lifetime(daemon.queue.job(second.id))[0]
    finally:
        daemon.clear()
