# proves DAT-1: weights are shares of the learnt tokens, whatever the sources' sizes and lengths
from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.mix_spec import MixSpec
from trainer.data.mixture import Ints, Mixture, mixed_epochs, passes
from trainer.data.plan import DataPlan, PlanSpec, Segment, build_plan


def mixture(sizes: list[int], weights: list[float], longest: int = 40, seed: int = 0) -> Mixture:
    names = tuple(f"s{number}" for number in range(len(sizes)))
    learnt = np.random.default_rng(seed).integers(1, longest + 1, sum(sizes))
    sources = np.repeat(np.arange(len(sizes)), sizes)
    return Mixture(MixSpec(names, names, tuple(weights)), sources, lambda length: np.minimum(learnt, length))


def shares(mixed: Mixture, rows: Ints, length: int = 64) -> list[float]:
    counts = np.bincount(mixed.sources[rows], weights=mixed.learnt(length)[rows], minlength=len(mixed.spec.names))
    return (counts / counts.sum()).tolist()


def test_weights_are_shares_of_learnt_tokens_and_not_of_rows() -> None:
    mixed = mixture([1500, 4000, 7000], [6, 1, 0.5])
    rows = mixed_epochs(mixed, 7)(64)
    assert shares(mixed, rows) == pytest.approx([0.8, 1 / 7.5, 0.5 / 7.5], rel=0.01)
    assert Counter(mixed.sources[rows].tolist())[0] == pytest.approx(4 * 1500, abs=2), "passes are limited"


def test_every_part_of_an_epoch_has_the_shares() -> None:
    mixed = mixture([300, 900, 500], [2, 1, 1])
    rows = mixed_epochs(mixed, 7)(64)
    for part in np.array_split(rows, 4):
        assert shares(mixed, part) == pytest.approx([0.5, 0.25, 0.25], abs=0.03)


def test_no_row_comes_again_before_all_others_of_its_source_came() -> None:
    mixed = mixture([90, 700], [1, 1])
    next_epoch = mixed_epochs(mixed, 3)
    rows = np.concatenate([next_epoch(64) for _ in range(5)])
    for source in (0, 1):
        times = Counter(rows[mixed.sources[rows] == source].tolist())
        assert max(times.values()) - min(times.values() if len(times) == (90, 700)[source] else [0]) <= 1


@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    weights=st.lists(st.floats(0.1, 10), min_size=4, max_size=4),
    seed=st.integers(0, 50),
)
@settings(max_examples=40)
def test_over_some_epochs_the_error_is_a_row_per_source(sizes: list[int], weights: list[float], seed: int) -> None:
    mixed = mixture(sizes, weights[: len(sizes)], seed=seed)
    next_epoch = mixed_epochs(mixed, seed)
    rows = np.concatenate([next_epoch(64) for _ in range(3)])
    learnt = mixed.learnt(64)
    total = 3 * passes(
        [int(learnt[mixed.sources == number].sum()) for number in range(len(sizes))], mixed.spec.shares(), 4.0
    ).tokens
    for number, share in enumerate(mixed.spec.shares()):
        got = learnt[rows][mixed.sources[rows] == number].sum()
        assert abs(got - share * total) <= 20


def test_passes_say_what_an_epoch_is() -> None:
    found = passes([1000, 1000, 1000], [0.5, 0.25, 0.25], 4.0)
    assert found.repeats.tolist() == pytest.approx([1.5, 0.75, 0.75]) and found.tokens == 3000
    limited = passes([100, 10_000], [0.5, 0.5], 4.0)
    assert limited.repeats.tolist() == pytest.approx([4.0, 0.04]) and limited.tokens == pytest.approx(800)
    with pytest.raises(ValueError, match="source 1 has nothing to learn"):
        passes([1, 0], [0.5, 0.5], 4.0)


def spec(**changes: object) -> PlanSpec:
    options: dict[str, object] = {
        "seed": 7, "packing": True, "bins_per_step": 4, "segments": (Segment(64, 0),), "epochs": 2.0,
    }  # fmt: skip
    return PlanSpec(**{**options, **changes})  # type: ignore[arg-type]


def test_the_plan_honours_the_weights_and_a_shorter_window_takes_over_what_is_left() -> None:
    mixed = mixture([120, 400], [3, 1], longest=60)
    lengths = mixed.learnt  # as if everything were learnt
    plan = build_plan(520, lengths, spec(), mixture=mixed)
    rows = np.concatenate([plan.bin(index) for index in range(plan.total_bins)])
    assert shares(mixed, rows) == pytest.approx([0.75, 0.25], rel=0.02)
    assert plan.fingerprint("c") != build_plan(520, lengths, spec()).fingerprint("c")
    shortened = build_plan(520, lengths, spec(segments=(Segment(64, 0), Segment(16, 9))), mixture=mixed)
    assert [plan.bin(n).tolist() for n in range(36)] == [shortened.bin(n).tolist() for n in range(36)]
    assert first_epoch(plan) == first_epoch(shortened), "the rest of the epoch is packed anew, not drawn anew"
    assert sum(len(rows) for rows in shortened.rows_by_length().values()) == shortened.planned_rows


def first_epoch(plan: DataPlan) -> Counter[int]:
    bins = [plan.bin(index) for index in range(plan.total_bins) if plan.epoch_of_bin(index) == 0]
    return Counter(np.concatenate(bins).tolist())


def test_a_curriculum_stays_in_order() -> None:
    mixed = mixture([100, 100], [3, 1])
    difficulty = np.tile(np.array([2.0, 1.0]), 100)
    plan = build_plan(200, mixed.learnt, spec(packing=False, epochs=1.0), difficulty, mixed)
    levels = [float(difficulty[plan.bin(index)[0]]) for index in range(plan.total_bins)]
    assert levels == sorted(levels) and len(set(levels)) == 2
