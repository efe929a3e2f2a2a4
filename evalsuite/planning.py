"""Before anything is asked: what a bench will be able to tell. Pure.

A candidate much like the reference is supposed: then the differences of tasks are mostly the noise of drawing few
samples. A change that is spread over the tasks adds nothing to that; one that turns some tasks over wholly does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from evalsuite.check import paired
from evalsuite.gate_config import PASS_AT
from evalsuite.metrics import sampling_noise, task_scores
from evalsuite.scores import Scores
from evalsuite.statistics.power import (
    detectable_effect,
    sequential_detectable,
    sequential_tasks,
    tasks_needed,
)


@dataclass(frozen=True)
class Spread:
    """Variance of a task's difference: ``between`` tasks, and ``within`` by each sample (divided by their number)."""

    between: float
    within: float
    known_from: str

    def variance(self, samples: int) -> float:
        return self.between + self.within / samples


class Plan(msgspec.Struct, frozen=True):
    """Effects are differences of the metric, one-sided. ``spread_out``: when the change is spread over the tasks;
    ``whole_tasks``: when it turns tasks over; ``sequential``: spread out, in a sequential gate that may use all tasks.
    ``tasks_needed`` for ``effect`` likewise, None where no effect was asked for."""

    tasks: int
    samples: int
    confidence: float
    power: float
    known_from: str
    spread_out: float
    whole_tasks: float
    sequential: float
    effect: float | None = None
    tasks_spread_out: int | None = None
    tasks_whole: int | None = None
    tasks_sequential: int | None = None
    samples_spread_out: int | None = None


def spread_of(reference: Scores, metric: str, candidate: Scores | None = None) -> Spread:
    """From a pilot: one evaluation, or a pair of which the differences are seen. Raises InputError."""
    if candidate is None:
        noise, scores = sampling_noise(reference.tasks, metric), task_scores(reference.tasks, metric)
        if noise is None:
            mean = float(scores.mean())
            most = 2 * mean * (1 - mean)
            if PASS_AT.fullmatch(metric) and metric != "pass@1":  # what more samples take away isn't known
                return Spread(most, 0.0, f"the most that the noise of {metric} can be, however many samples there are")
            return Spread(0.0, most, "one sample a task, taken to be all noise")
        return Spread(0.0, 2 * noise * reference.sampling.samples_per_task, "the noise of this evaluation")
    data = paired(candidate, reference, metric)
    total = float(data.units.standard_errors[0]) ** 2 * len(data.candidate) if data.units.count > 1 else 0.25
    if data.noise is None:
        return Spread(total, 0.0, "the differences of this pair, however many samples there are")
    return Spread(max(0.0, total - data.noise), data.noise * data.samples, "the differences of this pair")


def guessed_spread(accuracy: float) -> Spread:
    """Without a pilot: the most that the noise can be at this mean score."""
    return Spread(0.0, 2 * accuracy * (1 - accuracy), f"no evaluation: a score of {accuracy:g}, all of it noise")


def plan(
    spread: Spread, tasks: int, samples: int, confidence: float, power: float, effect: float | None = None
) -> Plan:
    alpha = 1 - confidence
    variance = spread.variance(samples)
    root = math.sqrt(variance)
    found = Plan(
        tasks, samples, confidence, power, spread.known_from, detectable_effect(root, tasks, alpha, power),
        _whole_tasks(variance, tasks, alpha, power), sequential_detectable(root, tasks, alpha, power),
    )  # fmt: skip
    if effect is None:
        return found
    return msgspec.structs.replace(
        found,
        effect=effect,
        tasks_spread_out=tasks_needed(effect, root, alpha, power),
        tasks_whole=tasks_needed(effect, math.sqrt(variance + effect * (1 - effect)), alpha, power),
        tasks_sequential=sequential_tasks(effect, max(root, 1e-9), alpha, power),
        samples_spread_out=_samples_needed(spread, tasks, effect, alpha, power),
    )


def _whole_tasks(variance: float, tasks: int, alpha: float, power: float) -> float:
    """The effect e that is found when it adds e * (1 - e) to the variance of a task's difference."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        found = detectable_effect(math.sqrt(variance + middle * (1 - middle)), tasks, alpha, power)
        low, high = (middle, high) if found > middle else (low, middle)
    return high


def _samples_needed(spread: Spread, tasks: int, effect: float, alpha: float, power: float) -> int | None:
    """Samples of each of so many tasks; None when no number would do."""
    per_task = (effect / detectable_effect(1.0, tasks, alpha, power)) ** 2
    room = per_task - spread.between
    return max(1, math.ceil(spread.within / room)) if room > 0 else None
