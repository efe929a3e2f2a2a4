"""The adaptive budget against a fixed number of samples: samples drawn and answers found.

Usage: adaptive_budget.py [RUN_DIR ...]   (simulated tasks, and finished runs with budget.adaptive: false, replayed)

A wanted answer is an accepted one that differs from the others of its task, up to budget.accepted_per_task for each
task; that is what both are to find. In a run every sample and verdict is there already, so what the adaptive budget
would have drawn is known to the sample.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rft.budget import PILOT_TASKS, Prior, is_settled, need, pilot_tally
from rft.config import BudgetSection
from rft.standing import open_to_read, sections_of
from rft.store import State

TASKS = 2000
MOST = 32
BUDGET = BudgetSection()
MAX_SAMPLES, MIN_ANSWERS = 0.60, 0.97


@dataclass(frozen=True)
class Population:
    """Tasks are impossible with probability ``impossible``; the chances of the others are Beta(a, b). Where few tasks
    are ever solved it takes most of the samples to keep nearly all answers: of those, only the answers are
    ``claimed``."""

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
    Population("very hard (mean 0.1)", 0.1, 0.9, claimed=False),
    Population("nine in ten impossible", 1.0, 1.0, 0.9, claimed=False),
)


def compare(population: Population, seed: int) -> tuple[float, float]:
    """Samples and wanted answers, as shares of those of the fixed number."""
    dice = random.Random(seed)
    drawn: list[list[bool]] = []
    for _ in range(TASKS):
        chance = 0.0 if dice.random() < population.impossible else dice.betavariate(population.a, population.b)
        drawn.append([dice.random() < chance for _ in range(MOST)])
    return shares([dict(enumerate(map(state_of, range(MOST), task))) for task in drawn], MOST)


def state_of(index: int, right: bool) -> State:
    return State(index, "accepted" if right else "rejected", str(index) if right else None, 0)


def shares(tasks: Sequence[Mapping[int, State]], most: int) -> tuple[float, float]:
    """Samples and wanted answers of tasks of one source, as shares of those of the fixed number ``most``."""
    pilot = [pilot_tally(BUDGET, most, states) for states in tasks[:PILOT_TASKS]]
    prior = Prior(Counter(counted for counted in pilot if counted is not None))
    samples = found = fixed = 0
    for states in tasks:
        bound = 0
        while not (wanted := need(BUDGET, most, {at: states[at] for at in range(bound)}, prior)).done:
            bound = wanted.samples
        bound = wanted.samples
        samples += bound
        found += answers(states, bound)
        fixed += answers(states, most)
    return samples / (len(tasks) * most), found / fixed if fixed else 1.0


def answers(states: Mapping[int, State], bound: int) -> int:
    keys = {states[at].key for at in range(bound) if states[at].outcome == "accepted"}
    return min(len(keys), BUDGET.accepted_per_task)


def replay(run_dir: Path) -> dict[str, tuple[float, float, int, int]]:
    """By source: samples and wanted answers as shares, number of tasks, and the fixed number of samples."""
    most = sections_of(run_dir).sampling.samples_per_task
    by_source: dict[str, list[dict[int, State]]] = {}
    with open_to_read(run_dir) as store:
        for _, source, states in store.each_states():
            if len(states) < most or not all(map(is_settled, states)):
                raise SystemExit(f"{run_dir} is no finished run with budget.adaptive: false")
            by_source.setdefault(source, []).append({state.index: state for state in states})
    return {source: (*shares(tasks, most), len(tasks), most) for source, tasks in by_source.items()}


def main(run_dirs: Sequence[Path]) -> None:
    results = {}
    good = True
    for population in POPULATIONS:
        samples, found = compare(population, seed=1)
        results[population.name] = {"samples": round(samples, 3), "answers": round(found, 3)}
        print(f"{population.name:<26} samples {samples:.2f}   wanted answers {found:.3f}")
        good &= found >= MIN_ANSWERS and (samples <= MAX_SAMPLES or not population.claimed)
    for run_dir in run_dirs:
        for source, (samples, found, tasks, most) in replay(run_dir).items():
            results[f"{run_dir.name}/{source}"] = {"samples": round(samples, 3), "answers": round(found, 3)}
            print(f"{source:<26} samples {samples:.2f}   wanted answers {found:.3f}   ({tasks} real tasks, N = {most})")
            good &= samples <= MAX_SAMPLES and found >= MIN_ANSWERS
    print(f"at most {MAX_SAMPLES:.0%} of the samples for at least {MIN_ANSWERS:.0%}: {'held' if good else 'MISSED'}")
    print(json.dumps({"benchmark": "adaptive_budget", "good": good, "populations": results}))


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
