import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_runs import QUICK, events, faults, log_of, run, same_adapter, start, state

from supervisor.process.identity import read_stat
from supervisor.protocol.heartbeat import Phase, read_heartbeat
from supervisor.protocol.paths import RunPaths


def wait_for(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """The first true value of ``condition``; fails when it never is."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError("it did not happen in time")


def alive(pid: int) -> bool:
    """Does it exist and is it more than a zombie, whose parent (no child of ours) has not looked yet?"""
    stat = read_stat(pid)
    return stat is not None and stat.state != "Z"


def training_at(place: Path, step: int, attempt: int = 1) -> int:
    """Wait until the trainer of an attempt has done ``step``; its pid."""

    def there() -> int:
        beat = read_heartbeat(RunPaths(place).attempt(attempt).heartbeat)
        return beat.pid if beat is not None and beat.phase is Phase.TRAINING and beat.step >= step else 0

    pid = wait_for(there)
    assert isinstance(pid, int)
    return pid


# proves SUP-10: kill -9 the supervisor while training: the next one takes the very trainer over, and the adapter is
# bit for bit that of the undisturbed run
def test_the_supervisor_dies_while_training(tmp_path: Path, undisturbed: Path) -> None:
    place = tmp_path / "run"
    first = start(place, QUICK)
    trainer = training_at(place, 3)
    os.kill(trainer, signal.SIGSTOP)  # a tiny run would be over before the next supervisor is there
    first.kill()
    first.wait()
    second = start(place, QUICK)
    wait_for(lambda: events(place, "adopted"))
    assert alive(trainer)
    os.kill(trainer, signal.SIGCONT)
    assert second.wait() == 0, log_of(place).read_text()
    assert not alive(trainer)
    (adopted,) = events(place, "adopted")
    assert adopted.data["pid"] == trainer
    assert same_adapter(place, undisturbed)
    assert len(events(place, "attempt_started")) == len(events(place, "attempt_ended")) == 1
    assert state(place).failures == []
    steps = [event.step for event in events(place, "progress")]
    assert steps == sorted(set(steps))
    assert len(events(place, "checkpoint_verified")) == len(events(place, "checkpoint"))


# proves SUP-10: both are killed at once: it goes on from what was saved last, to the same adapter
@pytest.mark.slow
def test_both_die(tmp_path: Path, undisturbed: Path) -> None:
    place = tmp_path / "run"
    first = start(place, QUICK)
    trainer = training_at(place, 5)
    os.kill(trainer, signal.SIGSTOP)
    first.kill()
    os.kill(trainer, signal.SIGKILL)
    first.wait()
    assert run(place, QUICK) == 0, log_of(place).read_text()
    assert same_adapter(place, undisturbed)
    assert [failure.kind for failure in state(place).failures] == ["killed"]
    assert (events(place, "attempt_started")[-1].step or 0) >= 4


# proves SUP-8: a real trainer that deadlocks or spins with the interpreter's lock: its stacks, and the same adapter
@pytest.mark.slow
@pytest.mark.parametrize(("mishap", "how"), [("deadlock", "it slept"), ("spin_with_the_gil", "busy on the CPU")])
def test_the_trainer_hangs(tmp_path: Path, undisturbed: Path, mishap: str, how: str) -> None:
    place = tmp_path / "run"
    changes = faults({"do": mishap, "at": 7, "once": str(tmp_path / "struck")})
    assert run(place, {**QUICK, **changes, "limits.hang_seconds": 15.0}) == 0, log_of(place).read_text()
    assert same_adapter(place, undisturbed)
    (failure,) = state(place).failures
    assert failure.kind == "hang" and failure.step == 6 and how in failure.message
    (told,) = events(place, "failure")
    assert any(mishap in line and "mishaps.py" in line for line in told.data["evidence"])
    stacks = RunPaths(place).attempt(1).stacks.read_text()
    assert "training_step" in stacks and "--- process" in stacks
