"""A kind of job for tests: the scripted trainer with a small schema and three real rungs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from supervisor.jobs import Patch, Problem, Relief, Rung

TRAINER = Path(__file__).with_name("scripted_trainer.py")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScriptedModel(_Section):
    base: str = "big"
    fallback: str | None = "small"
    options: dict[str, Any] | None = None


class ScriptedTrain(_Section):
    max_steps: int = 12
    step_seconds: float = 0.005
    learning_rate: float = 1e-4
    per_device_train_batch_size: int = 4
    gradient_accumulation_steps: int = 2
    max_length: int = 2048
    adapter_bytes: int = 4096
    snapshots: bool = False


class ScriptedSections(_Section):
    """A document of kind ``scripted``."""

    model: ScriptedModel = ScriptedModel()
    train: ScriptedTrain = ScriptedTrain()
    faults: tuple[dict[str, Any], ...] = ()
    """What goes wrong and when: see scripted_trainer.py."""


def halve_micro_batch(document: Mapping[str, Any], facts: Mapping[str, Any]) -> Relief | None:
    micro = document["train"]["per_device_train_batch_size"]
    accumulation = document["train"]["gradient_accumulation_steps"]
    if micro < 2:
        return None
    return Relief(
        "halve_micro_batch",
        (
            Patch("train.per_device_train_batch_size", micro, micro // 2),
            Patch("train.gradient_accumulation_steps", accumulation, accumulation * 2),
        ),
        f"micro-batch {micro} -> {micro // 2} at the same global batch; slower, nothing is lost",
        lossless=True,
    )


def shorten_sequence(document: Mapping[str, Any], facts: Mapping[str, Any]) -> Relief | None:
    length = document["train"]["max_length"]
    shorter = next((rung for rung in document["relief"]["seq_len_rungs"] if rung < length), None)
    if shorter is None:
        return None
    return Relief(
        "shorten_sequence",
        (Patch("train.max_length", length, shorter),),
        f"seq {length} -> {shorter} cuts the longest rows",
        lossless=False,
        accepts=("train.max_length",),
    )


def switch_model(document: Mapping[str, Any], facts: Mapping[str, Any]) -> Relief | None:
    base, fallback = document["model"]["base"], document["model"]["fallback"]
    if fallback is None:
        return None
    return Relief(
        "switch_model",
        (Patch("model.base", base, fallback), Patch("model.fallback", fallback, None)),
        f"{base} -> {fallback} is a NEW run from step 0",
        lossless=False,
        new_lineage=True,
    )


class ScriptedKind:
    """Implements :class:`supervisor.jobs.JobKind`."""

    name = "scripted"
    schema: type[BaseModel] = ScriptedSections
    rungs: Mapping[str, Rung] = {
        "halve_micro_batch": halve_micro_batch,
        "shorten_sequence": shorten_sequence,
        "switch_model": switch_model,
    }

    def resolve(self, sections: BaseModel, base: Path) -> BaseModel:
        return sections

    def preflight(self, sections: BaseModel) -> list[Problem]:
        return []

    def command(self, sections: BaseModel) -> list[str]:
        return [str(TRAINER)]


SCRIPTED = ScriptedKind()
