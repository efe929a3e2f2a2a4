"""Scores in a few numbers. Pure; light: no numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from evalsuite.scores import Scores, scores_digest


def means(scores: Scores) -> Mapping[str, float]:
    """By metric, the mean over tasks of their samples' mean; of ``accepted`` that is pass@1. Empty without a task."""
    names = sorted(scores.tasks[0].values) if scores.tasks else []
    return {
        name: math.fsum(math.fsum(task.values[name]) / task.samples for task in scores.tasks) / len(scores.tasks)
        for name in names
    }


def plain(scores: Scores) -> dict[str, Any]:
    """For programs: identities, means and what is missing."""
    return {
        "bench": msgspec.to_builtins(scores.bench),
        "model": msgspec.to_builtins(scores.model),
        "sampling": msgspec.to_builtins(scores.sampling),
        "means": dict(means(scores)),
        "tasks": len(scores.tasks),
        "whole": scores.whole,
        "missing": list(scores.missing),
        "digest": scores_digest(scores),
    }


def scores_text(scores: Scores) -> str:
    """For people, a few lines."""
    model, sampling = scores.model, scores.sampling
    adapter = ""
    if model.adapter is not None:
        effect = "not measured" if model.adapter_effect_nats is None else f"{model.adapter_effect_nats:.3f} nats"
        adapter = f" with adapter {model.adapter[:12]} (effect {effect})"
    lines = [
        f"{scores.bench.name}: {len(scores.tasks)} of {scores.bench.tasks} tasks, {sampling.samples_per_task} samples "
        f"each at temperature {sampling.temperature:g}",
        f"model: {model.base}{adapter}",
        *(f"  {name:<16} {value:.4f}" for name, value in means(scores).items()),
    ]
    if not scores.whole:
        lines.append(f"NOT WHOLE: {len(scores.missing)} tasks have no score, such as {', '.join(scores.missing[:3])}")
    return "\n".join(lines)
