import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from scripted_runs import alive, config, events, final_adapter, run, state, wait_for

from supervisor.process.stacks import capture, catches, kernel_view, main_frames
from supervisor.protocol.heartbeat import Heartbeat, Phase
from supervisor.state import Outcome
from supervisor.supervise.hang import FACTOR, FLOORS, MOVED_BYTES, HangJudge, Judgement, Look

UNIT = 10.0
TICK = 0.5


@dataclass
class Machine:
    """A trainer, a supervisor that ticks, and two clocks. Seconds."""

    judge: HangJudge = field(default_factory=lambda: HangJudge(UNIT, {}))
    monotonic: float = 1000.0
    boottime: float = 5000.0
    sequence: int = 0
    beat: Heartbeat | None = None
    moved: int = 0
    said: list[Judgement] = field(default_factory=list)

    def beats(self, phase: Phase) -> None:
        self.sequence += 1
        self.beat = Heartbeat(phase, 7, 3, 12, int(self.monotonic * 1e9), self.sequence)

    def ticks(self, seconds: float, moving: int = 0, beating: Phase | None = None) -> None:
        for _ in range(round(seconds / TICK)):
            self.passes(TICK)
            self.moved += moving
            if beating is not None:
                self.beats(beating)
            self.looks()

    def passes(self, seconds: float, asleep: float = 0.0) -> None:
        self.monotonic += seconds
        self.boottime += seconds + asleep

    def looks(self) -> None:
        self.said.append(self.judge.look(Look(self.monotonic, self.boottime, self.beat, self.moved)))

    @property
    def hung(self) -> bool:
        return any(judgement.hung for judgement in self.said)


def machine(phase: Phase) -> Machine:
    made = Machine()
    made.beats(phase)
    made.looks()
    return made


# proves SUP-8: every phase has a limit, and silence beyond it is a hang
@pytest.mark.parametrize("phase", list(Phase))
def test_silence_beyond_the_limit_of_each_phase(phase: Phase) -> None:
    made = machine(phase)
    made.ticks(FLOORS[phase] * UNIT)
    assert not made.hung
    made.ticks(2 * TICK)
    assert made.hung


# proves SUP-8: the limit is learnt from the run itself: what was slow once may be slow again, in this phase only
def test_what_was_slow_before_may_be_slow_again() -> None:
    made = machine(Phase.SAVING)
    made.ticks(25)
    made.beats(Phase.TRAINING)
    made.ticks(TICK)
    assert made.judge.longest["saving"] == pytest.approx(25, abs=1)
    made.beats(Phase.SAVING)
    made.ticks(FACTOR * 24)
    assert not made.hung
    made.beats(Phase.TRAINING)
    made.ticks(UNIT + 2 * TICK)
    assert made.hung


# proves SUP-8: what an earlier attempt learnt still holds
def test_a_later_attempt_knows_what_an_earlier_one_learnt() -> None:
    made = Machine(HangJudge(UNIT, {"evaluating": 30.0}))
    made.beats(Phase.EVALUATING)
    made.looks()
    made.ticks(FACTOR * 30)
    assert not made.hung
    made.ticks(2 * TICK)
    assert made.hung


# proves SUP-8: the machine slept, or the clocks jumped: nothing of that is silence
@pytest.mark.parametrize(("gap", "asleep"), [(0.5, 3 * 3600.0), (3600.0, 0.0), (20.0, 3600.0)])
def test_a_machine_that_stood_still(gap: float, asleep: float) -> None:
    made = machine(Phase.TRAINING)
    made.ticks(UNIT - 2 * TICK)
    made.passes(gap, asleep)
    made.looks()
    assert made.said[-1].stood_still >= 3600
    made.ticks(UNIT - 2 * TICK)
    assert not made.hung
    made.ticks(4 * TICK)
    assert made.hung


# proves SUP-8: a gap in our own watching teaches nothing about the trainer
def test_nothing_is_learnt_from_a_gap() -> None:
    made = machine(Phase.TRAINING)
    made.passes(500)
    made.beats(Phase.TRAINING)
    made.looks()
    assert made.judge.longest == {}
    assert made.judge.limit(Phase.TRAINING) == UNIT


# proves SUP-8: a loading phase on a slow disk moves bytes; a training one that does has no excuse
@pytest.mark.parametrize(("phase", "hung"), [(Phase.LOADING, False), (Phase.SAVING, False), (Phase.TRAINING, True)])
def test_a_slow_disk(phase: Phase, hung: bool) -> None:
    made = machine(phase)
    made.ticks(20 * UNIT, moving=MOVED_BYTES // 40)
    assert made.hung is hung


# proves SUP-8: a program that has never beaten is not judged; one that did in an earlier attempt is
def test_a_trainer_without_heartbeat() -> None:
    made = Machine()
    made.ticks(100 * UNIT)
    assert not made.hung
    known = Machine(HangJudge(UNIT, {"training": 0.5}))
    known.ticks(FLOORS[Phase.STARTING] * UNIT + 4 * TICK)
    assert known.hung


# proves SUP-8, SUP-20: a program that only beats while it trains may do anything before and after
@pytest.mark.parametrize(("phase", "hung"), [(None, False), (Phase.FINISHED, False), (Phase.TRAINING, True)])
def test_a_foreign_program(phase: Phase | None, hung: bool) -> None:
    made = Machine(HangJudge(UNIT, {"training": 0.5}, foreign=True))
    if phase is not None:
        made.beats(phase)
    made.ticks(100 * UNIT)
    assert made.hung is hung


# --- real processes ---------------------------------------------------------------------------

LIMITS = {"hang_seconds": 1.5, "stop_grace_seconds": 0.5}


# proves SUP-8: a deadlock, a spin that holds the interpreter, a stopped process: found, the stacks noted, gone on
@pytest.mark.parametrize(
    ("what", "how", "frame"),
    [
        ("deadlock", "it slept", "_strike"),
        ("spin", "it was busy on the CPU all the time", "_strike"),
        ("stop_self", "stopped by a signal (SIGSTOP)", None),
    ],
)
def test_a_hang_is_found_and_the_run_goes_on(
    tmp_path: Path, undisturbed: bytes, what: str, how: str, frame: str | None
) -> None:
    place = tmp_path / "r"
    assert run(config({"at": 5, "do": what, "attempt": 1}, limits=LIMITS), place) is Outcome.COMPLETED
    assert final_adapter(place) == undisturbed
    (failure,) = state(place).failures
    assert (failure.kind, failure.attempt, failure.step) == ("hang", 1, 4)
    assert how in failure.message and "while training" in failure.message
    stacks = (place / "attempts" / "0001" / "stacks.txt").read_text()
    assert "--- process " in stacks
    (told,) = events(place, "failure")
    if frame is not None:
        assert "most recent call first" in stacks
        assert any(frame in line and "scripted_trainer.py" in line for line in told.data["evidence"])
    (hang,) = events(place, "hang")
    assert hang.data["phase"] == "training" and "stacks.txt" in hang.message
    if what == "stop_self":
        (stopped,) = events(place, "trainer_stopped")
        assert f"kill -CONT {stopped.data['pid']}" in stopped.message
        # Let go on when it is ended, it still saves: nothing is lost.
        assert events(place, "attempt_started")[-1].step in (4, 5)


# proves SUP-8, SUP-9: one that does not listen either is killed
@pytest.mark.slow
def test_a_deaf_hang_is_killed(tmp_path: Path) -> None:
    place = tmp_path / "r"
    faults: list[dict[str, Any]] = [
        {"at": 3, "do": "ignore_sigterm", "attempt": 1}, {"at": 4, "do": "hang", "deaf": True, "attempt": 1},
    ]  # fmt: skip
    assert run(config(*faults, limits=LIMITS), place) is Outcome.COMPLETED
    assert [failure.kind for failure in state(place).failures] == ["hang"]


# proves SUP-7, SUP-8: the same hang at the same step again and again is not tried for ever
@pytest.mark.slow
def test_the_same_hang_twice_stops(tmp_path: Path) -> None:
    place = tmp_path / "r"
    assert run(config({"at": 5, "do": "deadlock"}, limits=LIMITS), place, max_attempts=9) is Outcome.GAVE_UP
    found = state(place)
    assert {failure.kind for failure in found.failures} == {"hang"}
    assert len({failure.fingerprint for failure in found.failures}) == 1
    assert found.attempt <= 3
    assert "hang at step 4 while training" in found.explanation


# proves SUP-8: a slow save, a long compilation, a long evaluation and slow loading are not killed
def test_slow_is_not_hung(tmp_path: Path, undisturbed: bytes) -> None:
    place = tmp_path / "r"
    faults: list[dict[str, Any]] = [
        {"at": 0, "do": "sleep", "seconds": 1.5},
        {"at": 2, "do": "sleep", "phase": "compiling", "seconds": 2.5},
        {"at": 5, "do": "sleep", "phase": "evaluating", "seconds": 1.4},
        {"at": 6, "do": "save_sleep", "seconds": 1.5},
    ]
    assert run(config(*faults, limits={"hang_seconds": 1.0}), place) is Outcome.COMPLETED
    assert final_adapter(place) == undisturbed
    assert state(place).attempt == 1
    assert events(place, "hang") == []
    assert state(place).beat_gaps["compiling"] >= 2.5


# proves SUP-8: the supervisor itself was stopped, alone or with the trainer: its trainer is not blamed for it
@pytest.mark.parametrize("both", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_supervisor_that_was_stopped(supervised: Any, tmp_path: Path, both: bool) -> None:
    gate = tmp_path / "gate"
    one = supervised({"at": 5, "do": "wait_for_file", "file": str(gate)}, limits={"hang_seconds": 3.0})
    process = one.start()
    trainer = one.trainer_at(4)
    stopped = [process.pid, trainer] if both else [process.pid]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(4.5)
    for pid in reversed(stopped):
        os.kill(pid, signal.SIGCONT)
    (told,) = wait_for(lambda: events(one.place, "stood_still"))
    assert told.data["seconds"] >= 4
    gate.touch()
    assert process.wait(60) == 0, one.log
    assert state(one.place).attempt == 1
    assert not alive(trainer)


# --- stacks -----------------------------------------------------------------------------------


def test_the_main_threads_frames_are_the_last_in_a_dump() -> None:
    dump = (
        'Thread 0x00007f (most recent call first):\n  File "/a/worker.py", line 3 in wait\n\n'
        'Current thread 0x00007e (most recent call first):\n  File "/a/sft.py", line 165 in training_step\n'
        '  File "/a/run.py", line 9 in main\n'
    )
    assert main_frames(dump) == ("training_step (/a/sft.py:165)", "main (/a/run.py:9)")
    assert main_frames("") == ()


# proves SUP-8: a process without a handler is not signalled, for that would end it
def test_who_cannot_show_its_stacks_is_not_signalled(tmp_path: Path, sleeper: Callable[[], int]) -> None:
    pid = sleeper()
    wait_for(lambda: "sleeping" in kernel_view(pid))
    stacks = tmp_path / "stacks.txt"
    stacks.touch()
    assert not catches(pid, signal.SIGUSR1)
    assert capture([pid], stacks) == ""
    assert alive(pid)
    assert f"thread {pid} (" in stacks.read_text() and "sleeping" in stacks.read_text()
    assert "gone" in kernel_view(2**22 + 1)


def test_a_command_line_is_shown_without_its_secrets() -> None:
    word = "correct-horse-battery"
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", f"--api-token={word}"])
    try:
        wait_for(lambda: "--api-token" in kernel_view(process.pid))
        assert word not in kernel_view(process.pid)
    finally:
        process.kill()
        process.wait()
