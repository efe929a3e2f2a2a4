# proves DAT-1: weights are shares of the learnt tokens, whatever the sources' sizes and lengths
from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.mix_spec import MixSpec
from trainer.data.mixture import Ints, MixedRows, Mixture, passes
from trainer.data.plan import DataPlan, PlanSpec, Segment, build_plan
from trainer.data.token_rows import TokenRows


def mixture(sizes: list[int], weights: list[float], longest: int = 40, seed: int = 0) -> Mixture:
    names = tuple(f"s{number}" for number in range(len(sizes)))
    learnt = np.random.default_rng(seed).integers(1, longest + 1, sum(sizes))
    sources = np.repeat(np.arange(len(sizes)), sizes)
    return Mixture(MixSpec(names, names, tuple(weights)), sources, lambda length: np.minimum(learnt, length))


def shares(mixed: Mixture, rows: Ints, length: int = 64) -> list[float]:
    counts = np.bincount(mixed.sources[rows], weights=mixed.learnt(length)[rows], minlength=len(mixed.spec.names))
    found: list[float] = (counts / counts.sum()).tolist()
    return found


def test_weights_are_shares_of_learnt_tokens_and_not_of_rows() -> None:
    mixed = mixture([1500, 4000, 7000], [6, 1, 0.5])
    rows = MixedRows(mixed, 7).draw(64)
    assert shares(mixed, rows) == pytest.approx([0.8, 1 / 7.5, 0.5 / 7.5], rel=0.01)
    assert Counter(mixed.sources[rows].tolist())[0] == pytest.approx(4 * 1500, abs=2), "passes are limited"


def test_every_part_of_an_epoch_has_the_shares() -> None:
    mixed = mixture([300, 900, 500], [2, 1, 1])
    rows = MixedRows(mixed, 7).draw(64)
    for part in np.array_split(rows, 4):
        assert shares(mixed, part) == pytest.approx([0.5, 0.25, 0.25], abs=0.03)


def test_no_row_comes_again_before_all_others_of_its_source_came() -> None:
    mixed = mixture([90, 700], [1, 1])
    next_epoch = MixedRows(mixed, 3).draw
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
    next_epoch = MixedRows(mixed, seed).draw
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
    assert sum(len(rows) for rows in shortened.rows_by_length().values()) == shortened.planned_rows


def planned_shares(plan: DataPlan, mixed: Mixture) -> list[float]:
    """Every row counted in the window in which it is learnt from."""
    count = len(mixed.spec.names)
    learnt = np.zeros(count)
    for length, rows in plan.rows_by_length().items():
        learnt += np.bincount(mixed.sources[rows], weights=mixed.learnt(length)[rows], minlength=count)
    found: list[float] = (learnt / learnt.sum()).tolist()
    return found


def long_and_short(weights: tuple[float, float] = (1.0, 1.0)) -> Mixture:
    """Answers of 200 and of 30 tokens: a window of 32 changes what a row of the first counts."""
    sources = np.repeat([0, 1], 1000)
    full = np.where(sources == 0, 200, 30)
    spec = MixSpec(("long", "short"), ("x", "x"), weights)
    return Mixture(spec, sources, lambda length: np.minimum(full, length))


@pytest.mark.parametrize("segments", [
    (Segment(256, 0), Segment(32, 5)),
    (Segment(256, 0), Segment(64, 10), Segment(32, 60)),
    (Segment(32, 0), Segment(256, 40)),
])  # fmt: skip
def test_shares_hold_when_the_window_changes_in_the_middle_of_an_epoch(segments: tuple[Segment, ...]) -> None:
    mixed = long_and_short()
    plan = build_plan(2000, mixed.learnt, spec(segments=segments, bins_per_step=8, epochs=1.0), mixture=mixed)
    assert planned_shares(plan, mixed) == pytest.approx([0.5, 0.5], abs=0.005)
    times = [times for length, rows in plan.rows_by_length().items() for times in [np.bincount(rows, minlength=2000)]]
    for source in (0, 1):
        passes = np.sum(times, axis=0)[mixed.sources == source]
        assert passes.max() - passes.min() <= 1, "no row again before all others of its source"
    # A resumed run builds the same plan, and a later change of the window leaves what is done as it is.
    again = build_plan(2000, mixed.learnt, spec(segments=segments, bins_per_step=8, epochs=1.0), mixture=mixed)
    assert again.fingerprint("c") == plan.fingerprint("c")
    step = plan.total_steps - 3
    changed = spec(segments=(*segments, Segment(16, step)), bins_per_step=8, epochs=1.0)
    later = build_plan(2000, mixed.learnt, changed, mixture=mixed)
    assert later.fingerprint("c", step) == plan.fingerprint("c", step)


def test_a_part_of_an_epoch_has_the_shares_even_with_a_curriculum() -> None:
    mixed = mixture([1000, 1000], [1, 3], longest=60)
    levels = np.where(mixed.sources == 0, 1.0, 2.0)
    for epochs in (0.5, 1.0, 1.25):
        for difficulty in (None, levels):
            plan = build_plan(2000, mixed.learnt, spec(epochs=epochs), difficulty, mixed)
            assert planned_shares(plan, mixed) == pytest.approx([0.25, 0.75], abs=0.005)
    tiny = build_plan(2000, mixed.learnt, spec(epochs=1e-6), mixture=mixed)
    assert tiny.planned_rows == 1


def test_a_curriculum_stays_in_order() -> None:
    mixed = mixture([100, 100], [3, 1])
    difficulty = np.tile(np.array([2.0, 1.0]), 100)
    plan = build_plan(200, mixed.learnt, spec(packing=False, epochs=1.0), difficulty, mixed)
    levels = [float(difficulty[plan.bin(index)[0]]) for index in range(plan.total_bins)]
    assert levels == sorted(levels) and len(set(levels)) == 2


def test_shares_that_the_plan_does_not_keep_are_warned_about() -> None:
    from trainer.data.built import mixture_warnings, planned_mixture

    mixed = mixture([1000, 1000], [1, 3], longest=60)
    levels = np.where(mixed.sources == 0, 1.0, 2.0)
    learnt = mixed.learnt(64)
    rows = TokenRows(
        np.zeros(learnt.sum() + 2000, np.int32),
        np.ones(learnt.sum() + 2000, np.bool_),
        np.concatenate([[0], np.cumsum(learnt + 1)]),
        ("",) * 2000, levels, np.arange(2000), mixed.sources, mixed.spec,
    )  # fmt: skip
    found = {}
    for options in ({"epochs": 1.0}, {"epochs": None, "max_steps": 20}):
        plan = build_plan(2000, rows.lengths, spec(**options), rows.difficulty, rows.mixture)
        planned = planned_mixture(plan, rows)
        assert planned is not None
        found[options["epochs"]] = mixture_warnings(planned[1])
    assert found[1.0] == []
    assert len(found[None]) == 2 and "source s0 gets 100.00%" in found[None][0] and "declares 25.00%" in found[None][0]
    assert "train.max_steps cuts" in found[None][0]
