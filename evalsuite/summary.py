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
