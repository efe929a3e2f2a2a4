"""proves TRN-8, TRN-14, TRN-13: evaluations in whole runs, and what is refused before the first step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tiny_runs import Attempt, Tiny, rows_of, write_rows

from supervisor.protocol.attempt import ExitKind
from supervisor.protocol.manifest import digest_tree, read_manifest, write_manifest
from supervisor.protocol.paths import RunPaths
from trainer.checkpoint import read_standing
from trainer.collate import BinCollator
from trainer.early_stop import Standing, Verdict
from trainer.errors import CheckpointIncompatibleError, ConfigurationError, DataProblemError
from trainer.eval_noise import RowLosses
from trainer.evaluation import Evaluated, Evaluations, too_small, training_sample
from trainer.evaluation_pass import EvaluationPass
from trainer.head_loss import IGNORED
from trainer.kept_batches import EvaluationKey, KeptBatches

# --- row by row ---------------------------------------------------------------------------------------


def alone(run: Attempt, collator: BinCollator, row: int) -> tuple[float, int]:
    """Nats and label tokens of one row, computed by itself."""
    fitted = collator.rows.fitted(row, 96)
    ids = torch.tensor(fitted.ids.tolist())[None]
    labels = torch.where(torch.tensor(fitted.labels)[None], ids, torch.tensor(IGNORED))
    run.built.model.eval()
    with torch.no_grad():
        return float(run.built.model(input_ids=ids, labels=labels, summed_loss=True)), int(fitted.labels[1:].sum())


# proves TRN-8: each row's loss is its own, whatever it was packed with
@pytest.mark.parametrize("flatten", [False, True])
def test_losses_come_row_by_row(plain_run: Attempt, tmp_path: Path, flatten: bool) -> None:
    trainer, bins = plain_run.built, plain_run.built.data_collator
    sample = training_sample(bins.rows, 100, seed=1)
    assert len(sample) == len(bins.rows), "there are fewer training rows than are wanted"
    own = trainer.eval_bins
    collator = BinCollator(own.rows, own.plan, own.pad_token_id, flatten)
    key = EvaluationKey(1, 5, "", "", "")
    kept = KeptBatches(tmp_path / "kept.jsonl", pytest.fail)
    whole = EvaluationPass(collator, trainer.evaluation_pass.sample, 4, trainer.ranks, trainer.reporter, kept)
    losses = whole.run(key, trainer._token_losses).validation
    expected = [alone(plain_run, collator, row) for row in range(len(own.rows))]
    assert losses.tokens.tolist() == [tokens for _, tokens in expected]
    assert losses.nats.tolist() == pytest.approx([nats for nats, _ in expected], rel=1e-5)


def test_the_event_and_the_manifest_say_how_sure_the_loss_is(plain_run: Attempt) -> None:
    evaluation = plain_run.events("evaluation")[-1]
    manifest = read_manifest(plain_run.paths.checkpoint(5))
    assert manifest.eval_loss == evaluation.data["eval_loss"]
    assert manifest.eval_loss_stderr == evaluation.data["eval_loss_stderr"] > 0
    checkpoint = plain_run.paths.checkpoint(5)
    standing = read_standing(checkpoint, read_manifest(checkpoint))
    assert (standing.step, standing.loss, standing.stderr) == (5, manifest.eval_loss, manifest.eval_loss_stderr)
    first, second = (event.data for event in plain_run.events("evaluation")[:2])
    assert first["verdict"] == "first" and "gain" not in first
    assert second["gain"] == pytest.approx(first["eval_loss"] - second["eval_loss"]) and second["gain_noise"] > 0


# --- early stopping -----------------------------------------------------------------------------------

STALE: dict[str, Any] = {
    "train.learning_rate": 1e-6,
    "train.max_steps": 8,
    "eval.eval_on_start": True,
    "eval.eval_steps": 1,
    "eval.early_stopping_patience": 3,
    "model.lora.lora_dropout": 0.1,
}
"""Nothing is learnt, so the third evaluation after that of step 0 ends it."""


@pytest.fixture(scope="module")
def stopped(tiny: Tiny) -> Attempt:
    return tiny.run("stopped-early", STALE, save_steps=1)


# proves TRN-8, SUP-15: it ends with a checkpoint, and says that it is not what was planned at first
def test_a_run_that_gains_nothing_stops_early(stopped: Attempt) -> None:
    report = stopped.report
    assert report is not None and report.kind is ExitKind.COMPLETED
    assert report.stopped_early == report.message
    assert report.message.startswith("stopped early at optimiser step 3 of 8: the validation loss has gained less than")
    assert report.step == report.planned["steps"] == 3 and report.planned == report.done
    manifest = read_manifest(stopped.paths.checkpoint(3))
    assert (manifest.planned_steps, manifest.tokens_seen, manifest.rows_seen) == (
        8, report.done["tokens"], report.done["rows"],
    )  # fmt: skip
    verdicts = [event.data["verdict"] for event in stopped.events("evaluation")]
    assert verdicts == [Verdict.FIRST, *[Verdict.STALE] * 3]
    assert len(stopped.events("stopping_early")) == 1


# proves TRN-8, TRN-12: how long nothing has come is part of a checkpoint
@pytest.mark.parametrize("step", [1, 2])
def test_a_resumed_run_stops_at_the_same_step(tiny: Tiny, stopped: Attempt, step: int) -> None:
    resumed = tiny.run(f"stopped-{step}", STALE, resume_from=stopped.paths.checkpoint(step), number=2, save_steps=1)
    assert resumed.report == stopped.report
    one, other = (run.paths.checkpoint(3) / "evaluations.json" for run in (stopped, resumed))
    assert one.read_bytes() == other.read_bytes()


# proves SUP-15: killed between the last checkpoint and the report
def test_a_run_that_was_over_trains_no_step_more(tiny: Tiny, stopped: Attempt) -> None:
    resumed = tiny.run("stopped-3", STALE, resume_from=stopped.paths.checkpoint(3), number=2, save_steps=1)
    assert resumed.report == stopped.report and not resumed.events("progress")


# proves SUP-11, TRN-8: saved from a snapshot that was taken before the evaluation of its step
def test_an_evaluation_that_is_made_up_for_counts_as_well(tiny: Tiny, stopped: Attempt, tmp_path: Path) -> None:
    rescued = RunPaths(tmp_path).checkpoint(3)
    shutil.copytree(stopped.paths.checkpoint(3), rescued)
    shutil.copy(stopped.paths.checkpoint(2) / "evaluations.json", rescued)
    manifest = msgspec.structs.replace(read_manifest(rescued), eval_loss=None, files=digest_tree(rescued))
    write_manifest(rescued, manifest)
    resumed = tiny.run(str(tmp_path), STALE, resume_from=rescued, number=2, save_steps=1)
    assert resumed.report == stopped.report and not resumed.events("progress")
    assert read_manifest(rescued).eval_loss == read_manifest(stopped.paths.checkpoint(3)).eval_loss


# proves TRN-8: without patience, or while it gains, it trains on
@pytest.mark.parametrize(
    "changes", [{"eval.early_stopping_patience": None}, {"train.learning_rate": 2e-2, "eval.min_delta": 0.03}]
)
def test_it_trains_on_otherwise(tiny: Tiny, changes: dict[str, Any]) -> None:
    run = tiny.run(f"not-stopped-{next(iter(changes))}", {**STALE, **changes})
    assert run.report is not None and run.report.done["steps"] == 8 and not run.report.stopped_early


# --- the size of the validation set -------------------------------------------------------------------


# proves TRN-8: refused before the first step, with the needed size
def test_a_validation_set_too_small_is_refused_with_the_needed_size(tiny: Tiny) -> None:
    changes = {"eval.eval_on_start": True, "eval.min_delta": 1e-4}
    needed = r"6 validation rows .* \d+ label tokens \(\d+ rows\) are needed"
    with pytest.raises(DataProblemError, match=needed) as error:
        tiny.run("too-small", changes)
    assert "eval.min_delta is 0.0001" in str(error.value) and "data.validation.path" in str(error.value)
    assert not Attempt(RunPaths(tiny.root / "too-small")).events("progress")


def test_after_the_first_step_it_is_only_said(tiny: Tiny) -> None:
    run = tiny.run("too-small-later", {"eval.eval_steps": 2, "eval.min_delta": 1e-4})
    assert run.data_of("alarm")["what"] == "validation_too_small"
    assert run.report is not None and run.report.kind is ExitKind.COMPLETED


# proves TRN-8: the size that is asked for is large enough
def test_the_needed_size_is_enough() -> None:
    rng = np.random.default_rng(5)

    def drawn(rows: int) -> RowLosses:
        tokens = rng.integers(20, 200, rows)
        return RowLosses(tokens * rng.normal(1.5, 0.4, rows), tokens, np.arange(rows))

    problem = too_small(drawn(60), 0.02, fraction=0.02)
    assert problem is not None and "data.validation.fraction" in problem
    needed = int(problem.split(" label tokens (")[1].split(" rows")[0])
    assert 200 < needed < 4000
    assert too_small(drawn(needed), 0.025, fraction=0.02) is None, "60 rows know their own noise to a fifth"
    assert too_small(drawn(needed // 3), 0.025, fraction=0.02) is not None
    assert too_small(RowLosses(np.ones(3), np.ones(3, np.int64), np.zeros(3, np.int64)), 9.0, None) is not None


# --- memorisation -------------------------------------------------------------------------------------


class Told:
    """Stands where the reporter stands: remembers the events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, dict[str, Any]]] = []

    def event(self, kind: str, message: str = "", **data: Any) -> None:
        self.events.append((kind, message, data))


def around(level: float, rows: int = 100) -> RowLosses:
    tokens = np.full(rows, 50)
    spread = np.linspace(-0.3, 0.3, rows)
    return RowLosses(tokens * (level + spread), tokens, np.arange(rows))


def alarms(tiny: Tiny, *levels: tuple[float, float]) -> list[str]:
    """The alarms that evaluations (validation loss, loss on training rows) give, one every 10 steps."""
    told = Told()
    section = Evaluations(tiny.sections({"eval.min_delta": 0.5}), told, Standing(), held_out=True)  # type: ignore[arg-type]
    for number, (validation, sample) in enumerate(levels):
        section.take(10 * number, Evaluated(around(validation), around(sample, 40), 0.1))
    return [message for kind, message, data in told.events if kind == "alarm" and data["what"] == "memorisation"]


# proves TRN-8
def test_a_validation_loss_below_that_of_training_rows_is_an_alarm_once(tiny: Tiny) -> None:
    (said,) = alarms(tiny, (2.0, 2.0), (1.0, 1.5), (0.8, 1.4))
    assert "the loss on the validation rows, 1.0000, is 0.5000 nats per token below" in said and "leak" in said
    (said,) = alarms(tiny, (1.5, 2.0))
    assert "before any training" in said


# proves TRN-8: within noise, or the usual way round, there is nothing to say
def test_noise_and_overfitting_are_no_leak(tiny: Tiny) -> None:
    assert alarms(tiny, (2.0, 2.0), (1.95, 2.0), (1.5, 1.0), (1.6, 0.5)) == []


# --- how much data, and which -------------------------------------------------------------------------

TOO_OFTEN = {"train.max_steps": -1, "train.num_train_epochs": 4.6}


# proves TRN-14
def test_more_than_four_passes_are_refused_unless_forced(tiny: Tiny) -> None:
    seen = Attempt(RunPaths(tiny.root / "too-often"))
    with pytest.raises(ConfigurationError, match=r"would be passed over [45]\.\d times.*--force-overfit"):
        tiny.run("too-often", TOO_OFTEN, seen=seen)
    assert not seen.events("progress") and seen.trainer is None
    forced = tiny.run("forced", TOO_OFTEN, force_overfit=True)
    assert forced.report is not None and forced.report.done["rows"] == 4 * 24 + 15
    assert any("--force-overfit was given" in event.message for event in forced.events("warning"))
    # proves TRN-14, TRN-7: data that is used up wraps with a new shuffle
    plan = forced.built.plan
    orders = [
        [int(row) for index in range(plan.total_bins) if plan.epoch_of_bin(index) == epoch for row in plan.bin(index)]
        for epoch in range(3)
    ]
    assert all(sorted(order) == list(range(24)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


# proves TRN-14: a base of random weights is like pretraining
def test_tokens_per_parameter_are_shown_for_a_base_of_random_weights(plain_run: Attempt) -> None:
    (event,) = plain_run.events("from_scratch")
    assert "tokens per parameter, where about 20 are usual" in event.message


# proves TRN-13: both fingerprints, and the first source that differs
def test_a_corpus_that_changed_is_refused_with_its_source(tmp_path: Path) -> None:
    tiny = Tiny(tmp_path / "two")
    second = write_rows(tiny.root / "second.jsonl", rows_of(6, start=60))
    sources = [{"path": str(tiny.train_file)}, {"path": str(second)}]
    changes = {"data.sources": sources, "train.max_steps": 2}
    run = tiny.run("before", changes, save_steps=1)
    before = read_manifest(run.paths.checkpoint(1)).identity["data"]
    write_rows(second, rows_of(7, start=60))
    with pytest.raises(CheckpointIncompatibleError) as error:
        tiny.run("after", changes, resume_from=run.paths.checkpoint(1), number=2)
    text = str(error.value)
    now = text.split(f"data: checkpoint {before}, now ")[1][:16]
    assert now != before and int(now, 16) and "--accept-change data" in text
    assert f"the first source that differs is {second}: 6 rows (" in text and "now 7 rows (" in text
    recorded = json.loads((run.paths.checkpoint(1) / "sources.json").read_text())
    assert [(entry["rows"], entry["held_out"]) for entry in recorded] == [(24, False), (6, False), (6, True)]
