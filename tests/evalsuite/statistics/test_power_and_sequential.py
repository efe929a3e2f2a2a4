"""Power and sequential evidence against the package evalsig, and against what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from evalsig.inference import multiplicity
from evalsig.inference.mde import estimate_icc, mde, required_n
from evalsig.inference.power import power_for_delta
from evalsig.inference.sequential import confidence_sequence, sequential_gate

from evalsuite.statistics.corrections import holm
from evalsuite.statistics.power import (
    correlation_within,
    design_effect,
    detectable_effect,
    power_of,
    sequential_detectable,
    sequential_power,
    sequential_tasks,
    tasks_needed,
)
from evalsuite.statistics.sequential import Design, bounds, order_of, wealth
from evalsuite.statistics.units import Floats, Units, units_of


# proves EVL-2: minimum detectable effect, tasks needed and power are those of evalsig
@pytest.mark.parametrize(("spread", "tasks", "alpha", "power"), [(0.4, 164, 0.05, 0.8), (0.1, 1319, 0.01, 0.95)])
def test_power_agrees_with_evalsig(spread: float, tasks: int, alpha: float, power: float) -> None:
    effect = detectable_effect(spread, tasks, alpha, power)
    assert effect == pytest.approx(mde(spread, tasks, alpha=alpha, power=power, one_sided=True).mde, abs=1e-12)
    needed = required_n(0.02, spread, alpha=alpha, power=power, one_sided=True)
    assert tasks_needed(0.02, spread, alpha, power) == needed
    assert power_of(0.03, spread, tasks, alpha) == pytest.approx(
        power_for_delta(0.03, spread, tasks, alpha=alpha, one_sided=True), abs=1e-12
    )
    assert power_of(effect, spread, tasks, alpha) == pytest.approx(power, abs=1e-12)


# proves EVL-2: clusters cost what evalsig says they cost
def test_clusters_agree_with_evalsig() -> None:
    dice = np.random.default_rng(0)
    names = [str(each) for each in np.repeat(np.arange(30), 5)]
    values = np.repeat(dice.normal(size=30), 5) + dice.normal(size=150)
    within = correlation_within(values, names)
    assert within == pytest.approx(estimate_icc(values, np.array(names)), abs=1e-12)
    effect = design_effect(30, 150, within)
    expected = mde(0.4, 150, one_sided=True, n_clusters=30, icc=within).mde
    assert detectable_effect(0.4, 150, design_effect=effect) == pytest.approx(expected, abs=1e-12)


# proves EVL-2: corrected p-values are those of evalsig
def test_holm_agrees_with_evalsig() -> None:
    given = [0.04, 0.001, 0.03, 0.03, 0.9]
    assert holm(given) == pytest.approx(list(multiplicity.holm(np.array(given)).p_adjusted), abs=1e-15)
    assert holm([]) == []


def streams(drop: float, tasks: int, gates: int, seed: int) -> Floats:
    """(tasks, gates): differences of four answers a task, before and after a drop."""
    dice = np.random.default_rng(seed)
    chance = dice.beta(0.8, 0.8, size=(tasks, gates))
    worse = np.clip(chance * (1 - 2 * drop), 0, 1)
    return np.asarray((dice.binomial(4, worse) - dice.binomial(4, chance)) / 4)


# proves EVL-2: where both packages decide, they decide the same, and ours with no more tasks
def test_sequential_decisions_agree_with_evalsig() -> None:
    design = Design(effect=0.08, variance=0.05)
    table = streams(0.08, 600, 40, 1)
    units = Units(table, np.ones(600))
    capital = wealth(units, 0.0, 0.0, design)
    ours, theirs_stop = [], []
    for gate in range(40):
        reached = np.flatnonzero(capital.below[:, gate] >= 20)
        outcome = sequential_gate(table[:, gate], alpha=0.05, alternative="less", rho=10.0)
        assert len(reached) and outcome.stopped and outcome.delta < 0
        assert capital.p_above[gate] > 0.05, "and not the other way round"
        ours.append(int(reached[0]) + 1)
        theirs_stop.append(outcome.n_pairs)
    assert np.mean(ours) < np.mean(theirs_stop)


# proves EVL-2: an interval that holds at every look is about as wide as evalsig's, and contains what it should
def test_sequential_intervals_are_about_those_of_evalsig() -> None:
    design = Design(effect=0.1, variance=0.05)
    table = streams(0.0, 300, 20, 2)
    for gate in range(20):
        low, high = bounds(Units(table[:, [gate]], np.ones(300)), 0.025, design)
        expected = confidence_sequence(table[:, gate], alpha=0.05, rho=12.0)
        assert low[0] < 0 < high[0]
        assert 0.5 < (high[0] - low[0]) / (2 * expected.half_width) < 1.2


# proves EVL-2: looking after every task, an unchanged model is found worse no more often than was said; clusters too
@pytest.mark.parametrize("clustered", [False, True])
def test_looking_often_costs_no_errors(clustered: bool) -> None:
    table = streams(0.0, 300, 800, 3)
    units = Units(table, np.ones(300))
    if clustered:
        repeated = np.repeat(table[:60], 5, axis=0)
        units = units_of(repeated, [str(each) for each in np.repeat(np.arange(60), 5)])
    design = Design(effect=0.05, variance=0.05, largest=float(units.sizes.max()))
    assert (wealth(units, 0.0, 0.0, design).p_below <= 0.05).mean() <= 0.05


# proves EVL-2: verdict and interval of a sequential gate say the same
def test_sequential_bounds_are_where_the_evidence_ends() -> None:
    units = Units(streams(0.1, 200, 1, 5), np.ones(200))
    design = Design(effect=0.1, variance=0.05)
    low, high = bounds(units, 0.05, design)
    assert high[0] < 0 and wealth(units, 0.0, float(high[0]) + 1e-6, design).p_below[0] <= 0.05
    assert wealth(units, 0.0, float(high[0]) - 1e-6, design).p_below[0] > 0.05
    assert wealth(units, float(low[0]) - 1e-6, 0.0, design).p_above[0] <= 0.05


# proves EVL-2: what is planned for a sequential gate is what happens
def test_sequential_power_is_what_happens() -> None:
    tasks, effect = 400, 0.07
    dice = np.random.default_rng(7)
    table = np.clip(dice.normal(-effect, 0.4, size=(tasks, 1500)), -1, 1)
    spread = float(table.std())
    effect = -float(table.mean())
    capital = wealth(Units(table, np.ones(tasks)), 0.0, 0.0, Design(effect=effect, variance=spread**2))
    assert (capital.p_below <= 0.05).mean() == pytest.approx(sequential_power(effect, spread, tasks), abs=0.06)
    needed = sequential_tasks(effect, spread, power=0.9)
    assert sequential_power(effect, spread, needed) == pytest.approx(0.9, abs=0.002)
    assert sequential_detectable(spread, needed, power=0.9) == pytest.approx(effect, rel=0.01)
    assert needed > tasks_needed(effect, spread, power=0.9), "looking at any time has its price"


def test_the_order_of_asking_is_random_and_fixed() -> None:
    names = [f"task/{number}" for number in range(50)]
    order = order_of(names, 1)
    assert sorted(order) == sorted(names) and order != names and order != order_of(names, 2)
    assert order == order_of(list(reversed(names)) + names, 1), "it depends on the names alone"


def test_units_are_clusters_in_the_order_of_their_first_task() -> None:
    units = units_of([1.0, 0.0, 0.5, 0.25], ["b", "a", "b", "a"])
    assert units.sums[:, 0].tolist() == [1.5, 0.25] and units.sizes.tolist() == [2, 2]
    assert units.means[0] == pytest.approx(1.75 / 4)
    plain = units_of([0.1, 0.4, 0.4, 0.9])
    assert plain.standard_errors[0] == pytest.approx(np.std([0.1, 0.4, 0.4, 0.9], ddof=1) / math.sqrt(4))
    assert plain.differing.tolist() == [2]
