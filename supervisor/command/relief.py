"""The rungs of relief for any program: they change ``values``, which its command line shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from supervisor.jobs import Patch, Relief, Rung

MICRO_BATCH = ("micro_batch", "micro_batch_size", "per_device_train_batch_size")
ACCUMULATION = ("gradient_accumulation", "gradient_accumulation_steps", "grad_accum")
LENGTH = ("max_length", "max_seq_length", "sequence_len", "seq_len")
MODEL = ("model", "base_model", "model_name_or_path")
"""The names under which a value is understood as such, the first one that is there."""


def named(values: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in values), None)


def halve_micro_batch(document: Mapping[str, Any], facts: Mapping[str, Any]) -> Relief | None:
    """Half the rows per forward pass; twice the accumulation where there is a value for it."""
    values = document["values"]
    name, other = named(values, MICRO_BATCH), named(values, ACCUMULATION)
    if name is None or not _whole(values[name]) or values[name] < 2:
        return None
    micro: int = values[name]
    if other is None or not _whole(values[other]):
        price = (
            f"{name} {micro} -> {micro // 2}: no value for gradient accumulation is declared, so the global batch is "
            "halved as well"
        )
        return Relief("halve_micro_batch", (Patch(f"values.{name}", micro, micro // 2),), price, lossless=False)
    accumulation: int = values[other]
    # An odd micro-batch has no exact half; 1 x (micro * accumulation) keeps the global batch.
    smaller, more = (1, micro * accumulation) if micro % 2 else (micro // 2, accumulation * 2)
    return Relief(
        "halve_micro_batch",
        (Patch(f"values.{name}", micro, smaller), Patch(f"values.{other}", accumulation, more)),
        f"{name} {micro} -> {smaller}, {other} {accumulation} -> {more}: the global batch stays "
        f"{micro * accumulation}, each step gets somewhat slower",
        lossless=True,
    )


def shorten_sequence(document: Mapping[str, Any], facts: Mapping[str, Any]) -> Relief | None:
    """The next entry of ``fallback`` for the length or, without one, of ``relief.seq_len_rungs``."""
    values = document["values"]
    name = named(values, LENGTH)
    if name is None or not _whole(values[name]):
        return None
    rungs = document["fallback"].get(name, document["relief"]["seq_len_rungs"])
    lower = [rung for rung in rungs if _whole(rung) and rung < values[name]]
    if not lower:
        return None
    return Relief(
        "shorten_sequence",
        (Patch(f"values.{name}", values[name], max(lower)),),
        f"{name} {values[name]} -> {max(lower)} tokens: longer rows are cut or dropped, whichever the program does "
        "(how many is not known here)",
        lossless=False,
    )


def switch_model(document: Mapping[str, Any], facts: Mapping[str, Any]) -> Relief | None:
    """The next model of ``fallback``: a new lineage from step 0."""
    values = document["values"]
    name = named(values, MODEL)
    models = document["fallback"].get(name, []) if name else []
    if name is None or not models:
        return None
    present = values[name]
    rest = models[models.index(present) + 1 :] if present in models else models
    if not rest:
        return None
    return Relief(
        "switch_model",
        (Patch(f"values.{name}", present, rest[0]),),
        f"{name} {present} -> {rest[0]}: a new run from step 0, nothing trained so far carries over",
        lossless=False,
        new_lineage=True,
    )


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


RUNGS: Mapping[str, Rung] = {
    "halve_micro_batch": halve_micro_batch,
    "shorten_sequence": shorten_sequence,
    "switch_model": switch_model,
}
