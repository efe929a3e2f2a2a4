"""Thousands of gates on simulated models: how often each is wrong, and how many samples a sequential one needs.

The peer is the gate that people write: the candidate's mean must not be below the base's.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
from machine import describe, verdict

from evalsuite.statistics.bootstrap import FEW_DIFFERING, FEW_UNITS, bca, bounded
from evalsuite.statistics.power import tasks_needed
from evalsuite.statistics.sequential import Design, wealth
from evalsuite.statistics.units import Floats, Units

GATES = 2000
DRAWS = 2000
TOGETHER = 200
"""Gates that share their draws: what a set of draws is off by would otherwise be off in all of them."""
LEVEL = 0.05
STATED_POWER = 0.95
MARGIN = 0.05
MOST_SAMPLES = 0.6
MOST_TASKS = 2.5
"""A sequential gate may go on to so many times the tasks of the fixed one; it seldom does."""


@dataclass(frozen=True)
class Population:
    """Tasks whose chance of an accepted sample is Beta(a, b), asked ``samples`` times, in clusters of ``cluster``.

    ``saves``: what a sequential gate saves is claimed. Where a unit says much by itself (many answers of many tasks),
    bets are held back by the worst that it could bring, and it saves less.
    """

    name: str
    samples: int
    cluster: int = 1
    a: float = 0.8
    b: float = 0.8
    saves: bool = True


POPULATIONS = (
    Population("one answer a task", 1),
    Population("four answers a task", 4),
    Population("clusters of five tasks, one answer", 1, cluster=5),
    Population("clusters of five tasks, four answers", 4, cluster=5, saves=False),
    Population("a hard bench, one answer", 1, a=0.4, b=1.6),
)
SMALL = (("20 tasks", 20, 1), ("52 tasks", 52, 1), ("12 clusters of five", 12, 5))


def differences(found: Population, clusters: int, drop: float, dice: np.random.Generator) -> Units:
    """(clusters, GATES): the candidate's chances are lowered by ``drop`` on average. In a cluster the models' answers
    move together: each model has luck of its own with a cluster."""
    shape = (clusters, found.cluster, GATES)
    chance = dice.beta(found.a, found.b, size=shape)
    lowered = chance * (1 - drop / (found.a / (found.a + found.b)))

    def asked(chances: Floats) -> Floats:
        if found.cluster > 1:
            luck = dice.normal(0, 0.6, size=(clusters, 1, GATES))
            safe = np.clip(chances, 1e-6, 1 - 1e-6)
            moved = 1 / (1 + np.exp(-(np.log(safe / (1 - safe)) + luck)))
            # the same mean as without luck, so that the drop is what it says
            chances = np.clip(moved * (chances.mean() / moved.mean()), 0, 1)
        return dice.binomial(found.samples, chances) / found.samples

    table = asked(lowered) - asked(chance)
    return Units(np.asarray(table.sum(axis=1)), np.full(clusters, float(found.cluster)))


def spread(found: Population) -> float:
    """Of a task's difference when there is a drop of the margin, with what clusters add to it."""
    many = differences(found, 200, MARGIN, np.random.default_rng(99))
    return float(many.sums.std()) / math.sqrt(found.cluster)


def verdicts(units: Units, margin: float) -> tuple[float, float, float]:
    """Shares of PASS and FAIL by the gate's own rule, and of FAIL by the peer's."""
    passes, fails = np.empty(GATES), np.empty(GATES)
    for first in range(0, GATES, TOGETHER):
        some = slice(first, first + TOGETHER)
        part = Units(units.sums[:, some], units.sizes)
        many = units.count >= FEW_UNITS and bool((part.differing >= FEW_DIFFERING).all())
        found = bca(part, DRAWS, first) if many else bounded(part, -1, 1, DRAWS, first)
        passes[some], fails[some] = found.p_above(-margin), found.p_below(0.0)
    passed = passes <= LEVEL
    return float(passed.mean()), float(((fails <= LEVEL) & ~passed).mean()), float((units.means < 0).mean())


def sequential(units: Units, margin: float, supposed: float) -> tuple[float, float, float]:
    """Shares of PASS and FAIL, and tasks asked on average."""
    design = Design(margin, supposed, largest=float(units.sizes[0]))
    capital = wealth(units, -margin, 0.0, design)
    wall = 1 / LEVEL
    above = np.maximum.accumulate(capital.above, axis=0) >= wall
    below = np.maximum.accumulate(capital.below, axis=0) >= wall
    known = above | below
    last = np.where(known.any(axis=0), known.argmax(axis=0), units.count - 1)
    gates = np.arange(GATES)
    passed, failed = above[last, gates], below[last, gates] & ~above[last, gates]
    return float(passed.mean()), float(failed.mean()), float((last + 1).mean() * units.sizes[0])


def simulate(found: Population, seed: int) -> dict[str, float]:
    sd = spread(found)
    tasks = tasks_needed(MARGIN, sd, LEVEL, STATED_POWER)
    clusters = math.ceil(tasks / found.cluster)
    tasks = clusters * found.cluster
    dice = np.random.default_rng(seed)
    same, lower = differences(found, clusters, 0.0, dice), differences(found, clusters, MARGIN, dice)
    passed, wrongly, peer = verdicts(same, MARGIN)
    wrong_pass, caught, _ = verdicts(lower, MARGIN)
    longer = math.ceil(clusters * MOST_TASKS)
    seq_pass, seq_wrongly, seq_same = sequential(differences(found, longer, 0.0, dice), MARGIN, sd**2)
    _, seq_caught, seq_drop = sequential(differences(found, longer, MARGIN, dice), MARGIN, sd**2)
    return {
        "tasks": tasks,
        "unchanged_fails": wrongly,
        "unchanged_passes": passed,
        "drop_caught": caught,
        "drop_passes": wrong_pass,
        "peer_unchanged_fails": peer,
        "sequential_unchanged_fails": seq_wrongly,
        "sequential_unchanged_passes": seq_pass,
        "sequential_drop_caught": seq_caught,
        "sequential_samples": (seq_same + seq_drop) / 2 / tasks,
    }


def main() -> None:
    print(f"Gates on simulated models: {GATES} for each number. {describe()}")
    allowed = LEVEL + 2 * math.sqrt(LEVEL * (1 - LEVEL) / GATES)
    wanted = STATED_POWER - 2 * math.sqrt(STATED_POWER * (1 - STATED_POWER) / GATES)
    results: dict[str, dict[str, float]] = {}
    for seed, found in enumerate(POPULATIONS, 1):
        numbers = results[found.name] = simulate(found, seed)
        print(f"{found.name}: {numbers['tasks']:.0f} tasks for a drop of {MARGIN} with {STATED_POWER:.0%} power")
        verdict("an unchanged model FAILs", numbers["unchanged_fails"], allowed, at_least=False)
        print(f"    by comparing means: {numbers['peer_unchanged_fails']:.2f}")
        verdict("a drop of the margin PASSes", numbers["drop_passes"], allowed, at_least=False)
        verdict("that drop is caught", numbers["drop_caught"], wanted, at_least=True)
        verdict("sequential: unchanged FAILs", numbers["sequential_unchanged_fails"], allowed, at_least=False)
        verdict("sequential: the drop is caught", numbers["sequential_drop_caught"], wanted, at_least=True)
        what = "sequential: share of the fixed gate's samples"
        if found.saves:
            verdict(what, numbers["sequential_samples"], MOST_SAMPLES, at_least=False)
        else:
            print(f"  {what}: {numbers['sequential_samples']:.4g}, nothing is claimed")
    for seed, (name, clusters, size) in enumerate(SMALL, 101):
        few = Population(name, 1, cluster=size)
        dice = np.random.default_rng(seed)
        _, wrongly, peer = verdicts(differences(few, clusters, 0.0, dice), MARGIN)
        results[name] = {"unchanged_fails": wrongly, "peer_unchanged_fails": peer}
        verdict(f"{name}: an unchanged model FAILs (by comparing means: {peer:.2f})", wrongly, allowed, at_least=False)
    print(json.dumps({"benchmark": "gate_simulation", "gates": GATES, "level": LEVEL, "results": results}))


if __name__ == "__main__":
    main()
