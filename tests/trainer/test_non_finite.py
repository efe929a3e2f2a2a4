"""proves TRN-15: a number that isn't one ends the step, and nothing of it is logged or kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import Attempt, Tiny, kept_signal_handler

import trainer.__main__
from supervisor.protocol.attempt import EXIT_CODES, SPEC_VARIABLE, ExitKind, read_exit_report
from supervisor.protocol.paths import RunPaths
from trainer.errors import NonFiniteError
from trainer.sft import SupervisedSFTTrainer


class PoisonedInStepThree(SupervisedSFTTrainer):
    """The activations of one of the micro-batches of the third step turn into NaN or infinity."""

    poison = float("nan")

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        if self.state.global_step == 2 and not hasattr(self, "hook"):
            embeddings = self.model.get_input_embeddings()
            self.hook = embeddings.register_forward_hook(lambda module, args, output: output * self.poison)
            try:
                return super().training_step(model, inputs, num_items_in_batch)
            finally:
                self.hook.remove()
        return super().training_step(model, inputs, num_items_in_batch)


class Infinite(PoisonedInStepThree):
    poison = float("inf")


@pytest.mark.parametrize("poisoned", [PoisonedInStepThree, Infinite])
@pytest.mark.parametrize("limit", [1.0, 0.0], ids=["clipped", "unclipped"])
def test_a_non_finite_gradient_stops_before_the_optimiser(
    tiny: Tiny, tmp_path: Path, poisoned: type[SupervisedSFTTrainer], limit: float
) -> None:
    seen = Attempt(RunPaths(tmp_path))
    changes = {"train.max_steps": 5, "train.max_grad_norm": limit}
    with pytest.raises(NonFiniteError, match="at optimiser step 3; the step was not taken"):
        tiny.run(str(tmp_path), changes, trainer_class=poisoned, seen=seen, save_steps=2)
    assert len(seen.events("progress")) == 2, "the poisoned step must not be reported"
    assert all(entry["loss"] < 100 for entry in seen.built.state.log_history if "loss" in entry)
    now = {name: p for name, p in seen.built.model.named_parameters() if p.requires_grad}
    for name, tensor in seen.adapter(2).items():
        assert torch.equal(now[name.replace(".weight", ".default.weight")], tensor), f"{name} has changed"
    assert [path.name for path in seen.paths.checkpoints().iterdir()] == ["step-00000002"]


# A learning rate that throws the weights out of the range in which a forward pass stays finite.
def test_the_process_ends_with_its_own_exit_code(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tiny.prepare("overflow", {"train.learning_rate": 3e37, "train.warmup_ratio": 0.0})
    monkeypatch.setenv(SPEC_VARIABLE, str(spec))
    with kept_signal_handler():
        code = trainer.__main__.main()
    assert code == EXIT_CODES[ExitKind.NAN_LOSS] == 73
    report = read_exit_report(spec.with_name("exit.json"))
    assert report is not None and report.kind is ExitKind.NAN_LOSS
    assert "the gradient norm is nan at optimiser step 2; the step was not taken" in report.message
    assert (report.step, report.phase) == (1, "training")


class OverflowingWeights(SupervisedSFTTrainer):
    """The gradient is finite and the update is not."""

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        optimizer = super().create_optimizer(*args, **kwargs)
        optimizer.register_step_post_hook(lambda *_: self.overflow(optimizer))
        return optimizer

    def overflow(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["params"][0].data.view(-1)[0] = float("inf")


class OverflowingMoments(OverflowingWeights):
    def overflow(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.state[optimizer.param_groups[0]["params"][0]]["exp_avg_sq"].view(-1)[0] = float("inf")


class OverflowingScales(OverflowingWeights):
    """The scales of moments that are held in 8 bits."""

    def overflow(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.state[optimizer.param_groups[0]["params"][0]]["absmax2"].view(-1)[0] = float("inf")


@pytest.mark.parametrize(
    ("overflowing", "optim", "named"),
    [
        (OverflowingWeights, "adamw_torch", "adapter_model.safetensors: base_model"),
        (OverflowingMoments, "adamw_torch", "optimizer.safetensors: /state/0/exp_avg_sq"),
        (OverflowingScales, "adamw_8bit", "optimizer.safetensors: /state/0/.*/absmax2"),
    ],
)
def test_non_finite_weights_and_moments_are_never_saved(
    tiny: Tiny, tmp_path: Path, overflowing: type[SupervisedSFTTrainer], optim: str, named: str
) -> None:
    seen = Attempt(RunPaths(tmp_path))
    changes = {"train.optim": optim, "model.lora.r": 64}
    with pytest.raises(NonFiniteError, match=f"{named}.* is not finite at optimiser step 1; it was not saved"):
        tiny.run(str(tmp_path), changes, trainer_class=overflowing, seen=seen, save_steps=1)
    assert not seen.paths.checkpoints().exists() or not list(seen.paths.checkpoints().iterdir())
