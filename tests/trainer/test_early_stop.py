"""proves TRN-8: early stopping counts only what is larger than noise."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.early_stop import Standing, Verdict, judge, stops
from trainer.eval_noise import RowLosses

TOKENS = np.random.default_rng(0).integers(20, 100, 300)
HARD = np.random.default_rng(1).normal(2.0, 0.5, 300)


def losses(level: float, jitter: float = 0.0, seed: int = 0, rows: int = 300) -> RowLosses:
    """An evaluation at ``level`` nats above the rows' own; ``jitter``: what changes at random from row to row."""
    moved = np.random.default_rng(seed).normal(0.0, jitter, 300)
    return RowLosses((HARD + level + moved)[:rows] * TOKENS[:rows], TOKENS[:rows], np.arange(rows))


def judged(
    levels: list[float], min_delta: float = 0.05, jitter: float = 0.05, rows: int = 300, seed: int = 0
) -> list[Verdict]:
    standing, verdicts = Standing(), []
    for step, level in enumerate(levels):
        found = judge(standing, step, losses(level, jitter, seed=seed + step, rows=rows), min_delta)
        standing = found.standing
        verdicts.append(found.verdict)
    return verdicts


FIRST, BETTER, STALE, UNDECIDED = Verdict.FIRST, Verdict.BETTER, Verdict.STALE, Verdict.UNDECIDED


def test_gains_plateaus_and_losses() -> None:
    assert judged([1.0, 0.8, 0.6, 0.6, 0.7]) == [FIRST, BETTER, BETTER, STALE, STALE]


# proves TRN-8: small gains add up against the same reference
def test_many_small_gains_are_one() -> None:
    assert judged([1.0, 0.97, 0.94, 0.91]) == [FIRST, STALE, BETTER, STALE]


# proves TRN-8: where the noise is larger than the difference asked for, nothing counts
@pytest.mark.parametrize("seed", [0, 20, 30])
def test_noise_never_counts(seed: int) -> None:
    """Seeds with gains of either sign, up to 0.24; one case of twenty would go beyond its noise."""
    noisy = judged([1.0, 1.0, 1.05, 0.98, 1.02, 1.01], min_delta=0.05, jitter=0.4, rows=12, seed=seed)
    assert noisy[0] is FIRST and set(noisy[1:]) == {UNDECIDED}
    standing = Standing()
    for step in range(6):
        standing = judge(standing, step, losses(1.0, 0.4, seed + step, rows=12), 0.05).standing
    assert standing.stale == 0 and not stops(standing, 1)


def test_the_reference_stays_until_there_is_a_better_one() -> None:
    first = judge(Standing(), 0, losses(1.0), 0.05).standing
    stale = judge(first, 10, losses(0.99), 0.05).standing
    assert stale.reference is not None and stale.reference.step == 0
    assert (stale.step, stale.stale, stale.loss) == (10, 1, losses(0.99).loss)
    better = judge(stale, 20, losses(0.5), 0.05).standing
    assert better.reference is not None and (better.reference.step, better.stale) == (20, 0)


def test_patience() -> None:
    standing = Standing()
    for step, (level, over) in enumerate([(1.0, False), (1.0, False), (1.0, True), (0.5, False)]):
        standing = judge(standing, step, losses(level), 0.05).standing
        assert stops(standing, 2) is over
        assert not stops(standing, None)


# proves TRN-8: rows of another length are no basis for a comparison (a shortened sequence)
def test_other_rows_start_anew() -> None:
    standing = judge(Standing(), 0, losses(1.0), 0.05).standing
    cut = losses(2.0)
    found = judge(standing, 5, RowLosses(cut.nats / 2, cut.tokens // 2, cut.groups), 0.05)
    assert found.verdict is FIRST and found.difference is None
    assert found.standing.reference is not None and found.standing.reference.step == 5


@pytest.mark.parametrize("min_delta", [0.001, 0.05, 0.5])
def test_a_gain_beyond_noise_but_below_what_matters_is_stale(min_delta: float) -> None:
    (_, verdict) = judged([1.0, 0.9], min_delta=min_delta, jitter=0.001)
    assert verdict is (BETTER if min_delta < 0.1 else STALE)
