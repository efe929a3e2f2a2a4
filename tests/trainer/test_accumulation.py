"""Micro-batches and accumulation are one thing to the optimiser: the label tokens of the whole window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from tiny_runs import Attempt, Tiny, distance

from trainer.head_loss import IGNORED
from trainer.model import trainable_parameters
from trainer.sft import SupervisedSFTTrainer

SAME = 3e-5
"""Measured: 2.3e-6, from the order of fp32 sums; a mean of means differs by 1.8, six hundred thousand times as much."""
SHAPES = {"1x8": (1, 8), "2x4": (2, 4), "8x1": (8, 1)}


class MeanOfMeans(SupervisedSFTTrainer):
    """The mistake: every micro-batch counts the same, whatever it has to learn."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        own = int((inputs["labels"][:, 1:] != IGNORED).sum())
        window = own * self.args.gradient_accumulation_steps
        return super().compute_loss(model, inputs, num_items_in_batch=window)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """19 rows, one per sequence: two windows of 8 and a tail of 3."""
    return Tiny(tmp_path_factory.mktemp("accumulation"), rows=19)


def changes(micro: int, accumulation: int) -> dict[str, Any]:
    return {
        "train.packing": False,
        "train.max_steps": -1,
        "train.num_train_epochs": 1.0,
        "train.per_device_train_batch_size": micro,
        "train.gradient_accumulation_steps": accumulation,
    }


@pytest.fixture(scope="module")
def runs(unpacked: Tiny) -> dict[str, Attempt]:
    return {name: unpacked.run(name, changes(*shape)) for name, shape in SHAPES.items()}


# proves TRN-1
@pytest.mark.parametrize("shape", ["2x4", "8x1"])
def test_one_by_eight_is_any_other_split(runs: dict[str, Attempt], shape: str) -> None:
    assert [len(run.events("progress")) for run in runs.values()] == [3, 3, 3]
    assert runs["1x8"].progress("rows_seen") == runs[shape].progress("rows_seen") == [8, 16, 19]
    assert distance(runs["1x8"].adapter(3), runs[shape].adapter(3)) < SAME
    for key in ("loss", "grad_norm"):
        assert runs["1x8"].progress(key) == pytest.approx(runs[shape].progress(key), rel=1e-5)


# proves TRN-1: what the tolerance above would catch
def test_a_mean_of_means_is_far_outside_the_tolerance(unpacked: Tiny, runs: dict[str, Attempt]) -> None:
    wrong = unpacked.run("wrong", changes(1, 8), trainer_class=MeanOfMeans)
    assert distance(runs["8x1"].adapter(3), wrong.adapter(3)) > 100 * SAME


# --- clipping -----------------------------------------------------------------------------------


class NormsAtTheOptimiser(SupervisedSFTTrainer):
    """Measures the gradient that the optimiser really gets."""

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        optimizer = super().create_optimizer(*args, **kwargs)
        self.norms: list[float] = []

        def measure(*_: Any) -> None:
            gradients = [p.grad for p in trainable_parameters(self.model).values() if p.grad is not None]
            self.norms.append(float(torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients]))))

        optimizer.register_step_pre_hook(measure)
        return optimizer


# proves TRN-2
def test_the_norm_is_cut_and_what_is_logged_is_what_the_optimiser_gets(tiny: Tiny) -> None:
    run = tiny.run("clipped", {"train.max_grad_norm": 0.05}, trainer_class=NormsAtTheOptimiser)
    before, after = run.progress("grad_norm"), run.progress("grad_norm_clipped")
    assert min(before) > 0.1
    assert after == pytest.approx([0.05] * 3, rel=1e-4) and max(after) <= 0.05 * (1 + 1e-4)
    assert run.built.norms == pytest.approx(after, rel=1e-5)


# proves TRN-2
@pytest.mark.parametrize("limit", [1e6, 0.0])
def test_below_the_limit_or_without_one_nothing_is_cut(tiny: Tiny, limit: float) -> None:
    run = tiny.run(f"unclipped-{limit:g}", {"train.max_grad_norm": limit}, trainer_class=NormsAtTheOptimiser)
    assert min(run.progress("grad_norm")) > 0.1
    assert run.progress("grad_norm_clipped") == pytest.approx(run.progress("grad_norm"), rel=1e-5)
    assert run.built.norms == pytest.approx(run.progress("grad_norm"), rel=1e-5)


# proves TRN-2: the measurement sees a clipping that doesn't happen
def test_disabled_clipping_shows_in_the_logged_norm(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def norm_only(self: Any, parameters: Any, limit: float, norm_type: int = 2) -> torch.Tensor:
        return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])

    monkeypatch.setattr(accelerate.Accelerator, "clip_grad_norm_", norm_only)
    run = tiny.run("disabled", {"train.max_grad_norm": 0.05})
    assert min(run.progress("grad_norm_clipped")) > 0.1


def test_rows_have_very_unequal_labels(unpacked: Tiny, runs: dict[str, Attempt]) -> None:
    """Otherwise weighing micro-batches instead of tokens would go unnoticed."""
    counts = runs["8x1"].built.rows.label_counts(96)
    assert counts.max() > 5 * counts.min()
    assert Path(unpacked.train_file).is_file()
