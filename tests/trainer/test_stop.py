"""proves SUP-9 on the trainer's side: SIGTERM at any time, a checkpoint, exit code 3, and nothing lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tiny_runs import Attempt, Tiny, kept_signal_handler

import trainer.__main__
import trainer.run
from supervisor.protocol.attempt import EXIT_CODES, SPEC_VARIABLE, ExitKind, read_exit_report
from supervisor.protocol.events import read_events
from supervisor.protocol.heartbeat import Phase, read_heartbeat
from supervisor.protocol.manifest import read_manifest, verify_checkpoint, write_manifest
from supervisor.protocol.paths import RunPaths
from trainer.sft import SupervisedSFTTrainer

CHANGES = {"train.max_steps": 5, "eval.eval_steps": 2, "eval.eval_on_start": True, "model.lora.lora_dropout": 0.1}


@pytest.fixture(scope="module")
def undisturbed(tiny: Tiny) -> Attempt:
    return tiny.run("undisturbed", CHANGES)


def terminate_myself() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class StoppedInAStep(SupervisedSFTTrainer):
    """SIGTERM in the first of two micro-batches of the third step."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 2:
            terminate_myself()
        return super().training_step(*args, **kwargs)


class StoppedInAnEvaluation(SupervisedSFTTrainer):
    """SIGTERM in the middle of the evaluation after the second step."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        if self.reporter.phase is Phase.EVALUATING and self.state.global_step == 2:
            terminate_myself()
        return super().compute_loss(*args, **kwargs)


def assert_ends_alike(undisturbed: Attempt, resumed: Attempt) -> None:
    assert resumed.report is not None and resumed.report.kind is ExitKind.COMPLETED
    left, right = undisturbed.adapter(5), resumed.adapter(5)
    assert all(torch.equal(left[name], right[name]) for name in left)
    expected = undisturbed.events("evaluation")[-1].data["eval_loss"]
    assert resumed.events("evaluation")[-1].data["eval_loss"] == expected


def test_a_step_is_finished_and_saved(tiny: Tiny, undisturbed: Attempt) -> None:
    stopped = tiny.run("stopped-in-step", CHANGES, trainer_class=StoppedInAStep)
    assert stopped.report is not None
    assert (stopped.report.kind, stopped.report.step) == (ExitKind.INTERRUPTED, 3)
    checkpoint = stopped.paths.checkpoint(3)
    assert verify_checkpoint(checkpoint) == []
    assert_ends_alike(undisturbed, tiny.run("stopped-in-step", CHANGES, resume_from=checkpoint, number=2))


def test_an_evaluation_is_left_saved_and_made_up_for(tiny: Tiny, undisturbed: Attempt) -> None:
    one_bin_each = {**CHANGES, "eval.per_device_eval_batch_size": 1}
    stopped = tiny.run("stopped-in-eval", one_bin_each, trainer_class=StoppedInAnEvaluation)
    assert stopped.report is not None
    assert (stopped.report.kind, stopped.report.step) == (ExitKind.INTERRUPTED, 2)
    checkpoint = stopped.paths.checkpoint(2)
    assert verify_checkpoint(checkpoint) == [] and read_manifest(checkpoint).eval_loss is None
    before = len(stopped.events("evaluation"))
    resumed = tiny.run("stopped-in-eval", CHANGES, resume_from=checkpoint, number=2)
    made_up, expected = resumed.events("evaluation")[before], undisturbed.events("evaluation")[1]
    assert (made_up.step, made_up.data["eval_loss"]) == (expected.step, expected.data["eval_loss"])
    assert read_manifest(checkpoint).eval_loss == expected.data["eval_loss"], "it may be the best one"
    assert verify_checkpoint(checkpoint) == []
    assert_ends_alike(undisturbed, resumed)


# proves SUP-15: an evaluation that the last step still owes is made up for, too
def test_the_last_evaluation_is_made_up_for(tiny: Tiny, undisturbed: Attempt) -> None:
    last = undisturbed.paths.checkpoint(5)
    place = tiny.root / "last-evaluation"
    checkpoint = Path(shutil.copytree(last, place / "checkpoints" / last.name))
    expected = read_manifest(last).eval_loss
    write_manifest(checkpoint, msgspec.structs.replace(read_manifest(checkpoint), eval_loss=None))
    resumed = tiny.run("last-evaluation", CHANGES, resume_from=checkpoint, number=2)
    assert resumed.report is not None and resumed.report.kind is ExitKind.COMPLETED
    assert resumed.report.done == resumed.report.planned
    assert resumed.data_of("evaluation")["eval_loss"] == read_manifest(checkpoint).eval_loss == expected
    assert not resumed.events("progress")


class StoppedInTheLastStep(SupervisedSFTTrainer):
    """SIGTERM in the fifth step of five."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 4:
            terminate_myself()
        return super().training_step(*args, **kwargs)


# proves SUP-15: without its last evaluation nobody knows which checkpoint is the best, so the run is not complete
def test_a_stop_in_the_last_step_leaves_an_evaluation_to_make_up_for(tiny: Tiny, undisturbed: Attempt) -> None:
    stopped = tiny.run("stopped-in-last", CHANGES, trainer_class=StoppedInTheLastStep)
    assert stopped.report is not None
    assert (stopped.report.kind, stopped.report.step) == (ExitKind.INTERRUPTED, 5)
    assert "before its evaluation" in stopped.report.message
    resumed = tiny.run("stopped-in-last", CHANGES, resume_from=stopped.paths.checkpoint(5), number=2)
    assert_ends_alike(undisturbed, resumed)


@pytest.mark.parametrize("where", ["locate", "load_base"])
def test_loading_ends_at_once(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def never(*args: Any, **options: Any) -> Any:
        terminate_myself()
        time.sleep(5)
        pytest.fail("loading went on after SIGTERM")

    monkeypatch.setattr(trainer.run, where, never)
    spec = tiny.prepare(f"stopped-in-{where}", CHANGES)
    monkeypatch.setenv(SPEC_VARIABLE, str(spec))
    with kept_signal_handler():
        assert trainer.__main__.main() == EXIT_CODES[ExitKind.INTERRUPTED] == 3
    report = read_exit_report(spec.with_name("exit.json"))
    assert report is not None and (report.kind, report.phase) == (ExitKind.INTERRUPTED, "loading")


def test_the_process_exits_with_three(tiny: Tiny) -> None:
    """The real command and a real signal from outside, somewhere in a long run."""
    spec = tiny.prepare("process", {"train.max_steps": 10_000}, force_overfit=True)
    paths = RunPaths(tiny.root / "process")
    with open(tiny.root / "stderr.log", "wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "trainer"], env={**os.environ, SPEC_VARIABLE: str(spec)},
            stdout=subprocess.DEVNULL, stderr=stderr,
        )  # fmt: skip
    try:
        while process.poll() is None and not any(event.kind == "progress" for event in read_events(paths.events)):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 3, Path(tiny.root / "stderr.log").read_text()
    finally:
        process.kill()
        process.wait()
    report = read_exit_report(spec.with_name("exit.json"))
    assert report is not None and report.kind is ExitKind.INTERRUPTED and report.step >= 1
    assert verify_checkpoint(paths.checkpoint(report.step)) == []
    heartbeat = read_heartbeat(paths.attempt(1).heartbeat)
    assert heartbeat is not None and (heartbeat.phase, heartbeat.step) == (Phase.FINISHED, report.step)
