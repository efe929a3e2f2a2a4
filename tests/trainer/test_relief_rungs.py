"""What the rungs of relief change in the trainer: nothing that is learnt, or no more than their price says."""

from __future__ import annotations

from typing import Any

import bitsandbytes.optim
import pytest
import torch
from tiny_runs import Attempt, NotTrained, Tiny

LONG: dict[str, Any] = {
    "train.max_steps": 4,
    "model.lora.r": 64,
    "model.lora.lora_dropout": 0.1,
    "model.quantization": "nf4",
}
"""r 64: matrices of 4096 values and more, which 8-bit optimisers really round."""


@pytest.fixture(scope="module")
def plain(tiny: Tiny) -> Attempt:
    return tiny.run("rungs-plain", LONG, save_steps=2)


# proves SUP-3: recomputed activations give the very same bits on a CPU, with dropout, NF4 and from the middle of a run
def test_checkpointed_activations_are_bit_identical(tiny: Tiny, plain: Attempt) -> None:
    changes = {**LONG, "train.gradient_checkpointing": True}
    run = tiny.run("rungs-recomputed", changes, resume_from=plain.paths.checkpoint(2), number=2)
    assert run.built.args.gradient_checkpointing
    ours, theirs = run.adapter(4), plain.adapter(4)
    assert any(bool(tensor.any()) for name, tensor in ours.items() if "lora_B" in name)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert run.progress("loss") == plain.progress("loss")[2:]
    assert run.progress("grad_norm") == plain.progress("grad_norm")[2:]


def moments(trainer: Any) -> dict[str, list[torch.Tensor]]:
    """Both moments of every parameter as fp32."""
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    names = {parameter: name for name, parameter in trainer.model.named_parameters()}
    found = {}
    for parameter, state in optimizer.state.items():
        values = [state.get(key) for key in ("exp_avg", "exp_avg_sq", "state1", "state2")]
        found[names[parameter]] = [value for value in values if value is not None]
        if found[names[parameter]][0].dtype == torch.uint8:
            found[names[parameter]] = [
                bitsandbytes.functional.dequantize_blockwise(
                    state[f"state{n}"], absmax=state[f"absmax{n}"], code=state[f"qmap{n}"], blocksize=256
                )
                for n in (1, 2)
            ]
    return found


class Loaded(NotTrained):
    """Stops where the checkpoint is loaded."""

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> None:
        super().train()
        self._load_optimizer_and_scheduler(resume_from_checkpoint)


def load(tiny: Tiny, name: str, changes: dict[str, Any], source: Attempt, step: int) -> Attempt:
    checkpoint = source.paths.checkpoint(step)
    options: dict[str, Any] = {"resume_from": checkpoint, "number": 2, "accepted": ("optim",)}
    return tiny.run(name, {**LONG, **changes}, trainer_class=Loaded, **options)


# proves SUP-3, SUP-4: the paged 8-bit optimiser goes on with the moments that were learnt, rounded and no more
def test_moments_are_carried_over_to_the_paged_optimiser(tiny: Tiny, plain: Attempt) -> None:
    before = load(tiny, "rungs-torch", {}, plain, 2)
    after = load(tiny, "rungs-paged", {"train.optim": "paged_adamw_8bit"}, plain, 2)
    assert not before.events("warning")
    assert "carried over to paged_adamw_8bit" in after.events("warning")[-1].message
    state = list(after.built.optimizer.state.values())
    assert {entry["step"] for entry in state} == {2}
    assert torch.uint8 in {entry["state1"].dtype for entry in state}
    exact, rounded = moments(before.built), moments(after.built)
    assert set(exact) == set(rounded)
    for name, pair in exact.items():
        for one, other in zip(pair, rounded[name], strict=True):
            assert float((one - other).abs().max()) <= 0.05 * float(one.abs().max())
    assert any(bool(pair[0].any()) for pair in exact.values())


# proves SUP-3: a run relieved in this way ends, and its checkpoints can be resumed from
@pytest.mark.slow
def test_a_run_goes_on_with_the_paged_optimiser(tiny: Tiny, plain: Attempt) -> None:
    paged = {**LONG, "train.optim": "paged_adamw_8bit", "train.max_steps": 4}
    options: dict[str, Any] = {"resume_from": plain.paths.checkpoint(2), "number": 2, "accepted": ("optim",)}
    run = tiny.run("rungs-went-on", paged, save_steps=1, **options)
    assert run.report is not None and run.report.done["steps"] == 4
    for ours, theirs in zip(run.progress("loss"), plain.progress("loss")[2:], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-2)
    again = tiny.run("rungs-went-on-again", paged, resume_from=run.paths.checkpoint(3), number=3)
    assert all(torch.equal(tensor, run.adapter(4)[name]) for name, tensor in again.adapter(4).items())
    assert not again.events("warning")
    back = load(tiny, "rungs-back", {}, run, 3)
    assert {int(entry["step"]) for entry in back.built.optimizer.state.values()} == {3}
    # As large as moments are; 8-bit codes taken for numbers would reach 255.
    largest = [float(entry["exp_avg"].abs().max()) for entry in back.built.optimizer.state.values()]
    assert 0 < max(largest) < 1
