"""proves TRN-8: what a difference between two evaluations is worth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t as student

from trainer.eval_noise import ASSUMED_CORRELATION, RowLosses, noise, paired, smallest_visible

ROWS = 200
NORMAL = 1.959964
"""What Student's quantile tends to."""


def drawn(rng: np.random.Generator, rows: int = ROWS, size: int = 1, spread: float = 0.5) -> RowLosses:
    """Rows of 5 to 120 tokens around 2 nats each; ``size`` rows in a group share what makes them hard."""
    tokens = rng.integers(5, 120, rows)
    groups = np.arange(rows) // size
    hard = rng.normal(0.0, spread, groups.max() + 1)[groups]
    return RowLosses(tokens * (2.0 + hard) + rng.normal(0.0, 1.0, rows), tokens, groups)


# proves TRN-8: token-weighted, not a mean of rows' or batches' means
def test_the_loss_is_a_sum_over_a_sum() -> None:
    losses = RowLosses(np.array([10.0, 1.0]), np.array([2, 8]), np.array([0, 1]))
    assert losses.loss == pytest.approx(1.1) != pytest.approx((5.0 + 0.125) / 2)


# proves TRN-8: the standard error is that of repeated draws, also where rows come in groups of like ones
@pytest.mark.parametrize("size", [1, 5])
def test_the_standard_error_is_the_spread_of_repeated_draws(size: int) -> None:
    rng = np.random.default_rng(1)
    several = [drawn(rng, size=size) for _ in range(400)]
    spread = np.std([losses.loss for losses in several])
    told = np.mean([losses.stderr for losses in several if losses.stderr is not None])
    assert told == pytest.approx(spread, rel=0.1)


def test_rows_of_one_group_count_as_one() -> None:
    one = drawn(np.random.default_rng(2))
    copies = RowLosses(np.tile(one.nats, 4), np.tile(one.tokens, 4), np.tile(one.groups, 4))
    assert copies.stderr == pytest.approx(one.stderr)
    alone = RowLosses(copies.nats, copies.tokens, np.arange(4 * ROWS))
    assert alone.stderr is not None and one.stderr is not None and alone.stderr < 0.51 * one.stderr


# proves TRN-8: the difference of two evaluations is known far better than either
def test_pairing_removes_what_makes_rows_hard() -> None:
    rng = np.random.default_rng(3)
    before = drawn(rng)
    now = RowLosses(before.nats - 0.02 * before.tokens + rng.normal(0, 0.5, ROWS), before.tokens, before.groups)
    found = paired(before, now)
    assert before.stderr is not None and now.stderr is not None and found.noise is not None
    assert found.gain == pytest.approx(0.02, abs=found.noise) and found.gain > found.noise
    assert found.noise < 0.15 * noise((before.stderr**2 + now.stderr**2) ** 0.5, ROWS)


def test_only_the_same_rows_can_be_paired() -> None:
    one, other = drawn(np.random.default_rng(4)), drawn(np.random.default_rng(5))
    with pytest.raises(ValueError, match="same rows"):
        paired(one, other)


# proves TRN-8: in 19 cases of 20 a difference that isn't there stays within its noise
@pytest.mark.parametrize("rows", [4, 12, 200])
def test_noise_covers_what_it_says(rows: int) -> None:
    rng = np.random.default_rng(6)
    inside = 0
    for _ in range(600):
        before = drawn(rng, rows)
        found = paired(before, RowLosses(before.nats + rng.normal(0, 3, rows), before.tokens, before.groups))
        assert found.noise is not None
        inside += abs(found.gain) <= found.noise
    assert 0.92 < inside / 600 < 0.985


@pytest.mark.parametrize("clusters", [2, 3, 4, 6, 11, 31, 1001])
def test_the_quantile_is_students(clusters: int) -> None:
    assert noise(1.0, clusters) == pytest.approx(student.ppf(0.975, clusters - 1), rel=1e-9)
    assert noise(1.0, 10**6) == pytest.approx(NORMAL, rel=1e-4)


def test_a_single_group_says_nothing() -> None:
    losses = RowLosses(np.array([3.0, 4.0]), np.array([2, 2]), np.array([7, 7]))
    assert losses.stderr is None and smallest_visible(losses) is None
    assert paired(losses, losses).noise is None


def test_rows_without_a_label_do_not_count() -> None:
    one = drawn(np.random.default_rng(7))
    more = RowLosses(np.append(one.nats, 0.0), np.append(one.tokens, 0), np.append(one.groups, ROWS))
    assert more.clusters == one.clusters == ROWS
    assert more.stderr == one.stderr and more.loss == one.loss


# proves TRN-8: four times the rows show half the difference
def test_what_can_be_seen_shrinks_with_the_root_of_the_rows() -> None:
    rng = np.random.default_rng(8)
    small, large = smallest_visible(drawn(rng, 400)), smallest_visible(drawn(rng, 1600))
    assert small is not None and large is not None
    assert small / large == pytest.approx(2.0, rel=0.2)
    one = drawn(rng, 400)
    assert one.stderr is not None
    expected = NORMAL * one.stderr * (2 * (1 - ASSUMED_CORRELATION)) ** 0.5
    assert smallest_visible(one) == pytest.approx(expected, rel=0.01)
