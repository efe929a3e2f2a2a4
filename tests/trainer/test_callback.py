"""The one-line callback, driven by hand as a Trainer would. proves SUP-20."""

from __future__ import annotations

import ast
import logging
import os
import signal
import sys
from pathlib import Path

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from supervisor.protocol.attempt import SPEC_VARIABLE, AttemptSpec, ExitKind, ExitReport, read_exit_report, write_spec
from supervisor.protocol.events import Event, read_events
from supervisor.protocol.heartbeat import Heartbeat, Phase, read_heartbeat
from supervisor.protocol.paths import RunPaths
from trainer import callback
from trainer.callback import NonFiniteTrainingError, SupervisedCallback


class Driven:
    """A training of ``planned`` steps with the callback in it."""

    def __init__(self, folder: Path, planned: int = 10) -> None:
        self.paths = RunPaths(folder)
        self.attempt = self.paths.attempt(1)
        self.attempt.root.mkdir(parents=True)
        write_spec(self.attempt.spec, AttemptSpec(str(folder), 1, 1, "", None, 5))
        os.environ[SPEC_VARIABLE] = str(self.attempt.spec)
        self.args = TrainingArguments(output_dir=str(folder / "out"), use_cpu=True, report_to=[])
        self.state = TrainerState(max_steps=planned)
        self.control = TrainerControl()
        self.callback = SupervisedCallback()

    def begin(self) -> None:
        self.callback.on_train_begin(self.args, self.state, self.control)

    def step(self, **logs: float) -> None:
        self.callback.on_step_begin(self.args, self.state, self.control)
        self.state.global_step += 1
        self.callback.on_step_end(self.args, self.state, self.control)
        if logs:
            self.callback.on_log(self.args, self.state, self.control, logs=logs)

    def end(self) -> None:
        self.callback.on_train_end(self.args, self.state, self.control)

    def events(self, kind: str) -> list[Event]:
        return [event for event in read_events(self.paths.events) if event.kind == kind]

    def beat(self) -> Heartbeat | None:
        return read_heartbeat(self.attempt.heartbeat)

    def report(self) -> ExitReport:
        found = read_exit_report(self.attempt.exit_report)
        assert found is not None
        return found


@pytest.fixture
def driven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driven:
    monkeypatch.setenv(SPEC_VARIABLE, "")  # so that it is put back
    return Driven(tmp_path / "r")


def test_a_whole_training(driven: Driven) -> None:
    assert driven.beat() is None  # nobody who has not begun to train is judged by silence
    driven.begin()
    beat = driven.beat()
    assert beat is not None
    assert (beat.phase, beat.step, beat.planned_steps, beat.pid) == (Phase.WARMING_UP, 0, 10, os.getpid())
    for _ in range(10):
        driven.step(loss=2.0, learning_rate=1e-3, grad_norm=0.5)
    beat = driven.beat()
    assert beat is not None
    assert (beat.phase, beat.step) == (Phase.TRAINING, 10)
    progress = driven.events("progress")
    assert [event.step for event in progress] == list(range(1, 11))
    assert progress[0].data == {"loss": 2.0, "learning_rate": 1e-3, "grad_norm": 0.5, "planned_steps": 10}
    assert progress[-1].data["eta_seconds"] == 0.0
    driven.end()
    report = driven.report()
    assert (report.kind, report.planned, report.done) == (ExitKind.COMPLETED, {"steps": 10}, {"steps": 10})
    assert driven.events("plan")[0].data == {"planned_steps": 10}


# proves SUP-15: fewer steps than planned are reported as they are
def test_done_steps_are_the_done_ones(driven: Driven) -> None:
    driven.begin()
    driven.step()
    driven.end()
    assert (driven.report().planned, driven.report().done) == ({"steps": 10}, {"steps": 1})


def test_early_stopping_is_a_plan_as_well(driven: Driven) -> None:
    driven.state.stateful_callbacks = {"EarlyStoppingCallback": {}}
    driven.begin()
    driven.step()
    driven.control.should_training_stop = True
    driven.callback.on_evaluate(driven.args, driven.state, driven.control, metrics={"eval_loss": 1.5})
    driven.end()
    report = driven.report()
    assert (report.planned, report.done) == ({"steps": 1}, {"steps": 1})
    assert "early stopping ended the training at step 1 (planned: at most 10)" in report.message
    assert driven.events("evaluation")[0].data == {"eval_loss": 1.5}


# proves SUP-9 for any trainer
def test_asked_to_stop(driven: Driven) -> None:
    before = signal.getsignal(signal.SIGTERM)
    driven.begin()
    driven.step()
    os.kill(os.getpid(), signal.SIGTERM)
    assert not driven.control.should_training_stop
    driven.step()
    assert driven.control.should_training_stop
    assert driven.control.should_save
    beat = driven.beat()
    assert beat is not None
    assert beat.phase is Phase.SAVING
    driven.callback.on_save(driven.args, driven.state, driven.control)
    driven.end()
    assert (driven.report().kind, driven.report().step) == (ExitKind.INTERRUPTED, 2)
    assert driven.events("checkpoint")[0].data["path"].endswith("/out/checkpoint-2")
    assert signal.getsignal(signal.SIGTERM) is before


def test_asked_to_stop_in_an_evaluation(driven: Driven) -> None:
    driven.begin()
    driven.step()
    driven.callback.on_prediction_step(driven.args, driven.state, driven.control)
    beat = driven.beat()
    assert beat is not None
    assert beat.phase is Phase.EVALUATING
    os.kill(os.getpid(), signal.SIGTERM)
    driven.callback.on_evaluate(driven.args, driven.state, driven.control, metrics={})
    assert driven.control.should_save
    assert driven.control.should_training_stop


@pytest.mark.parametrize("logs", [{"loss": float("nan")}, {"loss": 1.0, "grad_norm": float("inf")}])
def test_what_is_not_finite_ends_it(driven: Driven, logs: dict[str, float]) -> None:
    driven.begin()
    with pytest.raises(NonFiniteTrainingError, match="at optimiser step 1"):
        driven.step(**logs)
    assert (driven.report().kind, driven.report().step) == (ExitKind.NAN_LOSS, 1)


def test_fp16_skips_infinite_gradients_by_itself(driven: Driven) -> None:
    driven.args.fp16 = True
    driven.begin()
    driven.step(loss=1.0, grad_norm=float("inf"))
    with pytest.raises(NonFiniteTrainingError):
        driven.step(loss=float("inf"))


def test_only_rank_0_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv(SPEC_VARIABLE, "")
    driven = Driven(tmp_path / "r")
    driven.begin()
    os.kill(os.getpid(), signal.SIGTERM)  # heard all the same
    driven.step(loss=1.0)
    driven.end()
    assert driven.control.should_training_stop
    assert sorted(path.name for path in driven.attempt.root.iterdir()) == ["attempt.json"]


def test_without_a_supervisor_it_says_so_and_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SPEC_VARIABLE, "")
    driven = Driven(tmp_path / "r")
    monkeypatch.delenv(SPEC_VARIABLE)
    with caplog.at_level(logging.WARNING, "trainer.callback"):
        driven.callback = SupervisedCallback()
    assert [record.message for record in caplog.records] == [
        "SupervisedCallback: not started by mens-sup run, so there is nobody to report to."
    ]
    before = signal.getsignal(signal.SIGTERM)
    driven.begin()
    assert signal.getsignal(signal.SIGTERM) is before
    driven.step(loss=float("nan"))
    driven.end()
    assert sorted(path.name for path in driven.attempt.root.iterdir()) == ["attempt.json"]


def test_it_needs_little() -> None:
    tree = ast.parse(Path(callback.__file__).read_text())
    found = {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
    found |= {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    foreign = {name for name in found if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name for name in foreign if not name.startswith("supervisor.protocol.")} == {"transformers"}
