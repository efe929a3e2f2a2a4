import signal
from pathlib import Path
from typing import Any

import pytest
from scripted_runs import alive, config, events, run, state, wait_for

from supervisor.protocol.lock import lock_holder
from supervisor.protocol.paths import RunPaths
from supervisor.state import Outcome
from supervisor.supervise import RunRefused

HANG = {"at": 4, "do": "hang", "attempt": 1}
"""The first attempt waits after step 3 until it is asked to stop."""


# proves SUP-9: SIGTERM or SIGINT -> checkpoint at the next step -> exit 3; the same command goes on from there
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping_saves_a_checkpoint(supervised: Any, number: signal.Signals) -> None:
    one = supervised(HANG, checkpoint={"save_steps": 100})
    process = one.start()
    trainer = one.trainer_at(3)
    process.send_signal(number)
    assert process.wait(60) == 3
    assert not alive(trainer)
    found = state(one.place)
    assert found.outcome is Outcome.STOPPED
    assert found.last_checkpoint in ("checkpoints/step-00000003", "checkpoints/step-00000004")
    assert f"goes on from {found.last_checkpoint}" in found.explanation
    assert one.start().wait(60) == 0
    assert events(one.place, "attempt_started")[-1].step == int(found.last_checkpoint[-8:])


# proves SUP-9: a trainer that does not listen is killed, in bounded time
def test_a_deaf_trainer_is_killed(supervised: Any) -> None:
    one = supervised(
        {"at": 3, "do": "ignore_sigterm"}, {"at": 4, "do": "hang", "deaf": True}, limits={"stop_grace_seconds": 0.5}
    )
    process = one.start()
    trainer = one.trainer_at(3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 3
    assert not alive(trainer)
    assert state(one.place).outcome is Outcome.STOPPED


# proves SUP-9: a second SIGINT does not wait for the grace period
def test_a_second_interrupt_hurries(supervised: Any) -> None:
    one = supervised(
        {"at": 3, "do": "ignore_sigterm"}, {"at": 4, "do": "hang", "deaf": True}, limits={"stop_grace_seconds": 3600.0}
    )
    process = one.start()
    trainer = one.trainer_at(3)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: events(one.place, "stop_requested"))
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 3
    assert not alive(trainer)


# proves SUP-9: nothing of the trainer survives it, however it detached itself
@pytest.mark.parametrize("new_session", [True, False])
def test_no_orphan_of_a_dead_trainer(tmp_path: Path, new_session: bool) -> None:
    fault = {"at": 3, "do": "double_fork", "pid_file": str(tmp_path / "pid"), "new_session": new_session, "attempt": 1}
    assert run(config(fault, {"at": 5, "do": "kill9", "attempt": 1}), tmp_path / "r") is Outcome.COMPLETED
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


# proves SUP-2: asked to stop by somebody else, the trainer is simply relaunched
def test_a_trainer_stopped_by_somebody_else_goes_on(tmp_path: Path) -> None:
    assert run(config({"at": 5, "do": "sigterm_self", "attempt": 1}), tmp_path / "r") is Outcome.COMPLETED
    assert [failure.kind for failure in state(tmp_path / "r").failures] == ["interrupted"]


# proves SUP-10: the second supervisor of a live run is refused and disturbs nothing
def test_a_second_run_on_a_live_run_is_refused(supervised: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    one = supervised({"at": 4, "do": "wait_for_file", "file": str(gate)})
    process = one.start()
    trainer = one.trainer_at(3)
    with pytest.raises(RunRefused, match=str(process.pid)):
        run(config(), one.place)
    gate.touch()
    assert process.wait(60) == 0
    assert {event.attempt for event in events(one.place, "progress")} == {1}
    assert not alive(trainer)


# proves SUP-9: an error of the supervisor's own does not leave a trainer behind
def test_an_error_of_our_own_stops_the_trainer_first(tmp_path: Path) -> None:
    from supervisor.supervise import RunRequest, supervise

    place = tmp_path / "r"

    def fail_late() -> None:
        if events(place, "progress") and state(place).outcome is Outcome.RUNNING:
            raise ZeroDivisionError("a bug in a view")

    with pytest.raises(ZeroDivisionError):
        supervise(RunRequest(config(HANG, checkpoint={"save_steps": 100}), place), fail_late)
    assert lock_holder(RunPaths(place).trainer_lock) is None
    assert state(place).outcome is Outcome.GAVE_UP
    assert "a bug in a view" in state(place).explanation
    assert list((place / "checkpoints").glob("step-*"))
