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
from dataclasses import astuple, dataclass
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


def compare(population: Population, seed: int) -> Spent:
    """On simulated tasks."""
    dice = random.Random(seed)
    drawn: list[list[bool]] = []
    for _ in range(TASKS):
        chance = 0.0 if dice.random() < population.impossible else dice.betavariate(population.a, population.b)
        drawn.append([dice.random() < chance for _ in range(MOST)])
    return spent([dict(enumerate(map(state_of, range(MOST), task))) for task in drawn], MOST)


def state_of(index: int, right: bool) -> State:
    return State(index, "accepted" if right else "rejected", str(index) if right else None, 0)


@dataclass(frozen=True)
class Spent:
    """Samples drawn and wanted answers found, by the adaptive budget and by the fixed number."""

    samples: int
    fixed_samples: int
    answers: int
    fixed_answers: int

    @property
    def of_samples(self) -> float:
        return self.samples / self.fixed_samples

    @property
    def of_answers(self) -> float:
        return self.answers / self.fixed_answers if self.fixed_answers else 1.0

    @property
    def holds(self) -> bool:
        return self.of_samples <= MAX_SAMPLES and self.of_answers >= MIN_ANSWERS

    def __str__(self) -> str:
        return f"samples {self.of_samples:.2f}   wanted answers {self.of_answers:.3f}"


def spent(tasks: Sequence[Mapping[int, State]], most: int) -> Spent:
    """On tasks of one source; ``most`` is the fixed number for each."""
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
    return Spent(samples, len(tasks) * most, found, fixed)


def answers(states: Mapping[int, State], bound: int) -> int:
    keys = {states[at].key for at in range(bound) if states[at].outcome == "accepted"}
    return min(len(keys), BUDGET.accepted_per_task)


def replay(run_dir: Path) -> dict[str, Spent]:
    """By source."""
    most = sections_of(run_dir).sampling.samples_per_task
    by_source: dict[str, list[dict[int, State]]] = {}
    with open_to_read(run_dir) as store:
        for _, source, states in store.each_states():
            if len(states) < most or not all(map(is_settled, states)):
                raise SystemExit(f"{run_dir} is no finished run with budget.adaptive: false")
            by_source.setdefault(source, []).append({state.index: state for state in states})
    return {source: spent(tasks, most) for source, tasks in by_source.items()}


def main(run_dirs: Sequence[Path]) -> None:
    results = {}
    good = True

    def tell(name: str, found: Spent, more: str = "") -> None:
        results[name] = {"samples": round(found.of_samples, 3), "answers": round(found.of_answers, 3)}
        print(f"{name:<26} {found}{more}")

    for population in POPULATIONS:
        found = compare(population, seed=1)
        tell(population.name, found)
        good &= found.holds if population.claimed else found.of_answers >= MIN_ANSWERS
    for run_dir in run_dirs:
        by_source = replay(run_dir)
        for source, found in by_source.items():
            tell(f"{run_dir.name}/{source}", found, f"   (of {found.fixed_samples} real samples)")
        whole = Spent(*map(sum, zip(*map(astuple, by_source.values()), strict=True)))
        tell(f"{run_dir.name}, whole", whole)
        good &= whole.holds
    print(f"at most {MAX_SAMPLES:.0%} of the samples for at least {MIN_ANSWERS:.0%}: {'held' if good else 'MISSED'}")
    print(json.dumps({"benchmark": "adaptive_budget", "good": good, "populations": results}))


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
