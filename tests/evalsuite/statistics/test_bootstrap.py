"""Intervals against scipy's, against exact ones, and where few tasks are all there is."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from evalsuite.statistics.bootstrap import Bca, Percentile, bca, bounded, drawn_means, fitting, percentile
from evalsuite.statistics.intervals import beta_interval, clopper_pearson, score_interval
from evalsuite.statistics.units import Floats, Units, units_of

LEVEL = 0.95


def skewed(tasks: int = 60, seed: int = 3) -> Floats:
    return np.random.default_rng(seed).exponential(size=tasks) - 0.7


# proves EVL-1: percentile and BCa are scipy's to the last digits, given the same draws
@pytest.mark.parametrize("method", ["percentile", "BCa"])
def test_intervals_are_those_of_scipy(method: str) -> None:
    values = skewed()
    theirs = stats.bootstrap((values,), np.mean, n_resamples=2000, method=method, rng=np.random.default_rng(1))
    draws = theirs.bootstrap_distribution[:, None]
    ours: Percentile | Bca
    if method == "percentile":
        ours = Percentile(draws)
    else:
        made = bca(units_of(values), 1000)
        observed = values.mean()
        share = ((draws < observed).mean(axis=0) + (draws <= observed).mean(axis=0)) / 2
        ours = Bca(draws, stats.norm.ppf(share), made.acceleration)
    found = (ours.lower(0.975)[0], ours.upper(0.975)[0])
    assert found == pytest.approx(tuple(theirs.confidence_interval), abs=1e-12)


# proves EVL-1: clusters are drawn whole, as scipy does when it is given their sums and sizes
@pytest.mark.parametrize("method", ["percentile", "BCa"])
def test_clustered_intervals_agree_with_scipy(method: str) -> None:
    dice = np.random.default_rng(2)
    clusters = [str(each) for each in dice.integers(0, 40, size=200)]
    effect = dice.normal(size=40)
    values = np.array([effect[int(name)] + dice.normal() for name in clusters])
    units = units_of(values, clusters)

    def mean(sums: Floats, sizes: Floats, axis: int = -1) -> Floats:
        return np.asarray(sums.sum(axis=axis) / sizes.sum(axis=axis))

    theirs = stats.bootstrap(
        (units.sums[:, 0], units.sizes), mean, paired=True, n_resamples=20_000, method=method,
        rng=np.random.default_rng(1),
    )  # fmt: skip
    drawn = 20_000
    ours = percentile(units, drawn) if method == "percentile" else bca(units, drawn, widened=False)
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    found = np.array([ours.lower(0.975)[0], ours.upper(0.975)[0]])
    assert np.abs(found - np.array(theirs.confidence_interval)).max() < 0.03 * width
    assert drawn_means(units, drawn, 0).std() == pytest.approx(theirs.standard_error, rel=0.02)
    alone = percentile(units_of(values), drawn)
    assert (found[1] - found[0]) > 1.3 * (alone.upper(0.975)[0] - alone.lower(0.975)[0]), "clusters widen it"


# proves EVL-2: p-values and bounds say the same
@pytest.mark.parametrize("kind", ["percentile", "bca", "bounded"])
def test_a_bound_is_where_the_p_value_is_the_level(kind: str) -> None:
    units = units_of(np.clip(skewed(80) / 4, -1, 1))
    made = {"percentile": percentile, "bca": bca}.get(kind)
    found = made(units) if made else bounded(units, -1, 1)
    assert found.p_above(float(found.lower(LEVEL)[0]))[0] == pytest.approx(0.05, abs=0.002)
    assert found.p_below(float(found.upper(LEVEL)[0]))[0] == pytest.approx(0.05, abs=0.002)
    assert found.p_above(-1.0)[0] < 0.001 and found.p_below(1.0)[0] < 0.001


# proves EVL-1: with few tasks the interval is the exact one of Clopper and Pearson
@pytest.mark.parametrize(("accepted", "samples"), [(0, 5), (3, 10), (10, 10), (29, 30)])
def test_the_bounded_bootstrap_is_exact_for_shares(accepted: int, samples: int) -> None:
    values = np.array([1.0] * accepted + [0.0] * (samples - accepted))
    exact = stats.binomtest(accepted, samples).proportion_ci(0.95, "exact")
    ours = clopper_pearson(accepted, samples)
    assert (ours.low, ours.high) == pytest.approx((exact.low, exact.high), abs=1e-12)
    drawn = bounded(units_of(values), 0, 1, 50_000)
    assert (drawn.lower(0.975)[0], drawn.upper(0.975)[0]) == pytest.approx((exact.low, exact.high), abs=0.01)
    assert score_interval(values).method == "clopper_pearson"


# proves EVL-2: for one answer a task it is the exact test of McNemar
@pytest.mark.parametrize(("worse", "better"), [(5, 0), (4, 0), (9, 2), (3, 3)])
def test_the_bounded_bootstrap_is_mcnemar_for_single_answers(worse: int, better: int) -> None:
    values = np.array([-1.0] * worse + [1.0] * better + [0.0] * 40)
    exact = stats.binomtest(worse, worse + better, alternative="greater").pvalue
    assert bounded(units_of(values), -1, 1, 30_000).p_below(0.0)[0] == pytest.approx(exact, abs=0.01)


# proves EVL-2: tasks without any difference are no proof that there is none
def test_a_few_equal_tasks_show_little() -> None:
    five = fitting(units_of(np.zeros(5)), -1, 1)
    assert five.method == "bounded" and five.lower(LEVEL)[0] == pytest.approx(-(1 - 0.05 ** (1 / 5)), abs=0.02)
    many = fitting(units_of(np.zeros(1000)), -1, 1)
    assert many.method == "bounded" and -0.004 < many.lower(LEVEL)[0] < -0.002
    assert fitting(units_of(np.random.default_rng(0).normal(0, 0.2, 200)), -1, 1).method == "bca"


def test_the_bayesian_interval_is_scipys() -> None:
    found = beta_interval(3, 11, 0.9)
    assert (found.low, found.high) == pytest.approx(stats.beta(3.5, 8.5).interval(0.9), abs=1e-12)


# proves EVL-1: so many columns at once are what each would be alone
def test_columns_are_drawn_together() -> None:
    dice = np.random.default_rng(4)
    table = dice.normal(size=(70, 3))
    clusters = [str(each) for each in dice.integers(0, 30, size=70)]
    together = bca(units_of(table, clusters), 3000, 5)
    alone = bca(units_of(table[:, 1], clusters), 3000, 5)
    assert together.lower(LEVEL)[1] == pytest.approx(alone.lower(LEVEL)[0], abs=1e-12)
    means = together.means
    assert np.corrcoef(means[:, 0], percentile(units_of(table, clusters), 3000, 5).means[:, 0])[0, 1] > 0.999


# proves EVL-2: with few clusters, an interval misses no more often than it says
def test_the_bounded_bootstrap_covers_with_few_clusters() -> None:
    dice = np.random.default_rng(6)
    gates, clusters, size = 600, 8, 5
    chance = dice.beta(0.8, 0.8, size=(clusters, 1, gates))
    draws = dice.binomial(1, np.broadcast_to(chance, (clusters, size, gates))) - dice.binomial(
        1, np.broadcast_to(chance, (clusters, size, gates))
    )
    table = draws.reshape(clusters * size, gates).astype(float)
    names = [str(each) for each in np.repeat(np.arange(clusters), size)]
    units = units_of(table, names)
    assert (bounded(units, -1, 1, 2000).p_below(0.0) <= 0.05).mean() <= 0.05


# proves EVL-1: clusters of very different sizes are no more evidence than the large ones
@pytest.mark.parametrize(("small", "large"), [(60, 200), (60, 60), (30, 500)])
def test_one_large_cluster_proves_nothing(small: int, large: int) -> None:
    dice = np.random.default_rng(small + large)
    sizes = np.array([float(large), *[1.0] * small])
    wrong, times = 0, 200
    for seed in range(times):
        chances = dice.choice([-0.6, 0.6], size=len(sizes)) + dice.normal(0, 0.05, size=len(sizes))
        units = Units((chances * sizes)[:, None], sizes)
        wrong += bool(fitting(units, -1.0, 1.0, 500, seed).p_above(0.0)[0] <= 0.05)
    assert wrong <= times * 0.08
