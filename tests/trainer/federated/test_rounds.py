"""What the coordinator decides."""

import numpy as np
import pytest

from trainer.federated.packed import Flat, Layer, Layout, of_rank, unpack
from trainer.federated.rounds import Arrival, Owing, exact_outcome, expired, is_over, outcome, to_ask, weighing, weights

LAYOUT = Layout(2, (Layer("one", 12, 16), Layer("two", 9, 20)))


def _adapter(seed: int) -> Flat:
    return np.random.default_rng(seed).normal(size=LAYOUT.size).astype(np.float32)


def _products(flat: Flat, layout: Layout = LAYOUT) -> list[np.ndarray]:  # type: ignore[type-arg]
    return [factors.b.astype(np.float64) @ factors.a.astype(np.float64) for factors in unpack(layout, flat)]


def _best(dense: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    u, values, vt = np.linalg.svd(dense, full_matrices=False)
    found: np.ndarray = (u[:, :2] * values[:2]) @ vt[:2]  # type: ignore[type-arg]
    return found


# proves FED-1 (only idle nodes are asked, once a round)
def test_only_idle_nodes_that_have_not_answered_are_asked() -> None:
    assert to_ask(["a", "b", "c"], [Owing("b", 1, 0.0)], ["c"]) == ["a"]


# proves FED-1 (a dead or slow node never makes a round longer than its deadline)
def test_a_round_ends_when_all_have_answered_or_at_its_deadline() -> None:
    owing = [Owing("b", 3, 0.0)]
    assert not is_over(10, 0, 60, 3, owing, arrived=1)
    assert is_over(10, 0, 60, 3, [], arrived=1)
    assert is_over(10, 0, 60, 3, [Owing("b", 2, -50.0)], arrived=1)  # it works on an earlier round
    assert not is_over(10, 0, 60, 3, [], arrived=0)
    assert is_over(60, 0, 60, 3, owing, arrived=0)


def test_a_node_that_never_answers_is_idle_again_when_its_answer_would_be_too_old() -> None:
    asked = [Owing("b", 1, 0.0), Owing("c", 2, 60.0)]
    assert expired(179, asked, 60, late_rounds=2) == []
    assert expired(181, asked, 60, late_rounds=2) == asked[:1]


# proves FED-1 (tokens weigh, lateness costs, nothing counts twice)
def test_weights() -> None:
    flat = _adapter(0)
    arrivals = [
        Arrival("a", 5, 300, flat), Arrival("b", 5, 100, flat), Arrival("c", 4, 400, flat),
        Arrival("c", 2, 900, flat), Arrival("a", 5, 300, flat),
    ]  # fmt: skip
    assert weights(arrivals, 5, late_factor=0.5, late_rounds=2) == {
        ("a", 5): pytest.approx(0.375),
        ("b", 5): pytest.approx(0.125),
        ("c", 4): pytest.approx(0.25),
    }
    assert weights([arrivals[2]], 5, 0.5, 2) == {("c", 4): 0.5}
    assert weights([arrivals[3]], 5, 0.5, 2) == {}


# proves FED-1 (what a node claims of its tokens makes no delta the whole mean)
def test_a_claim_weighs_no_more_than_a_few_times_the_others() -> None:
    said = {("a", 0): 10**12, ("b", 0): 100_000, ("c", 0): 80_000, ("a", 1): 10**13}
    assert weighing(said) == {("a", 0): 360_000, ("a", 1): 360_000, ("b", 0): 100_000, ("c", 0): 80_000}
    assert weighing({("a", 0): 10**12, ("b", 0): 10}) == {("a", 0): 40, ("b", 0): 10}
    assert weighing({("a", 0): 10**12}) == {("a", 0): 10**12}
    huge = [Arrival("a", 0, 10**12, _adapter(0)), Arrival("b", 0, 100_000, _adapter(0))]
    assert weights(huge, 0, 0.5, 2) == {("a", 0): 0.8, ("b", 0): pytest.approx(0.2)}


# proves FED-1 (the outcome of a round is the best rank-r adapter of the mean product)
def test_the_outcome_is_the_mean_of_the_products() -> None:
    one, other = _adapter(1), _adapter(2)
    arrivals = [Arrival("a", 0, 3, one), Arrival("b", 0, 1, other)]
    found = outcome(LAYOUT, {0: _adapter(0)}, 0, arrivals, weights(arrivals, 0, 0.5, 1))
    for got, first, second in zip(_products(found.adapter), _products(one), _products(other), strict=True):
        wanted = _best(0.75 * first + 0.25 * second)
        assert np.linalg.norm(got - wanted) < 1e-5 * np.linalg.norm(wanted)
    assert 0.01 < found.lost_share < 0.6
    assert found.averaging_error > 0.1


# proves FED-1 (a late delta adds what it has learnt, and takes nothing back that others learnt meanwhile)
def test_a_late_delta_is_added_to_where_the_adapter_is_now() -> None:
    begun, now, late = _adapter(3), _adapter(4), _adapter(5)
    arrivals = [Arrival("c", 6, 10, late)]
    found = outcome(LAYOUT, {6: begun, 7: now}, 7, arrivals, {("c", 6): 1.0})
    for got, w, end, begin in zip(
        _products(found.adapter), _products(now), _products(late), _products(begun), strict=True
    ):
        wanted = _best(w + end - begin)
        assert np.linalg.norm(got - wanted) < 1e-5 * np.linalg.norm(wanted)


# proves FED-1 (an outer learning rate goes so far along the mean of the deltas, in both modes)
def test_the_outer_learning_rate() -> None:
    begun, one, other = _adapter(0), _adapter(1), _adapter(2)
    arrivals = [Arrival("a", 0, 300, one), Arrival("b", 0, 100, other)]
    shares = weights(arrivals, 0, 0.5, 1, outer_learning_rate=2.0)
    assert shares == {("a", 0): 1.5, ("b", 0): 0.5}
    found = outcome(LAYOUT, {0: begun}, 0, arrivals, shares)
    nothing = of_rank(LAYOUT, 0)
    exact = exact_outcome(LAYOUT, {0: begun}, 0, arrivals, shares, (nothing, np.empty(0, np.float32)), cap=12)
    wide = of_rank(LAYOUT, exact.frozen.size // of_rank(LAYOUT, 1).size)
    for got, mean, rest, w, first, second in zip(
        _products(found.adapter), _products(exact.adapter), _products(exact.frozen, wide),
        _products(begun), _products(one), _products(other), strict=True,
    ):  # fmt: skip
        wanted = w + 2.0 * (0.75 * first + 0.25 * second - w)
        assert np.linalg.norm(got - _best(wanted)) < 1e-5 * np.linalg.norm(wanted)
        assert np.linalg.norm(mean + rest - wanted) < 1e-5 * np.linalg.norm(wanted)


# proves FED-1 (so it is in exact mode, to 1e-5, where adapter and frozen adapter together are the sum)
def test_a_late_delta_in_exact_mode_is_the_dense_sum() -> None:
    begun, now, late, in_time = _adapter(3), _adapter(4), _adapter(5), _adapter(6)
    held = of_rank(LAYOUT, 3)
    frozen = np.random.default_rng(7).normal(size=held.size).astype(np.float32)
    arrivals = [Arrival("c", 6, 10, late), Arrival("a", 7, 30, in_time)]
    shares = weights(arrivals, 7, late_factor=0.5, late_rounds=1)
    assert shares == {("c", 6): 0.125, ("a", 7): 0.75}
    found = exact_outcome(LAYOUT, {6: begun, 7: now}, 7, arrivals, shares, (held, frozen), cap=12)
    wide = of_rank(LAYOUT, found.frozen.size // of_rank(LAYOUT, 1).size)
    for got, rest, w, before, end, begin, other in zip(
        _products(found.adapter), _products(found.frozen, wide), _products(now), _products(frozen, held),
        _products(late), _products(begun), _products(in_time), strict=True,
    ):  # fmt: skip
        wanted = w + before + 0.125 * (end - begin) + 0.75 * (other - w)
        assert np.linalg.norm(got + rest - wanted) < 1e-5 * np.linalg.norm(wanted)


# proves FED-1 (a delta that came twice counts once)
def test_a_delta_that_came_twice_counts_once() -> None:
    one = Arrival("a", 0, 3, _adapter(1))
    shares = weights([one], 0, 0.5, 1)
    once = outcome(LAYOUT, {0: _adapter(0)}, 0, [one], shares)
    twice = outcome(LAYOUT, {0: _adapter(0)}, 0, [one, one], shares)
    assert np.array_equal(once.adapter, twice.adapter)
