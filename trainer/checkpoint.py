"""Checkpoints that are whole or absent, and a resume that is exact or refused.

A checkpoint folder is what transformers writes (adapter, optimizer.pt, scheduler.pt, rng_state.pth,
trainer_state.json) plus the data plan, the configuration, the chat template and, last, the manifest.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file

from supervisor.protocol.atomic import staged_directory
from supervisor.protocol.manifest import FORMAT_VERSION, Manifest, digest_tree, read_manifest, write_manifest
from trainer.data.plan import Segment
from trainer.errors import CheckpointCorruptError, CheckpointIncompatibleError, NonFiniteError

ADAPTER_FILE = "adapter_model.safetensors"
DATA_PLAN_FILE = "data_plan.json"
CONFIG_FILE = "run_config.json"
TEMPLATE_FILE = "template.json"
REQUIRED = (ADAPTER_FILE, "adapter_config.json", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json",
            DATA_PLAN_FILE)  # fmt: skip
CONFIGURED_BY: Mapping[str, tuple[str, ...]] = {
    "data": ("data.sources", "data.on_bad_row", "data.curriculum_field", "data.validation"),
    "validation_data": ("data.validation", "data.sources", "data.on_bad_row"),
    "base": ("model.base", "model.revision"),
    "template": ("model.chat_template", "model.chat_template_kwargs", "data.system_prompt_file"),
    "rank": ("model.lora.r",),
    "adapter": ("model.lora.lora_alpha", "model.lora.lora_dropout", "model.lora.target_modules"),
    "precision": ("model.quantization", "model.double_quant", "model.dtype"),
    "max_length": ("train.max_length",),
    "global_batch": ("train.per_device_train_batch_size", "train.gradient_accumulation_steps"),
    "packing": ("train.packing",),
    "seed": ("train.seed",),
    "optim": ("train.optim",),
}
"""The configuration keys behind each name of Manifest.identity."""
FIXED = ("global_batch", "rank")
"""Never acceptable: the position in the data counts in global batches, and an adapter cannot be resized."""
LOGGED_STEPS_KEPT = 100
"""Entries of transformers' log history kept in a checkpoint; the whole history is in events.jsonl."""


class DataPosition(msgspec.Struct, frozen=True):
    """``data_plan.json``: where in which plan the run is.

    ``segments`` are the plan's so far; a shortened sequence adds one. ``step`` counts the optimiser
    steps done. ``fingerprint`` is that of the plan up to this step, so that a resumed attempt can
    prove that it continues the very order that was begun.
    """

    segments: tuple[Segment, ...]
    step: int
    fingerprint: str


@dataclass(frozen=True)
class Progress:
    """What a checkpoint says about how far the run is; counted, not computed from the plan."""

    step: int
    planned_steps: int
    tokens_seen: int
    rows_seen: int
    epoch: float
    eval_loss: float | None


@dataclass(frozen=True)
class Provenance:
    """What stays the same through an attempt and goes into each of its checkpoints."""

    attempt: int
    lineage: int
    identity: Mapping[str, str]
    config: Mapping[str, Any]
    template: Mapping[str, Any]
    chat_template: str


def write_checkpoint(
    final: Path,
    model: PeftModel,
    progress: Progress,
    position: DataPosition,
    provenance: Provenance,
    write_trainer_state: Callable[[Path], None],
    optimiser_state: Mapping[str, Any],
) -> None:
    """Stage everything beside ``final``, digest it, write the manifest, rename.

    ``write_trainer_state(staged)`` adds optimiser, scheduler, RNG and trainer state. Raises
    NonFiniteError rather than save weights or moments that are not finite, OSError when the disk is full.
    """
    _require_finite("adapter", get_peft_model_state_dict(model, save_embedding_layers=False), progress.step)
    for parameter, moments in optimiser_state.items():
        _require_finite(f"optimiser state of parameter {parameter}", moments, progress.step)
    with staged_directory(final) as staged:
        # save_embedding_layers=False: the automatic choice asks the hub about the base model.
        model.save_pretrained(str(staged), save_embedding_layers=False)
        (staged / "README.md").unlink(missing_ok=True)
        write_trainer_state(staged)
        _write_json(staged / DATA_PLAN_FILE, position)
        _write_json(staged / CONFIG_FILE, provenance.config)
        _write_json(staged / TEMPLATE_FILE, provenance.template)
        (staged / "chat_template.jinja").write_text(provenance.chat_template, encoding="utf-8")
        write_manifest(
            staged,
            Manifest(
                format_version=FORMAT_VERSION,
                step=progress.step,
                planned_steps=progress.planned_steps,
                tokens_seen=progress.tokens_seen,
                rows_seen=progress.rows_seen,
                epoch=progress.epoch,
                attempt=provenance.attempt,
                lineage=provenance.lineage,
                created=time.time(),
                finite=True,
                files=digest_tree(staged),
                identity=dict(provenance.identity),
                versions=library_versions(),
                eval_loss=progress.eval_loss,
            ),
        )


def library_versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("torch", "transformers", "trl", "peft", "bitsandbytes")}


def open_checkpoint(directory: Path) -> tuple[Manifest, DataPosition]:
    """The manifest and data position of a checkpoint that the supervisor has verified.

    Raises CheckpointCorruptError when it lacks a file that resuming needs.
    """
    try:
        manifest = read_manifest(directory)
        position = msgspec.json.decode((directory / DATA_PLAN_FILE).read_bytes(), type=DataPosition)
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointCorruptError(f"{directory}: unreadable ({error})") from error
    missing = [name for name in REQUIRED if name not in manifest.files or not (directory / name).is_file()]
    if missing:
        raise CheckpointCorruptError(
            f"{directory}: {', '.join(missing)} missing; resuming would start it afresh unseen"
        )
    return manifest, position


def check_compatible(manifest: Manifest, identity: Mapping[str, str], accepted: tuple[str, ...]) -> list[str]:
    """Compare what must agree on resume; returns the accepted differences as sentences.

    Raises CheckpointIncompatibleError naming every difference that was not accepted.
    """
    refused: list[str] = []
    taken: list[str] = []
    for name in sorted(set(manifest.identity) | set(identity)):
        before, now = manifest.identity.get(name, "(not recorded)"), identity.get(name, "(not recorded)")
        if before == now:
            continue
        (taken if _accepts(accepted, name) else refused).append(f"{name}: checkpoint {before}, now {now}")
    if refused:
        names = [text.split(":", 1)[0] for text in refused]
        flags = " ".join(f"--accept-change {name}" for name in names if name not in FIXED)
        fixed = [name for name in names if name in FIXED]
        choice = f"accept knowingly with {flags}" if not fixed else f"{', '.join(fixed)} cannot change on the way"
        raise CheckpointIncompatibleError(
            f"the checkpoint at step {manifest.step} belongs to a different run: {'; '.join(refused)}. Restore what "
            f"it was, or start a new run directory; {choice}."
        )
    return taken


def _accepts(accepted: tuple[str, ...], name: str) -> bool:
    """Whether the difference ``name`` was accepted, under this name or that of a configuration key behind it."""
    if name in FIXED:
        return False
    keys = CONFIGURED_BY.get(name, ())
    return name in accepted or any(_overlap(given, key) for given in accepted for key in keys)


def _overlap(one: str, other: str) -> bool:
    """Whether one dotted key is the other or lies inside it."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def load_adapter(model: PeftModel, directory: Path) -> None:
    """Load adapter tensors exactly as saved. Raises CheckpointIncompatibleError unless names and shapes agree.

    The file itself has been verified: what differs is the configuration, and the checkpoint is a good one.
    """
    tensors = load_file(str(directory / ADAPTER_FILE), device="cpu")
    expected = get_peft_model_state_dict(model, save_embedding_layers=False)
    if set(tensors) != set(expected):
        different = sorted(set(tensors) ^ set(expected))
        raise CheckpointIncompatibleError(
            f"{directory}: the checkpoint and this configuration adapt different layers, among them {different[0]}; "
            "an adapter cannot change its model.lora.target_modules or its base on the way. Start a new run directory."
        )
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise CheckpointIncompatibleError(
                f"{directory}: {name} is {list(tensor.shape)} in the checkpoint and {list(expected[name].shape)} in "
                "this configuration; an adapter cannot change its rank or its base on the way. "
                "Start a new run directory."
            )
    set_peft_model_state_dict(model, tensors)


def trim_log_history(history: list[dict[str, float]]) -> list[dict[str, float]]:
    return history[-LOGGED_STEPS_KEPT:]


def _require_finite(what: str, tensors: Mapping[str, Any], step: int) -> None:
    for name, tensor in tensors.items():
        if isinstance(tensor, Mapping):  # 8-bit optimisers keep theirs one level down
            _require_finite(f"{what}: {name}", tensor, step)
            continue
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise NonFiniteError(f"{what}: {name} is not finite at optimiser step {step}; it was not saved")


def _write_json(path: Path, value: object) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
