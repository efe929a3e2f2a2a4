"""Hours: estimated before launch, counted over all calls, enforced with a checkpoint. proves SUP-16."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path
from typing import Any

import pytest
from scripted_kind import SCRIPTED
from scripted_runs import config, document, events, run, start_supervisor, state, wait_for

from supervisor.cli import main
from supervisor.pace import known_pace, likeness, remember_pace
from supervisor.protocol.paths import RunPaths
from supervisor.state import Outcome, RunState
from supervisor.supervise import RunRefused
from supervisor.supervise.hours import (
    HOUR,
    WARM_STEPS,
    Forecast,
    Pace,
    authorise_at_least,
    forecast_before_launch,
    hours,
    refusal,
)
from supervisor.yaml_source import render_yaml


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MENS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def slow(hours: float, **train: Any) -> dict[str, Any]:
    steps = {"max_steps": 400, "step_seconds": 0.05, **train}
    return document(train=steps, limits={"max_hours": hours})


def loaded(wanted: dict[str, Any]) -> Any:
    return config(train=wanted["train"], limits=wanted["limits"])


def test_forecasts() -> None:
    assert Forecast(10, 9, None).over
    assert Forecast(5, 10, 6).over
    assert not Forecast(5, 10, 5).over
    assert not Forecast(5, 10, None).over
    assert [hours(7200), hours(300), hours(1.234)] == ["2.0 h", "5 min", "1.2 s"]


# the hours that it names are enough, whatever the figures are
def test_what_is_to_be_authorised_is_enough() -> None:
    for used, allowed, needed in itertools.product((0, 1, 3600, 1e6), (0.5, 3600, 172800), (None, 0, 2, 5e5)):
        found = Forecast(used, allowed, needed)
        option, number = authorise_at_least(found).split()
        assert option == "--authorize-hours"
        assert float(number) * HOUR > max(allowed, used + (needed or 0))


def test_pace_leaves_the_first_step_out() -> None:
    pace = Pace()
    assert pace.take(1, 7, 0.0) is None  # resumed here
    assert pace.take(1, 8, 100.0) is None  # warms up
    seen = [pace.take(1, 8 + step, 100.0 + 2.0 * step) for step in range(1, WARM_STEPS + 2)]
    assert seen == [None] * (WARM_STEPS - 1) + [2.0, 2.0]
    assert pace.take(1, 8 + WARM_STEPS + 1, 500.0) is None  # no step was done
    assert pace.take(2, 8, 501.0) is None  # another attempt


def test_an_estimate_from_the_runs_own_pace() -> None:
    known = RunState(id="x", kind="scripted", max_attempts=1, attempt=1)
    known.seconds_used, known.seconds_per_step, known.planned_steps = 3600.0, 36.0, 200
    known.last_checkpoint = "checkpoints/step-00000100"
    found = forecast_before_launch(known, config(limits={"max_hours": 1.5}))
    assert (found.used, found.allowed, found.needed) == (3600.0, 5400.0, 3600.0)
    assert found.over
    assert "100 steps at the 36.0 s that each took so far" in refusal(found)
    known.authorized_hours = 2.0
    assert not forecast_before_launch(known, config(limits={"max_hours": 1.5})).over
    known.seconds_per_step = None  # nothing is invented
    assert forecast_before_launch(known, config()).needed is None


def test_runs_that_are_alike(cache: Path) -> None:
    one, other = config(), config(train={"learning_rate": 1.0})
    assert known_pace(SCRIPTED, one.sections, one.document) is None
    remember_pace(SCRIPTED, one.document, 2.0, 12)
    found = known_pace(SCRIPTED, one.sections, one.document)
    assert found is not None
    assert (found.seconds_per_step, found.planned_steps) == (2.0, 12)
    assert known_pace(SCRIPTED, other.sections, other.document) is None
    patient = config(limits={"max_hours": 3.0}, checkpoint={"save_steps": 1})
    assert likeness(SCRIPTED, one.document) == likeness(SCRIPTED, patient.document)
    (cache / "pace.json").write_text("torn")
    assert known_pace(SCRIPTED, one.sections, one.document) is None


def test_the_wall_stops_with_a_checkpoint_and_more_hours_go_on(tmp_path: Path) -> None:
    place = tmp_path / "r"
    wanted = loaded(slow(5.0 / HOUR, max_steps=160))
    assert run(wanted, place) is Outcome.GAVE_UP
    found = state(place)
    assert found.failures[-1].kind == "time_limit"
    assert found.last_checkpoint == f"checkpoints/step-{found.step:08d}"
    assert 0 < found.step < 160
    assert found.seconds_used >= 5.0
    assert f"time_limit at step {found.step} of 160" in found.explanation
    assert "--authorize-hours" in found.explanation
    (warned,) = events(place, "time_wall")
    assert "it will be stopped there with a checkpoint" in warned.message
    assert warned.step is not None
    assert warned.step < found.step
    assert "hours are used up" in events(place, "stop_requested")[0].message
    assert known_pace(SCRIPTED, wanted.sections, wanted.document) is not None
    # used up: nothing is started again without more hours
    with pytest.raises(RunRefused, match="used up"):
        run(None, place)
    assert state(place) == found
    # more hours, but not enough for what is left at the known pace
    with pytest.raises(RunRefused, match=r"needs about .* more .*at the .* that each took so far"):
        run(None, place, authorize_hours=(found.seconds_used + 0.1) / HOUR)
    assert state(place) == found
    assert run(None, place, authorize_hours=1.0) is Outcome.COMPLETED
    after = state(place)
    assert events(place, "attempt_started")[-1].step == found.step
    assert after.seconds_used > found.seconds_used
    assert after.authorized_hours == 1.0


def test_a_fresh_run_like_one_that_was_too_long_is_refused(tmp_path: Path) -> None:
    wanted = loaded(slow(1.0, max_steps=30))
    remember_pace(SCRIPTED, wanted.document, 200.0, 30)
    with pytest.raises(RunRefused, match=r"30 steps at 3 min each, as an earlier run like this one took"):
        run(wanted, tmp_path / "r")
    assert not (tmp_path / "r").exists()
    assert run(wanted, tmp_path / "r", authorize_hours=2.0) is Outcome.COMPLETED


def test_the_wall_holds_in_a_pause(tmp_path: Path) -> None:
    fault = {"at": 1, "do": "exit", "code": 1}
    limits = {"max_hours": 3.0 / HOUR, "backoff_seconds": 600.0, "backoff_max_seconds": 600.0}
    assert run(config(fault, limits=limits), tmp_path / "r") is Outcome.GAVE_UP
    found = state(tmp_path / "r")
    assert [failure.kind for failure in found.failures][-1] == "time_limit"
    assert found.attempt == 1


# the time used survives the supervisor, and what the trainer used without one counts
def test_time_counts_over_a_supervisor_killed(tmp_path: Path) -> None:
    place, file = tmp_path / "r", tmp_path / "job.yaml"
    file.write_text(render_yaml(slow(0.5)))
    first = start_supervisor(file, place)
    wait_for(lambda: RunPaths(place).state.exists() and state(place).seconds_used > 1.0)
    first.send_signal(signal.SIGKILL)
    first.wait()
    kept = state(place)
    second = start_supervisor(file, place)
    wait_for(lambda: state(place).supervisor_pid == second.pid and state(place).seconds_used > kept.seconds_used + 0.1)
    second.terminate()
    assert second.wait(60) == 3
    found = state(place)
    assert found.seconds_used >= kept.seconds_used
    assert found.outcome is Outcome.STOPPED


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(render_yaml(slow(1.0 / HOUR)))
    place = str(tmp_path / "r")
    assert main(["run", str(file), "--run-dir", place, "--no-live"]) == 1
    assert "time_limit" in capsys.readouterr().err
    assert main(["run", "--run-dir", place, "--no-live"]) == 2
    assert "used up" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["run", "--run-dir", place, "--authorize-hours", "0"])
    assert caught.value.code == 2
