"""The adaptive budget against a fixed number of samples, on simulated tasks: samples drawn and answers found.

A wanted answer is an accepted one, up to budget.accepted_per_task for each task; that is what both are to find.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass

from rft.budget import PILOT_TASKS, Prior, need, rounds
from rft.config import BudgetSection
from rft.store import State

TASKS = 2000
MOST = 32
BUDGET = BudgetSection()
MAX_SAMPLES, MIN_ANSWERS = 0.60, 0.97


@dataclass(frozen=True)
class Population:
    """Tasks are impossible with probability ``impossible``; the chances of the others are Beta(a, b)."""

    name: str
    a: float
    b: float
    impossible: float = 0.0
    claimed: bool = True


POPULATIONS = (
    Population("chances spread evenly", 1.0, 1.0),
    Population("mostly always or never", 0.5, 0.5),
    Population("rather easy", 0.8, 0.4),
    Population("rather hard", 0.3, 0.6),
    Population("three in ten impossible", 0.5, 0.5, 0.3),
    Population("hard (mean 0.2)", 0.2, 0.8, claimed=False),
)


def compare(population: Population, seed: int) -> tuple[float, float]:
    """Samples and wanted answers, as shares of those of the fixed number."""
    dice = random.Random(seed)
    drawn: list[list[bool]] = []
    for _ in range(TASKS):
        chance = 0.0 if dice.random() < population.impossible else dice.betavariate(population.a, population.b)
        drawn.append([dice.random() < chance for _ in range(MOST)])
    first = rounds(BUDGET, MOST)[0]
    prior = Prior(Counter((sum(task[:first]), first) for task in drawn[:PILOT_TASKS]))
    samples = found = 0
    for task in drawn:
        states = {
            index: State(index, "accepted" if right else "rejected", str(index) if right else None, 0)
            for index, right in enumerate(task)
        }
        bound = 0
        while not (wanted := need(BUDGET, MOST, {i: states[i] for i in range(bound)}, prior)).done:
            bound = wanted.samples
        samples += bound
        found += min(sum(task[:bound]), BUDGET.accepted_per_task)
    fixed = sum(min(sum(task), BUDGET.accepted_per_task) for task in drawn)
    return samples / (TASKS * MOST), found / fixed


def main() -> None:
    results = {}
    good = True
    for population in POPULATIONS:
        samples, answers = compare(population, seed=1)
        results[population.name] = {"samples": round(samples, 3), "answers": round(answers, 3)}
        print(f"{population.name:<26} samples {samples:.2f}   wanted answers {answers:.3f}")
        if population.claimed:
            good &= samples <= MAX_SAMPLES and answers >= MIN_ANSWERS
    print(f"at most {MAX_SAMPLES:.0%} of the samples for at least {MIN_ANSWERS:.0%}: {'held' if good else 'MISSED'}")
    print(json.dumps({"benchmark": "adaptive_budget", "good": good, "populations": results}))


if __name__ == "__main__":
    main()
