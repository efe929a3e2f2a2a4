# proves TRN-7
from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.pack import WINDOW_ROWS, Ints, pack
from trainer.data.plan import DataPlan, PlanSpec, Segment, build_plan, order


def lengths_of(full: Ints) -> Callable[[int], Ints]:
    return lambda max_length: np.minimum(full, max_length)


def some_lengths(n: int, longest: int, seed: int = 0) -> Ints:
    return np.random.default_rng(seed).integers(1, longest + 1, n)


def spec(**changes: object) -> PlanSpec:
    options: dict[str, object] = {
        "seed": 7, "packing": True, "bins_per_step": 4, "segments": (Segment(64, 0),), "epochs": 1.0,
    }  # fmt: skip
    return PlanSpec(**{**options, **changes})  # type: ignore[arg-type]


def rows_by_epoch(plan: DataPlan) -> dict[int, Counter[int]]:
    found: dict[int, Counter[int]] = {}
    for index in range(plan.total_bins):
        found.setdefault(plan.epoch_of_bin(index), Counter()).update(plan.bin(index).tolist())
    return found


def test_each_epoch_has_its_own_shuffle_from_the_seed() -> None:
    first, second = order(500, 7, 0), order(500, 7, 1)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(500))
    assert first.tolist() != second.tolist()
    assert first.tolist() == order(500, 7, 0).tolist()
    assert first.tolist() != order(500, 8, 0).tolist()


def test_curriculum_shuffles_inside_ascending_levels() -> None:
    difficulty = np.array([3.0, 1.0, 2.0] * 100)
    first, second = order(300, 7, 0, difficulty), order(300, 7, 1, difficulty)
    assert difficulty[first].tolist() == sorted(difficulty.tolist())
    assert first.tolist() != second.tolist()
    assert first[:100].tolist() != sorted(first[:100].tolist())


def test_packing_keeps_the_curriculum() -> None:
    difficulty = np.array([3.0, 1.0, 2.0] * 100)
    plan = build_plan(300, lengths_of(some_lengths(300, 40)), spec(), difficulty)
    levels = [sorted(set(difficulty[plan.bin(index)].tolist())) for index in range(plan.total_bins)]
    assert all(len(level) == 1 for level in levels)
    assert levels == sorted(levels)


@given(n=st.integers(1, 3000), longest=st.integers(1, 100), seed=st.integers(0, 5))
@settings(max_examples=40)
def test_packing_never_splits_or_overfills(n: int, longest: int, seed: int) -> None:
    lengths = some_lengths(n, longest, seed)
    rows = order(n, seed, 0)
    offsets, packed = pack(lengths, rows, 100, packing=True, rng=np.random.default_rng(seed))
    assert sorted(packed.tolist()) == list(range(n)), "every row once, whole"
    sums = np.add.reduceat(lengths[packed], offsets[:-1])
    assert (np.diff(offsets) > 0).all() and sums.max() <= 100
    windows = {row: place // WINDOW_ROWS for place, row in enumerate(rows.tolist())}
    bins = np.split(packed, offsets[1:-1])
    assert all(len({windows[row] for row in members.tolist()}) == 1 for members in bins), "bins stay in their window"
    # Best fit leaves at most one bin of a window less than half full.
    half_empty = Counter(windows[int(members[0])] for members, total in zip(bins, sums, strict=True) if total <= 50)
    assert max(half_empty.values(), default=0) <= 1


def test_bins_of_a_window_are_shuffled() -> None:
    lengths = np.arange(1, 101)
    offsets, packed = pack(lengths, order(100, 0, 0), 100, packing=True, rng=np.random.default_rng(0))
    longest = np.maximum.reduceat(lengths[packed], offsets[:-1]).tolist()
    assert longest != sorted(longest) and longest != sorted(longest, reverse=True)


def test_a_row_longer_than_a_bin_is_refused() -> None:
    with pytest.raises(ValueError, match="row 1 has 101 tokens"):
        pack(np.array([5, 101]), np.array([0, 1]), 100, packing=True, rng=np.random.default_rng(0))


def test_without_packing_every_row_is_a_bin_in_order() -> None:
    plan = build_plan(10, lengths_of(some_lengths(10, 50)), spec(packing=False, epochs=2.0))
    rows = [int(plan.bin(index)[0]) for index in range(plan.total_bins)]
    assert rows == order(10, 7, 0).tolist() + order(10, 7, 1).tolist()


@given(
    n=st.integers(1, 300),
    epochs=st.sampled_from([0.4, 1.0, 2.0, 2.5]),
    packing=st.booleans(),
    bins_per_step=st.integers(1, 9),
    changes=st.lists(st.tuples(st.integers(8, 64), st.integers(0, 40)), max_size=3),
)
@settings(max_examples=60)
def test_every_epoch_has_each_row_once_whatever_changes_midway(
    n: int, epochs: float, packing: bool, bins_per_step: int, changes: list[tuple[int, int]]
) -> None:
    segments = [Segment(64, 0), *(Segment(*change) for change in sorted(changes, key=lambda change: change[1]))]
    full = some_lengths(n, 90, n)
    plan = build_plan(
        n, lengths_of(full), spec(epochs=epochs, packing=packing, bins_per_step=bins_per_step, segments=tuple(segments))
    )
    found = rows_by_epoch(plan)
    for epoch in range(int(epochs)):
        assert found[epoch] == Counter(range(n))
    part = found.get(int(epochs), Counter())
    assert max(part.values(), default=1) == 1 and len(part) == int(np.ceil((epochs - int(epochs)) * n - 1e-9))
    for index in range(plan.total_bins):
        step = index // bins_per_step
        length = [segment.max_length for segment in segments if segment.first_step <= step][-1]
        assert plan.max_length_of_bin(index) == length
        assert np.minimum(full[plan.bin(index)], length).sum() <= (length if packing else 64)


def test_position_is_known_without_walking() -> None:
    full = some_lengths(200, 60)
    plan = build_plan(200, lengths_of(full), spec(epochs=2.5, segments=(Segment(64, 0), Segment(32, 9))))
    rows = tokens = 0
    for step in range(plan.total_steps + 1):
        assert (plan.rows_before_step(step), plan.tokens_before_step(step)) == (rows, tokens)
        for index in range(plan.bins_before_step(step), plan.bins_before_step(step + 1)):
            rows += len(plan.bin(index))
            tokens += int(np.minimum(full[plan.bin(index)], plan.max_length_of_bin(index)).sum())
    assert (rows, tokens) == (plan.planned_rows, plan.planned_tokens) == (500, tokens)
    with pytest.raises(IndexError):
        plan.bin(plan.total_bins)


def test_windows_flow_over_epochs_and_only_the_last_is_short() -> None:
    plan = build_plan(10, lengths_of(some_lengths(10, 5)), spec(packing=False, epochs=3.0))
    assert (plan.total_bins, plan.total_steps) == (30, 8)
    window = [plan.epoch_of_bin(index) for index in range(plan.bins_before_step(2), plan.bins_before_step(3))]
    assert window == [0, 0, 1, 1]
    assert plan.bins_before_step(8) - plan.bins_before_step(7) == 2


def test_max_steps_decides_and_the_data_wraps_with_new_shuffles() -> None:
    plan = build_plan(10, lengths_of(some_lengths(10, 5)), spec(packing=False, max_steps=9, epochs=1.0))
    assert (plan.total_steps, plan.total_bins) == (9, 36)
    rows = [int(plan.bin(index)[0]) for index in range(36)]
    assert rows == [row for epoch in range(4) for row in order(10, 7, epoch).tolist()][:36]


def test_a_later_segment_leaves_what_was_consumed_as_it_was() -> None:
    lengths = lengths_of(some_lengths(400, 64))
    before = build_plan(400, lengths, spec(epochs=2.0))
    after = build_plan(400, lengths, spec(epochs=2.0, segments=(Segment(64, 0), Segment(16, 10))))
    assert [before.bin(n).tolist() for n in range(40)] == [after.bin(n).tolist() for n in range(40)]
    assert before.bin(40).tolist() != after.bin(40).tolist()
    assert before.fingerprint("c", 10) == after.fingerprint("c", 10)
    assert before.fingerprint("c", 11) != after.fingerprint("c", 11)
    assert before.fingerprint("c") != after.fingerprint("c")


def test_the_fingerprint_knows_every_ingredient() -> None:
    lengths = lengths_of(some_lengths(50, 60))
    plans = [
        build_plan(50, lengths, changed)
        for changed in (spec(), spec(seed=8), spec(packing=False), spec(epochs=2.0), spec(bins_per_step=5))
    ]
    plans.append(build_plan(50, lengths, spec(segments=(Segment(64, 0), Segment(32, 10_000)))))
    found = [plan.fingerprint("c") for plan in plans] + [plans[0].fingerprint("other")]
    assert len(set(found)) == len(found)
    assert build_plan(50, lengths, spec()).fingerprint("c") == found[0]


@pytest.mark.parametrize(
    ("n", "changes", "words"),
    [
        (0, {}, "no rows"),
        (5, {"bins_per_step": 0}, "bins_per_step"),
        (5, {"epochs": None}, "max_steps or epochs"),
        (5, {"segments": (Segment(64, 3),)}, "begin at step 0"),
        (5, {"segments": (Segment(64, 0), Segment(32, 8), Segment(16, 4))}, "never go back"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(n: int, changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build_plan(n, lengths_of(some_lengths(max(n, 1), 5)), spec(**changes))


@pytest.mark.parametrize(
    ("curriculum", "length", "fingerprint"),
    [
        (False, {"epochs": 2.5}, "619349099255987c"),
        (False, {"epochs": None, "max_steps": 90}, "14868a33b8fa8473"),
        (True, {"epochs": 2.5}, "3856338634cf1a11"),
        (True, {"epochs": None, "max_steps": 90}, "3546bef87d477197"),
    ],
)
def test_a_run_that_is_under_way_finds_its_plan_again(
    curriculum: bool, length: dict[str, float], fingerprint: str
) -> None:
    """These are the bits of every plan without weights so far: with others no checkpoint could be resumed."""
    lengths = lengths_of(np.random.default_rng(1).integers(1, 90, 700))
    levels = np.repeat([2.0, 1.0], 350) if curriculum else None
    segments = (Segment(64, 0), Segment(32, 20), Segment(16, 70))
    assert build_plan(700, lengths, spec(segments=segments, **length), levels).fingerprint("c")[:16] == fingerprint
