import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scripted_runs import alive, config, events, final_adapter, run, state, wait_for

from supervisor.process.adopted import AdoptedProcess
from supervisor.process.identity import Identity, identity_of, still_lives
from supervisor.process.spawn import ExitStatus
from supervisor.process.stop import StuckProcessError
from supervisor.protocol.events import read_events
from supervisor.protocol.lock import FileLock, LockHeldError
from supervisor.protocol.paths import RunPaths
from supervisor.state import Outcome, read_state, write_state
from supervisor.supervise import RunRefused, RunRequest
from supervisor.supervise.opening import open_run
from supervisor.supervise.taking_up import Past, not_again

ONCE = ("attempt_started", "attempt_ended", "failure", "relaunch", "relief")


def check_events(place: Path) -> None:
    """Nothing of an attempt is told twice, and nothing is missing: neither a step nor a checkpoint."""
    told = Counter(
        (event.kind, event.attempt)
        for event in read_events(RunPaths(place).events)
        if event.kind in ONCE and event.source == "supervisor"
    )
    assert [pair for pair, count in told.items() if count > 1] == []
    attempts = {event.attempt for event in events(place, "progress")}
    for attempt in attempts:
        assert told["attempt_started", attempt] == told["attempt_ended", attempt] == 1
    steps = {event.step for event in events(place, "progress")}
    assert steps == set(range(1, 13))
    per_attempt = Counter((event.attempt, event.step) for event in events(place, "progress"))
    assert max(per_attempt.values()) == 1
    verified = Counter((event.attempt, event.step) for event in events(place, "checkpoint_verified"))
    assert verified == Counter((event.attempt, event.step) for event in events(place, "checkpoint"))


# proves SUP-10: kill -9 of the supervisor while training, twice in a row: one trainer, every event once
def test_the_next_supervisor_watches_on(supervised: Any, tmp_path: Path, undisturbed: bytes) -> None:
    gate = tmp_path / "gate"
    one = supervised({"at": 5, "do": "wait_for_file", "file": str(gate)})
    one.start()
    trainer = one.trainer_at(4)
    one.kill()
    for number in (1, 2):
        second = one.start()
        wait_for(lambda number=number: len(events(one.place, "adopted")) == number)
        assert alive(trainer)
        wait_for(lambda second=second: state(one.place).supervisor_pid == second.pid)
        assert state(one.place).trainer_pid == trainer
        if number == 1:
            one.kill()
    gate.touch()
    assert second.wait(60) == 0, one.log
    assert not alive(trainer)
    assert [event.data["pid"] for event in events(one.place, "adopted")] == [trainer, trainer]
    assert final_adapter(one.place) == undisturbed
    assert state(one.place).failures == []
    assert state(one.place).attempt == 1
    check_events(one.place)


# proves SUP-10: a standby of the dead supervisor that cannot be ended (it hangs in the kernel) costs nobody a trainer
def test_a_stuck_standby_leaves_the_trainer_watched(
    supervised: Any, tmp_path: Path, undisturbed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    fault = {"at": 5, "do": "wait_for_file", "file": str(gate)}
    one = supervised(fault)
    one.start()
    one.trainer_at(4)
    one.kill()

    def stuck(spec: Path) -> list[int]:
        gate.touch()
        raise StuckProcessError(4711)

    monkeypatch.setattr("supervisor.supervise.loop.end_leftovers", stuck)
    assert run(config(fault), one.place) is Outcome.COMPLETED
    assert "4711" in next(event.message for event in events(one.place, "alarm") if "standby" in event.message)
    assert len(events(one.place, "adopted")) == 1
    assert final_adapter(one.place) == undisturbed


# proves SUP-10: killed while the trainer saves, the half-written checkpoint is the trainer's and stays
def test_killed_during_a_checkpoint(supervised: Any, tmp_path: Path, undisturbed: bytes) -> None:
    gate = tmp_path / "gate"
    one = supervised({"at": 6, "do": "save_wait", "file": str(gate)})
    one.start()
    one.trainer_at(6)
    wait_for(lambda: list((one.place / "checkpoints").glob(".staging-step-00000006*/optimizer.bin")))
    one.kill()
    second = one.start()
    wait_for(lambda: events(one.place, "adopted"))
    gate.touch()
    assert second.wait(60) == 0, one.log
    assert final_adapter(one.place) == undisturbed
    assert state(one.place).attempt == 1
    check_events(one.place)


# proves SUP-10: both killed at once: the last checkpoint is gone on from, the death is in the ledger, honestly
def test_both_killed_at_once(supervised: Any, undisturbed: bytes) -> None:
    one = supervised({"at": 8, "do": "hang", "attempt": 1})
    one.start()
    trainer = one.trainer_at(7)
    one.kill()
    os.kill(trainer, signal.SIGKILL)
    wait_for(lambda: not alive(trainer))
    assert one.start().wait(60) == 0, one.log
    assert final_adapter(one.place) == undisturbed
    (failure,) = state(one.place).failures
    assert (failure.attempt, failure.kind, failure.step) == (1, "killed", 7)
    (told,) = events(one.place, "failure")
    assert told.data["confidence"] <= 0.5
    assert [event.step for event in events(one.place, "attempt_started")] == [0, 6]
    check_events(one.place)


# proves SUP-10: what the trainer did and said while no supervisor lived counts
@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ({"do": "wait_for_file"}, 0, "All planned steps"),
        ({"do": "fail", "kind": "data_error", "message": "rows.jsonl:17: no answer"}, 1, "rows.jsonl:17"),
    ],
)
def test_a_trainer_that_ends_unseen(
    supervised: Any, tmp_path: Path, fault: dict[str, Any], code: int, words: str
) -> None:
    gate = tmp_path / "gate"
    one = supervised({"at": 5, "do": "wait_for_file", "file": str(gate)}, {"at": 6, "file": str(gate), **fault})
    one.start()
    trainer = one.trainer_at(4)
    one.kill()
    gate.touch()
    wait_for(lambda: not alive(trainer))
    assert one.start().wait(60) == code, one.log
    assert words in state(one.place).explanation
    assert state(one.place).attempt == 1
    assert len(events(one.place, "ended_unseen")) == 1
    if code == 0:
        check_events(one.place)


ALSO_KILLED_AT = (
    "attempt_started", "attempt_ended", "failure", "relaunch", "unsaved:relief", "outcome", "checkpoint_verified",
)  # fmt: skip
KILLED_AT = (
    "spawned",
    "unsaved:failure",
    "relief",
    *(pytest.param(place, marks=pytest.mark.slow) for place in ALSO_KILLED_AT),
)


# proves SUP-10: killed at any point of its own work, also during relief and between two attempts, nothing is done twice
@pytest.mark.parametrize("place", KILLED_AT)
def test_a_supervisor_killed_anywhere(supervised: Any, place: str) -> None:
    one = supervised({"at": 8, "do": "oom", "limit": 2 * 2048, "attempt": 1})
    assert one.start(dies_at=place).wait(60) == -signal.SIGKILL
    assert one.start().wait(60) == 0, one.log
    found = state(one.place)
    assert [(entry.attempt, entry.rung) for entry in found.relief] == [(2, "halve_micro_batch")]
    assert [(failure.attempt, failure.kind) for failure in found.failures] == [(1, "cuda_oom")]
    assert found.attempt == 2
    assert len(events(one.place, "outcome")) == 1
    check_events(one.place)


# proves SUP-10: a decision that costs a checkpoint is not taken twice either
@pytest.mark.parametrize(
    "place", ["checkpoint_quarantined", pytest.param("unsaved:checkpoint_quarantined", marks=pytest.mark.slow)]
)
def test_killed_while_stepping_back(supervised: Any, place: str) -> None:
    one = supervised(
        {"at": 8, "do": "kill9", "attempt": 1}, {"at": 0, "do": "fail", "kind": "checkpoint_corrupt", "attempt": 2},
        limits={"max_attempts": 3},
    )  # fmt: skip
    assert one.start(dies_at=place).wait(60) == -signal.SIGKILL
    assert one.start().wait(60) == 0, one.log
    assert [event.step for event in events(one.place, "attempt_started")] == [0, 6, 3]
    assert len(events(one.place, "checkpoint_quarantined")) == 1


# proves SUP-2, SUP-10: dying supervisors buy no attempts beyond the cap
def test_the_cap_holds_across_supervisors(supervised: Any) -> None:
    one = supervised({"at": 5, "do": "kill9"}, limits={"max_attempts": 2, "backoff_seconds": 600.0,
                                                       "backoff_max_seconds": 600.0})  # fmt: skip
    one.start()
    wait_for(lambda: events(one.place, "relaunch") and state(one.place).settled == 1)
    one.kill()  # in the pause between two attempts
    assert one.start().wait(60) == 1, one.log
    assert state(one.place).attempt == 2
    assert "All 2 attempts" in state(one.place).explanation
    check_told = Counter((event.kind, event.attempt) for event in read_events(one.paths.events) if event.kind in ONCE)
    assert max(check_told.values()) == 1


# proves SUP-9, SUP-10: an adopted trainer is stopped as gently as one's own, and nothing of it is left
def test_stopping_an_adopted_trainer(supervised: Any, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    one = supervised(
        {"at": 3, "do": "double_fork", "pid_file": str(pid_file)}, {"at": 5, "do": "hang", "attempt": 1},
        checkpoint={"save_steps": 100},
    )  # fmt: skip
    one.start()
    trainer = one.trainer_at(4)
    one.kill()
    second = one.start()
    wait_for(lambda: events(one.place, "adopted"))
    second.send_signal(signal.SIGTERM)
    assert second.wait(60) == 3, one.log
    assert not alive(trainer)
    assert not alive(int(pid_file.read_text()))
    found = state(one.place)
    assert found.outcome is Outcome.STOPPED and found.failures == []
    assert found.last_checkpoint in ("checkpoints/step-00000004", "checkpoints/step-00000005")


# proves SUP-9, SUP-10: also one that does not listen
@pytest.mark.slow
def test_a_deaf_adopted_trainer_is_killed(supervised: Any) -> None:
    one = supervised(
        {"at": 3, "do": "ignore_sigterm"}, {"at": 4, "do": "hang", "deaf": True}, limits={"stop_grace_seconds": 0.5}
    )
    one.start()
    trainer = one.trainer_at(3)
    one.kill()
    second = one.start()
    wait_for(lambda: events(one.place, "adopted"))
    second.send_signal(signal.SIGINT)
    assert second.wait(60) == 3, one.log
    assert not alive(trainer)
    assert state(one.place).outcome is Outcome.STOPPED


# proves SUP-10: a supervisor that died after asking the trainer to stop has not made that a failure
@pytest.mark.slow
def test_asked_to_stop_by_the_one_before(supervised: Any, undisturbed: bytes) -> None:
    one = supervised({"at": 5, "do": "hang", "attempt": 1}, checkpoint={"save_steps": 100})
    first = one.start(dies_at="stop_requested")
    trainer = one.trainer_at(4)
    first.send_signal(signal.SIGTERM)
    first.wait(60)
    os.kill(trainer, signal.SIGTERM)
    assert one.start().wait(60) == 0, one.log
    assert state(one.place).failures == []
    assert final_adapter(one.place) == undisturbed


# proves SUP-10: a trainer of another configuration is not adopted but asked to save, then the new one holds
@pytest.mark.slow
def test_another_configuration_is_not_adopted(supervised: Any) -> None:
    one = supervised({"at": 5, "do": "hang", "attempt": 1}, checkpoint={"save_steps": 100})
    one.start()
    trainer = one.trainer_at(4)
    one.kill()
    options = ("--set", "train.learning_rate=0.5", "--accept-change", "train.learning_rate")
    assert one.start(*options).wait(60) == 0, one.log
    assert not alive(trainer)
    assert events(one.place, "adopted") == []
    assert [event.data["pid"] for event in events(one.place, "stray_trainer")] == [trainer]
    assert state(one.place).failures == []
    assert events(one.place, "attempt_started")[-1].step in (4, 5)


# proves SUP-10: an accepted change holds although the supervisor that took it over died before the trainer ended
@pytest.mark.parametrize("place", ["change_accepted", "stray_trainer"])
def test_a_change_survives_the_supervisor_that_accepted_it(supervised: Any, place: str) -> None:
    one = supervised({"at": 5, "do": "hang", "attempt": 1}, checkpoint={"save_steps": 100})
    one.start()
    trainer = one.trainer_at(4)
    one.kill()
    options = ("--set", "train.learning_rate=0.5", "--accept-change", "train.learning_rate")
    assert one.start(*options, dies_at=place).wait(60) == -signal.SIGKILL
    if place == "stray_trainer":  # and it had asked the trainer to stop
        os.kill(trainer, signal.SIGTERM)
        wait_for(lambda: not alive(trainer))
    assert one.start(*options[:2]).wait(60) == 0, one.log
    assert events(one.place, "adopted") == []
    assert state(one.place).failures == []
    assert state(one.place).attempt == 2
    assert "learning_rate: 0.5" in one.paths.attempt(2).effective.read_text()


# proves SUP-10: an error of our own between finding a living trainer and watching it leaves nobody alone
def test_a_failed_adoption_stops_the_trainer(supervised: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = supervised({"at": 5, "do": "hang", "attempt": 1}, checkpoint={"save_steps": 100})
    one.start()
    trainer = one.trainer_at(4)
    one.kill()

    def broken(*_: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("supervisor.supervise.loop.Follower", broken)
    with pytest.raises(RuntimeError, match="ours"):
        run(None, one.place)
    assert not alive(trainer)
    assert [path.name for path in one.paths.checkpoints().glob("step-*")] != []


# proves SUP-10: who tidies up the log of a living trainer does not make it one that was never started
def test_a_deleted_log_does_not_hide_a_living_trainer(supervised: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    one = supervised({"at": 5, "do": "wait_for_file", "file": str(gate)})
    one.start()
    trainer = one.trainer_at(4)
    one.kill()
    one.paths.attempt(1).stderr.unlink()
    second = one.start()
    wait_for(lambda: events(one.place, "adopted") or second.poll() is not None)
    assert alive(trainer)
    gate.touch()
    assert second.wait(60) == 0, one.log
    assert state(one.place).attempt == 1


# proves SUP-10: what was told before the death is left out only until the next attempt, which has an end of its own
def test_an_attempt_after_an_untold_outcome_has_its_own(tmp_path: Path) -> None:
    place, paths = tmp_path / "r", RunPaths(tmp_path / "r")
    assert run(config({"at": 5, "do": "fail", "kind": "data_error"}), place) is Outcome.GAVE_UP
    found = state(place)
    found.outcome, found.explanation = Outcome.RUNNING, ""  # it died before the state was written
    write_state(paths.state, found)
    # Accepting a change counts the attempts anew, so that the second outcome has the words of the first.
    assert run(None, place, accept_changes=("train.learning_rate",)) is Outcome.GAVE_UP
    first, second = events(place, "outcome")
    assert first.message == second.message


# proves SUP-10: a relief without an attempt (a full disk foreseen) is not told twice either
def test_relief_without_an_attempt_is_told_once(tmp_path: Path) -> None:
    assert run(config(), tmp_path / "r") is Outcome.COMPLETED
    with open_run(RunRequest(None, tmp_path / "r")) as opened:
        opened.cut_short = True
        said = {"relaunch": "no room", "relief": "trim", "failure": "of before"}
        assert not_again(opened, Past(said)) == {"relaunch": "no room", "relief": "trim"}


# proves SUP-10: a pid that belongs to somebody else by now is nobody's trainer, and is left alone
def test_a_recycled_pid_is_not_adopted(tmp_path: Path) -> None:
    place = tmp_path / "r"
    assert run(config({"at": 5, "do": "fail", "kind": "data_error"}), place) is Outcome.GAVE_UP
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        paths = RunPaths(place)
        found = read_state(paths.state)
        identity = identity_of(stranger.pid)
        assert found is not None and identity is not None
        # As it stands after a supervisor died in attempt 1, but the pid went to another process since.
        found.outcome, found.settled, found.failures = Outcome.RUNNING, 0, []
        found.trainer_pid, found.trainer_start, found.boot_id = stranger.pid, identity.start_ticks - 1, identity.boot_id
        paths.attempt(1).diagnosis.unlink()
        write_state(paths.state, found)
        assert run(None, place) is Outcome.GAVE_UP
        assert events(place, "adopted") == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


# proves SUP-10: who holds the lock without being a trainer of this run is never adopted
def test_a_foreign_holder_of_the_lock_is_not_adopted(supervised: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    one = supervised({"at": 4, "do": "wait_for_file", "file": str(gate)})
    one.start()
    trainer = one.trainer_at(3)
    one.kill()
    os.kill(trainer, signal.SIGKILL)
    lock = FileLock(one.paths.trainer_lock)

    def taken() -> bool:
        """Its first thread may be gone while another still holds the lock."""
        try:
            lock.acquire()
        except LockHeldError:
            return False
        return True

    wait_for(taken)
    one.paths.trainer_lock.write_text("")  # held, but nobody says by whom
    try:
        with pytest.raises(RunRefused, match="still held by a process"):
            run(None, one.place)
    finally:
        lock.release()


# proves SUP-10: after a power failure the pids and lock of before mean nothing, and the failure is called what it was
def test_after_a_power_failure(supervised: Any, undisturbed: bytes) -> None:
    one = supervised({"at": 8, "do": "hang", "attempt": 1})
    one.start()
    trainer = one.trainer_at(7)
    one.kill()
    os.kill(trainer, signal.SIGKILL)
    wait_for(lambda: not alive(trainer))
    found = state(one.place)
    found.boot_id, found.trainer_pid = "the boot before", os.getpid()
    write_state(one.paths.state, found)
    assert one.start().wait(60) == 0, one.log
    assert final_adapter(one.place) == undisturbed
    (failure,) = state(one.place).failures
    assert failure.kind == "killed" and "The machine went down" in failure.message
    check_events(one.place)


def test_identity_tells_a_process_from_its_namesake() -> None:
    me = identity_of(os.getpid())
    assert me is not None and still_lives(me)
    assert not still_lives(Identity(me.pid, me.start_ticks + 1, me.boot_id))
    assert not still_lives(Identity(me.pid, me.start_ticks, "another boot"))
    with pytest.raises(ProcessLookupError):
        AdoptedProcess(Identity(me.pid, me.start_ticks + 1, me.boot_id))


# proves SUP-10: an adopted process is watched, signalled and its end noticed, though not how it ended
def test_an_adopted_process_that_is_not_our_child(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=-3, stderr=-3)\n"
        "print(child.pid)"
    )
    pid = int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
    identity = identity_of(pid)
    assert identity is not None
    process = AdoptedProcess(identity)
    assert not process.ended()
    process.send(signal.SIGCONT)
    process.kill_group()
    wait_for(process.ended)
    process.send(signal.SIGTERM)
    assert process.reap() == ExitStatus(None, None)
    assert str(ExitStatus(None, None)) == "exit status unknown"
