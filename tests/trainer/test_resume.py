"""A resumed run is the undisturbed run, bit for bit, or it is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tiny_runs import Attempt, Tiny, rows_of, run, write_rows

from supervisor.protocol.attempt import ExitKind
from supervisor.protocol.manifest import MANIFEST_NAME, digest_tree, read_manifest, write_manifest
from trainer.checkpoint import CONFIGURED_BY, FIXED, DataPosition, check_compatible, open_checkpoint
from trainer.errors import CheckpointCorruptError, CheckpointIncompatibleError, ConfigurationError
from trainer.schedule import lr_factor, warmup_steps

HARD: dict[str, Any] = {
    "model.quantization": "nf4",
    "model.lora.lora_dropout": 0.1,
    "train.per_device_train_batch_size": 1,
    "train.gradient_accumulation_steps": 4,
    "train.max_steps": 7,
    "train.learning_rate": 1e-2,
    "eval.eval_on_start": True,
    "eval.eval_steps": 3,
}
RESUMED_AT = 5
EQUAL_FILES = ("adapter_model.safetensors", "optimizer.safetensors", "optimizer.json", "adapter_config.json",
               "data_plan.json", "template.json", "run_config.json", "chat_template.jinja")  # fmt: skip
EQUAL_CONTENTS = ("scheduler.pt", "rng_state.pth")
"""torch.save puts its own file name inside; what these hold is compared bit by bit."""


def as_bytes(value: Any) -> Any:
    """The value with its tensors and arrays as bytes, comparable by ==."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: as_bytes(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_bytes(item) for item in value]
    return value.tobytes() if hasattr(value, "tobytes") else value


def assert_same_checkpoint(left: Path, right: Path) -> None:
    for name in EQUAL_FILES:
        assert (left / name).read_bytes() == (right / name).read_bytes(), name
    for name in EQUAL_CONTENTS:
        loaded = [torch.load(folder / name, map_location="cpu", weights_only=False) for folder in (left, right)]
        assert as_bytes(loaded[0]) == as_bytes(loaded[1]), name
    one, other = read_manifest(left), read_manifest(right)
    for field in ("step", "planned_steps", "tokens_seen", "rows_seen", "epoch", "identity", "eval_loss"):
        assert getattr(one, field) == getattr(other, field), field


def moved(checkpoint: Path, run_dir: Path) -> Path:
    """The checkpoint in a run directory of its own."""
    return Path(shutil.copytree(checkpoint, run_dir / "checkpoints" / checkpoint.name))


@pytest.fixture(scope="module")
def hard(tiny: Tiny) -> Attempt:
    return tiny.run("hard", HARD, save_steps=1)


# proves TRN-12: dropout, accumulation, packing, NF4, in the middle of the second epoch
def test_a_resumed_run_is_the_undisturbed_one(tiny: Tiny, hard: Attempt) -> None:
    plan = hard.built.plan
    at = plan.bins_before_step(RESUMED_AT)
    assert plan.epoch_of_bin(at - 1) == plan.epoch_of_bin(at) == 1, "the cut must lie inside the second epoch"
    checkpoint = moved(hard.paths.checkpoint(RESUMED_AT), tiny.root / "hard-resumed")
    resumed = tiny.run("hard-resumed", HARD, resume_from=checkpoint, number=2, save_steps=1)
    assert resumed.report is not None and hard.report is not None
    assert resumed.report == hard.report
    assert resumed.progress("loss") == hard.progress("loss")[RESUMED_AT:]
    assert [event.step for event in resumed.events("progress")] == [6, 7]
    for step in (6, 7):
        assert_same_checkpoint(hard.paths.checkpoint(step), resumed.paths.checkpoint(step))


# proves TRN-12: a step may be the first after a fresh start, too
def test_resuming_after_the_first_step_is_exact_as_well(tiny: Tiny, hard: Attempt) -> None:
    checkpoint = moved(hard.paths.checkpoint(1), tiny.root / "hard-first")
    resumed = tiny.run("hard-first", HARD, resume_from=checkpoint, number=2, save_steps=1)
    assert_same_checkpoint(hard.paths.checkpoint(7), resumed.paths.checkpoint(7))


# proves TRN-12: moments in 8 bits, over matrices large enough to get them
def test_resuming_an_8_bit_optimiser_is_exact(tiny: Tiny) -> None:
    changes = {"train.optim": "adamw_8bit", "model.lora.r": 64}
    whole = tiny.run("8-bit", changes, save_steps=2)
    resumed = tiny.run("8-bit-resumed", changes, resume_from=whole.paths.checkpoint(2), number=2)
    assert_same_checkpoint(whole.paths.checkpoint(3), resumed.paths.checkpoint(3))


# proves TRN-12: nothing left to do is not an error, and trains nothing
def test_resuming_from_the_last_step_completes_at_once(tiny: Tiny, hard: Attempt) -> None:
    checkpoint = moved(hard.paths.checkpoint(7), tiny.root / "hard-done")
    resumed = tiny.run("hard-done", HARD, resume_from=checkpoint, number=2, save_steps=1)
    assert resumed.report is not None and resumed.report.kind is ExitKind.COMPLETED
    assert resumed.report.planned == resumed.report.done == (hard.report and hard.report.done)
    assert not resumed.events("progress")


# proves TRN-12, SUP-15: fewer planned steps than done ones are never "completed"
def test_fewer_steps_than_are_done_are_refused(tiny: Tiny, hard: Attempt) -> None:
    with pytest.raises(ConfigurationError, match="3 optimiser steps are asked for and 5 are done"):
        tiny.run("fewer", {**HARD, "train.max_steps": 3}, resume_from=hard.paths.checkpoint(5))


# --- what must agree ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(plain_run: Attempt) -> Path:
    return plain_run.paths.checkpoint(2)


def other_rows(tiny: Tiny) -> str:
    return str(write_rows(tiny.root / "other.jsonl", rows_of(24, start=3)))


DIFFERENCES: list[tuple[str, str, Any]] = [
    ("data", "data.sources", other_rows),
    ("validation_data", "data.validation.path", other_rows),
    ("base", "model.base", "random:2x64"),
    ("template", "model.chat_template_kwargs", {"today": "Monday"}),
    ("rank", "model.lora.r", 8),
    ("adapter", "model.lora.lora_alpha", 16),
    ("adapter", "model.lora.lora_dropout", 0.1),
    ("adapter", "model.lora.target_modules", ["q_proj"]),
    ("precision", "model.quantization", "nf4"),
    ("precision", "model.dtype", "bfloat16"),
    ("max_length", "train.max_length", 80),
    ("global_batch", "train.per_device_train_batch_size", 1),
    ("packing", "train.packing", False),
    ("seed", "train.seed", 1),
    ("optim", "train.optim", "adamw_8bit"),
]
PLAIN = {"train.max_steps": 5, "eval.eval_steps": 2, "eval.eval_on_start": True}


def changed(tiny: Tiny, key: str, value: Any) -> dict[str, Any]:
    given = value(tiny) if callable(value) else value
    if key == "data.sources":
        given = [{"type": "jsonl", "path": given}]
    return {**PLAIN, key: given}


# proves TRN-13
@pytest.mark.parametrize(("name", "key", "value"), DIFFERENCES, ids=[f"{name}-{key}" for name, key, _ in DIFFERENCES])
def test_a_difference_is_refused_by_its_name(
    tiny: Tiny, checkpoint: Path, tmp_path: Path, name: str, key: str, value: Any
) -> None:
    remedy = f"{name} cannot change on the way" if name in FIXED else f"--accept-change {name}"
    with pytest.raises(CheckpointIncompatibleError, match=rf"\b{name}: .*{remedy}\b"):
        run(tmp_path / "run", tiny.sections(changed(tiny, key, value)), resume_from=checkpoint)


# proves TRN-13: by the name of the difference or of a key behind it, one by one
@pytest.mark.parametrize("name", sorted(set(CONFIGURED_BY) - set(FIXED)))
def test_an_accepted_difference_is_taken_and_said(checkpoint: Path, name: str) -> None:
    manifest, _ = open_checkpoint(checkpoint)
    now = {**manifest.identity, name: "something else"}
    section = CONFIGURED_BY[name][0].split(".", 1)[0]
    for accepted in (name, *CONFIGURED_BY[name], f"{CONFIGURED_BY[name][0]}.below", section):
        (said,) = check_compatible(manifest, now, (accepted,))
        assert said == f"{name}: checkpoint {manifest.identity[name]}, now something else"
    other = next(other for other in sorted(CONFIGURED_BY) if other not in (name, "data", "validation_data"))
    with pytest.raises(CheckpointIncompatibleError, match=f"{name}: "):
        check_compatible(manifest, now, (other, "dat", "trai"))
    assert check_compatible(manifest, manifest.identity, ()) == []


def test_every_identity_has_its_keys(checkpoint: Path) -> None:
    assert set(open_checkpoint(checkpoint)[0].identity) == set(CONFIGURED_BY)


# proves TRN-13: acceptance in a real attempt, which then trains on
def test_an_accepted_difference_trains_on(tiny: Tiny, checkpoint: Path) -> None:
    run = tiny.run("accepted", {**PLAIN, "model.lora.lora_alpha": 16}, resume_from=checkpoint, accepted=("adapter",))
    (event,) = run.events("accepted_change")
    rest = "dropout 0, targets all-linear"
    assert event.message == f"adapter: checkpoint alpha 8, {rest}, now alpha 16, {rest}"
    assert run.report is not None and run.report.kind is ExitKind.COMPLETED
    assert run.report.planned == run.report.done


# proves TRN-13: what cannot change on the way is refused even when it was accepted
@pytest.mark.parametrize("name", FIXED)
def test_what_cannot_change_is_refused_although_accepted(checkpoint: Path, name: str) -> None:
    manifest, _ = open_checkpoint(checkpoint)
    with pytest.raises(CheckpointIncompatibleError, match=f"{name} cannot change on the way"):
        check_compatible(manifest, {**manifest.identity, name: "5"}, (name, *CONFIGURED_BY[name]))


# proves TRN-13: an adapter on other layers is never loaded, accepted or not
def test_an_adapter_on_other_layers_is_never_loaded(tiny: Tiny, checkpoint: Path) -> None:
    changes = {**PLAIN, "model.lora.target_modules": ["q_proj"]}
    with pytest.raises(CheckpointIncompatibleError, match="an adapter cannot change its"):
        tiny.run("other-layers", changes, resume_from=checkpoint, accepted=("adapter",))


# proves TRN-9, TRN-13: settings come from the configuration, not from the checkpoint's optimiser state
def test_changed_settings_are_used_after_a_resume(tiny: Tiny, checkpoint: Path) -> None:
    changes = {"train.learning_rate": 3e-5, "train.weight_decay": 0.25, "train.adam_beta2": 0.9}
    run = tiny.run("new-settings", {**PLAIN, **changes}, resume_from=checkpoint)
    total, train = run.built.plan.total_steps, run.built.sections.train
    warmup = warmup_steps(total, train.warmup_ratio)
    expected = [3e-5 * lr_factor(step, total, warmup, train.lr_scheduler_type) for step in range(2, total)]
    assert run.progress("learning_rate") == pytest.approx(expected)
    groups = run.built.optimizer.param_groups
    assert {group["betas"] for group in groups} == {(0.9, 0.9)}
    assert groups[0]["weight_decay"] == 0.25


# --- what must be there ---------------------------------------------------------------------------


# proves TRN-12, SUP-14: fresh moments are never taken for the old ones
@pytest.mark.parametrize(
    "name",
    ["optimizer.safetensors", "optimizer.json", "scheduler.pt", "rng_state.pth", "data_plan.json", MANIFEST_NAME],
)
@pytest.mark.parametrize("listed", [True, False], ids=["listed", "unlisted"])
def test_a_checkpoint_that_lacks_a_file_is_corrupt(checkpoint: Path, tmp_path: Path, name: str, listed: bool) -> None:
    damaged = moved(checkpoint, tmp_path)
    (damaged / name).unlink()
    if not listed and name != MANIFEST_NAME:
        manifest = read_manifest(damaged)
        write_manifest(damaged, msgspec.structs.replace(manifest, files=digest_tree(damaged)))
    with pytest.raises(CheckpointCorruptError, match=name):
        open_checkpoint(damaged)


# proves TRN-12: a plan in another order than the one that was begun is noticed
def test_another_order_of_the_same_rows_is_refused(tiny: Tiny, checkpoint: Path, tmp_path: Path) -> None:
    other = moved(checkpoint, tmp_path)
    position = msgspec.json.decode((other / "data_plan.json").read_bytes(), type=DataPosition)
    (other / "data_plan.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(position, fingerprint="0" * 64)))
    with pytest.raises(CheckpointIncompatibleError, match="data plan up to optimiser step 2"):
        tiny.run("other-order", PLAIN, resume_from=other)
