"""SIGKILL to the daemon at any moment: no two jobs of one lease overlap, none is lost, none is run twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from daemons import DaemonProcess
from scripted_runs import events, wait_for

from supervisor.daemon.control.errors import DaemonRefusedError, NoDaemonError
from supervisor.daemon.queue import Job, Queue
from supervisor.daemon.service import Entry, EntryState
from supervisor.protocol.events import read_events
from supervisor.protocol.paths import RunPaths
from supervisor.state import Outcome, read_state


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    made = DaemonProcess(tmp_path)
    yield made
    made.clear()


def jobs(daemon: DaemonProcess) -> tuple[Job, ...]:
    queue = Queue(daemon.paths.queue)
    try:
        return tuple(sorted((*queue.unfinished(), *queue.ended(None)), key=lambda job: job.id))
    finally:
        queue.close()


def lifetime(job: Job) -> tuple[float, float]:
    """From the first to the last word of its run."""
    times = [event.time for event in read_events(RunPaths(Path(job.run_dir)).events)]
    return min(times), max(times)


def check_each_ran_once(daemon: DaemonProcess) -> None:
    """All completed, in one attempt each and without doing a step twice; and no two of them at a time."""
    finished = jobs(daemon)
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
    daemon.start()
    first = daemon.submit("first", train={"step_seconds": 0.02})
    daemon.submit("second", kind="tally")
    daemon.until(first, EntryState.RUNNING)
    daemon.kill()
    daemon.start()
    assert daemon.entry(first).state is EntryState.RUNNING
    daemon.until(first, EntryState.COMPLETED)
    daemon.kill()
    daemon.start()
    wait_for(lambda: all(entry.state.ended for entry in daemon.client.entries(9)), 90)
    check_each_ran_once(daemon)
    assert daemon.end() == 0


# proves SUP-18: two runs and a sampling job queued for one lease, over 50 kills at random moments
@pytest.mark.slow
def test_fifty_random_kills(daemon: DaemonProcess) -> None:
    seed = int(time.time())
    print(f"seed {seed}")
    dice = random.Random(seed)
    kinds: tuple[Callable[[str], Entry], ...] = (
        lambda name: daemon.submit(name, train={"step_seconds": 0.05}),
        lambda name: daemon.submit(name, kind="tally", line_seconds=0.05),
        lambda name: daemon.submit(name, kind="toy_rft"),
    )
    submitted: set[int] = set()
    number = 0
    for kill in range(50):
        if kill % 10 == 9:  # before it can answer
            daemon.launch()
            time.sleep(dice.uniform(0.0, 1.0))
        else:
            daemon.start()
            try:
                waiting = daemon.client.entries(0)
                for kind in kinds if len(waiting) < 3 else ():
                    number += 1
                    submitted.add(kind(f"job{number}").id)
            except (NoDaemonError, DaemonRefusedError) as error:
                raise AssertionError(daemon.log[-2000:]) from error
            time.sleep(dice.uniform(0.0, 2.0))
        daemon.kill()
    daemon.start()
    wait_for(lambda: not daemon.client.entries(0), 600)
    assert {job.id for job in jobs(daemon)} == submitted and len(submitted) >= 3
    check_each_ran_once(daemon)
    print(f"{len(submitted)} jobs, launches {[job.launch for job in jobs(daemon)]}")


# proves SUP-18: stopping the daemon stops what runs, with a checkpoint, and starting goes on
@pytest.mark.slow
def test_stopping_and_leaving(daemon: DaemonProcess) -> None:
    daemon.start()
    entry = daemon.submit("long", {"at": 8, "do": "hang", "attempt": 1})
    daemon.until(entry, EntryState.RUNNING)
    wait_for(lambda: len(events(entry.run_dir, "progress")) == 7, 90)
    assert daemon.end() == 0
    (job,) = jobs(daemon)
    assert (job.state, job.resumed, job.pid) == (EntryState.WAITING, True, 0)
    state = read_state(RunPaths(entry.run_dir).state)
    assert state is not None and state.outcome is Outcome.STOPPED and state.step == 8
    daemon.start()
    daemon.until(entry, EntryState.COMPLETED)
    assert [event.step for event in events(entry.run_dir, "progress")] == list(range(1, 13))
