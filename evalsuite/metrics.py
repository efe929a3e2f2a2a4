"""A task's score by a metric of its bench, or by pass@K. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from evalsuite.gate_config import PASS_AT
from evalsuite.scores import Scores, TaskScores
from evalsuite.statistics.units import Floats
from rft.pass_at_k import pass_at_k
from supervisor.problems import InputError


def metrics_of(scores: Scores) -> list[str]:
    """The bench's own metrics; empty without a task."""
    return sorted(scores.tasks[0].values) if scores.tasks else []


def task_scores(tasks: Sequence[TaskScores], metric: str) -> Floats:
    """(tasks,) between 0 and 1. Raises InputError for a metric that these tasks don't have."""
    return np.asarray([_score(task, metric) for task in tasks], dtype=np.float64)


def sampling_noise(tasks: Sequence[TaskScores], metric: str) -> float | None:
    """The part of a task's score's variance that comes from having only so many samples of it; None if unknown."""
    if any(task.samples < 2 for task in tasks) or (PASS_AT.fullmatch(metric) and metric != "pass@1"):
        return None
    name = "accepted" if metric == "pass@1" else metric
    return float(np.mean([np.var(task.values[name], ddof=1) / task.samples for task in tasks]))


def _score(task: TaskScores, metric: str) -> float:
    found = PASS_AT.fullmatch(metric)
    if found is None:
        if metric not in task.values:
            raise InputError(f"{metric} is no metric of this bench. Known: {', '.join(sorted(task.values))}, pass@K.")
        return math.fsum(task.values[metric]) / task.samples
    k = int(found[1])
    if k > task.samples:
        raise InputError(f"{metric} needs {k} samples of every task, and {task.task} has {task.samples}.")
    return float(pass_at_k(task.samples, task.accepted, k))
