"""Jobs that keep what they have done themselves, so that there are no checkpoints."""

from pathlib import Path
from typing import Any

import pytest
from scripted_runs import QUICK, alive, events, run, start_supervisor, state, wait_for
from tally_kind import TALLY

from supervisor.config import ConfigError, LoadedConfig, load_document
from supervisor.protocol.attempt import read_spec
from supervisor.protocol.paths import RunPaths
from supervisor.state import Outcome


def config(**sections: Any) -> LoadedConfig:
    return load_document({"kind": "tally", "limits": QUICK, **sections}, TALLY)


def tally(run_dir: Path) -> list[str]:
    return (run_dir / "tally.txt").read_text().split()


# proves SUP-1, SUP-15: relaunched after deaths it goes on where it was, and needs no checkpoint to be completed
def test_deaths_cost_nothing_that_was_kept(tmp_path: Path) -> None:
    assert run(config(dies_after=[0, 3, 7]), tmp_path / "r") is Outcome.COMPLETED
    assert tally(tmp_path / "r") == ["2"] * 3 + ["3"] * 4 + ["4"] * 3
    found = state(tmp_path / "r")
    assert (found.attempt, found.step, found.planned_steps, found.last_checkpoint) == (4, 10, 10, None)
    started = events(tmp_path / "r", "attempt_started")
    assert [event.step for event in started] == [0, 0, 3, 7]
    assert started[2].message.startswith("attempt 3 starts from step 3")
    assert [(failure.step, failure.verified_step) for failure in found.failures] == [(0, 0), (3, 3), (7, 7)]
    assert read_spec(RunPaths(tmp_path / "r").attempt(3).spec).resume_step == 3
    assert read_spec(RunPaths(tmp_path / "r").attempt(3).spec).snapshots is None
    assert not (tmp_path / "r" / "final").exists()
    assert found.explanation == "10 lines."
    assert run(None, tmp_path / "r") is Outcome.COMPLETED  # nothing to do any more


# proves SUP-2, SUP-7: the same death at the same step twice ends it; steps kept in between would have earned attempts
def test_a_deterministic_death_is_given_up(tmp_path: Path) -> None:
    assert run(config(always_dies_at=4), tmp_path / "r", max_attempts=9) is Outcome.GAVE_UP
    assert len(tally(tmp_path / "r")) == 4
    assert state(tmp_path / "r").attempt <= 3


# proves SUP-7: what was kept earns attempts back
def test_progress_earns_attempts(tmp_path: Path) -> None:
    assert run(config(dies_after=[2, 4, 6]), tmp_path / "r", max_attempts=3) is Outcome.COMPLETED


# proves SUP-15
def test_less_than_planned_is_not_completed(tmp_path: Path) -> None:
    assert run(config(stops_at=6), tmp_path / "r", max_attempts=2) is Outcome.GAVE_UP
    assert state(tmp_path / "r").failures[0].kind == "completed_early"


# proves SUP-9, SUP-10: stopped on request it goes on later; when a supervisor is killed, nothing is done twice
def test_stopped_and_adopted(tmp_path: Path) -> None:
    file, place = tmp_path / "job.yaml", tmp_path / "r"
    file.write_text("kind: tally\nlines: 30\nline_seconds: 0.05\n")
    first = start_supervisor(file, place)
    wait_for(lambda: (place / "tally.txt").exists() and len(tally(place)) >= 3, 120)
    first.terminate()
    assert first.wait() == 3
    assert "goes on with what is done already" in state(place).explanation
    second = start_supervisor(file, place)
    wait_for(lambda: state(place).trainer_pid and state(place).attempt == 2 and len(tally(place)) >= 8, 120)
    trainer = state(place).trainer_pid
    second.kill()
    second.wait()
    assert alive(trainer)
    assert start_supervisor(file, place).wait() == 0
    assert len(tally(place)) == 30
    assert set(tally(place)) == {"1", "2"}


# proves TRN-9: a knob that nothing reads is refused
def test_a_checkpoint_section_is_refused() -> None:
    with pytest.raises(ConfigError, match="saves no checkpoints"):
        config(checkpoint={"save_steps": 3})


# proves TRN-13 for such a job: an acceptance is for the next comparison, not for all that ever come
def test_an_acceptance_expires_with_the_attempt_that_got_past_it(tmp_path: Path) -> None:
    place = tmp_path / "r"
    assert run(config(stops_at=3), place, max_attempts=1) is Outcome.GAVE_UP
    changed = config(stops_at=3, lines=12)
    assert run(changed, place, max_attempts=2, accept_changes=("lines",)) is Outcome.GAVE_UP
    specs = [read_spec(RunPaths(place).attempt(number).spec) for number in (2, 3)]
    assert [spec.accepted_changes for spec in specs] == [("lines",), ()]
