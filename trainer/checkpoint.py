"""Checkpoints that are whole or absent, and a resume that is exact or refused.

A checkpoint folder is what transformers writes (adapter, scheduler.pt, rng_state.pth, trainer_state.json), but with the
optimiser's state as safetensors and JSON, plus the data plan, the configuration, the chat template and, last, the
manifest. Nothing but tensors is large, and their places in their files are the same at every step (snapshots.py).
"""

from __future__ import annotations

import functools
import importlib.metadata
import io
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file

from supervisor.protocol.atomic import STAGING_PREFIX, fsync_directory, fsync_file, staged_directory
from supervisor.protocol.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    FileRecord,
    Manifest,
    digest_tree,
    read_manifest,
    write_manifest,
)
from trainer.data.corpus import SourceDigest
from trainer.data.plan import Segment
from trainer.early_stop import Standing
from trainer.errors import CheckpointCorruptError, CheckpointIncompatibleError, NonFiniteError
from trainer.frozen_adapter import put_frozen
from trainer.residual_file import RESIDUAL_FILE
from trainer.tensor_file import write_tensors

ADAPTER_FILE = "adapter_model.safetensors"
OPTIMISER_FILE = "optimizer.safetensors"
OPTIMISER_REST_FILE = "optimizer.json"
DATA_PLAN_FILE = "data_plan.json"
EVALUATIONS_FILE = "evaluations.json"
SOURCES_FILE = "sources.json"
CONFIG_FILE = "run_config.json"
TEMPLATE_FILE = "template.json"
REQUIRED = (ADAPTER_FILE, "adapter_config.json", OPTIMISER_FILE, OPTIMISER_REST_FILE, "scheduler.pt", "rng_state.pth",
            "trainer_state.json", DATA_PLAN_FILE)  # fmt: skip
"""Files without which nothing is resumed. Checkpoints of earlier versions have no evaluations.json and sources.json."""
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
    "ranks": ("launch.processes", "launch.strategy"),
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
    eval_loss_stderr: float | None = None


@dataclass(frozen=True)
class Provenance:
    """What stays the same through an attempt and goes into each of its checkpoints."""

    attempt: int
    lineage: int
    identity: Mapping[str, str]
    config: Mapping[str, Any]
    template: Mapping[str, Any]
    chat_template: str
    sources: tuple[SourceDigest, ...]


@dataclass(frozen=True)
class StepState:
    """Everything of one step that a checkpoint holds.

    ``tensors``: by file, then by name; live ones, which the next step changes. The rest are copies, except for
    ``position``, which may be worked out later.
    """

    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    optimiser_rest: Any
    scheduler: Mapping[str, Any]
    rng: Mapping[str, Any]
    trainer_state: Mapping[str, Any]
    adapter_config: bytes
    progress: Progress
    position: Callable[[], DataPosition]
    evaluations: bytes
    rng_of_others: tuple[Mapping[str, Any], ...] = ()


def write_checkpoint(
    final: Path,
    state: StepState,
    provenance: Provenance,
    write_trainer_state: Callable[[Path, StepState], None],
) -> None:
    """Stage everything beside ``final``, digest it, write the manifest, rename.

    ``write_trainer_state`` is :func:`write_trainer_state` or does more. Raises NonFiniteError rather than save
    weights or moments that are not finite, OSError when the disk is full.
    """
    for file, tensors in state.tensors.items():
        require_finite(file, tensors, state.progress.step)
    with staged_directory(final) as staged:
        write_tensors(staged / ADAPTER_FILE, state.tensors[ADAPTER_FILE])
        if RESIDUAL_FILE in state.tensors:
            write_tensors(staged / RESIDUAL_FILE, state.tensors[RESIDUAL_FILE])
        write_trainer_state(staged, state)
        for name, data in described(state, provenance).items():
            (staged / name).write_bytes(data)
        write_manifest(staged, make_manifest(state.progress, provenance, digest_tree(staged)))


def write_trainer_state(staged: Path, state: StepState) -> None:
    """Moments, schedule, random state and the loop's own counters."""
    write_tensors(staged / OPTIMISER_FILE, state.tensors[OPTIMISER_FILE])
    for name, data in trainer_files(state).items():
        (staged / name).write_bytes(data)


def trainer_files(state: StepState) -> dict[str, bytes]:
    return {
        OPTIMISER_REST_FILE: msgspec.json.encode(state.optimiser_rest),
        "scheduler.pt": _saved(state.scheduler),
        "rng_state.pth": _saved(state.rng),
        **{rng_file(rank): _saved(rng) for rank, rng in enumerate(state.rng_of_others, start=1)},
        "trainer_state.json": json.dumps(state.trainer_state, sort_keys=True).encode(),
    }


def rng_file(rank: int) -> str:
    """Where the random state of a rank is kept."""
    return f"rng_state_{rank}.pth" if rank else "rng_state.pth"


def described(state: StepState, provenance: Provenance) -> dict[str, bytes]:
    """The files that say what the weights are and where in the data the run is."""
    return {
        "adapter_config.json": state.adapter_config,
        DATA_PLAN_FILE: _json(state.position()),
        EVALUATIONS_FILE: state.evaluations,
        SOURCES_FILE: _json(provenance.sources),
        CONFIG_FILE: _json(provenance.config),
        TEMPLATE_FILE: _json(provenance.template),
        "chat_template.jinja": provenance.chat_template.encode(),
    }


def make_manifest(
    progress: Progress, provenance: Provenance, files: dict[str, FileRecord], interim: bool = False
) -> Manifest:
    """The manifest of finite weights and moments."""
    return Manifest(
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
        files=files,
        identity=dict(provenance.identity),
        versions=library_versions(),
        eval_loss=progress.eval_loss,
        eval_loss_stderr=progress.eval_loss_stderr,
        interim=interim,
    )


def add_eval_loss(directory: Path, eval_loss: float, stderr: float | None) -> None:
    """Enter the result of an evaluation that was made up for after a checkpoint had been saved without it."""
    manifest = msgspec.structs.replace(read_manifest(directory), eval_loss=eval_loss, eval_loss_stderr=stderr)
    # Beside the checkpoint, in which nothing foreign may lie, not even for a moment.
    staged = directory.with_name(f"{STAGING_PREFIX}{directory.name}.{MANIFEST_NAME}")
    staged.write_bytes(_json(manifest))
    fsync_file(staged)
    os.replace(staged, directory / MANIFEST_NAME)
    fsync_directory(directory)


@functools.cache
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
    # A rank without its own random state would go on with other dropout masks.
    needed = {*REQUIRED, *manifest.files, *(rng_file(rank) for rank in range(ranks_of(manifest)))}
    missing = sorted(name for name in needed if name not in manifest.files or not (directory / name).is_file())
    if missing:
        raise CheckpointCorruptError(
            f"{directory}: {', '.join(missing)} missing; resuming would start it afresh unseen"
        )
    return manifest, position


def ranks_of(manifest: Manifest) -> int:
    """In how many processes the checkpoint was trained; earlier versions knew only one and recorded nothing."""
    return int(manifest.identity.get("ranks", "1"))


def read_sources(directory: Path, manifest: Manifest) -> tuple[SourceDigest, ...] | None:
    """What each source gave when the checkpoint was written; None: not recorded. Raises CheckpointCorruptError."""
    if SOURCES_FILE not in manifest.files:
        return None
    try:
        return msgspec.json.decode((directory / SOURCES_FILE).read_bytes(), type=tuple[SourceDigest, ...])
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointCorruptError(f"{directory / SOURCES_FILE}: unreadable ({error})") from error


def read_standing(directory: Path, manifest: Manifest) -> Standing:
    """How the run stood with its evaluations; as before the first one where that is not recorded.

    Raises CheckpointCorruptError.
    """
    if EVALUATIONS_FILE not in manifest.files:
        return Standing()
    try:
        return msgspec.json.decode((directory / EVALUATIONS_FILE).read_bytes(), type=Standing)
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointCorruptError(f"{directory / EVALUATIONS_FILE}: unreadable ({error})") from error


def check_compatible(
    manifest: Manifest, identity: Mapping[str, str], accepted: tuple[str, ...], sources: str = ""
) -> list[str]:
    """Compare what must agree on resume; returns the accepted differences as sentences.

    ``sources`` says in what the sources of rows differ. Raises CheckpointIncompatibleError naming every difference
    that was not accepted.
    """
    refused: list[str] = []
    taken: list[str] = []
    recorded = {"ranks": str(ranks_of(manifest)), **manifest.identity}
    for name in sorted(set(recorded) | set(identity)):
        before, now = recorded.get(name, "(not recorded)"), identity.get(name, "(not recorded)")
        if before == now:
            continue
        where = f" ({sources})" if sources and name in ("data", "validation_data") else ""
        (taken if _accepts(accepted, name) else refused).append(f"{name}: checkpoint {before}, now {now}{where}")
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
    """Load adapter tensors exactly as saved, those of a frozen second adapter too where there is one.

    Raises CheckpointIncompatibleError unless names and shapes agree. The file itself has been verified: what differs is
    the configuration, and the checkpoint is a good one.
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
    if (directory / RESIDUAL_FILE).is_file():
        put_frozen(model, load_file(str(directory / RESIDUAL_FILE), device="cpu"))


def trim_log_history(history: list[dict[str, float]]) -> list[dict[str, float]]:
    return history[-LOGGED_STEPS_KEPT:]


def require_finite(what: str, tensors: Mapping[str, torch.Tensor], step: int) -> None:
    """Raises NonFiniteError naming the first tensor with an infinity or a NaN in it."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise NonFiniteError(f"{what}: {name} is not finite at optimiser step {step}; it was not saved")


def _saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
