# Validation split grouped by normalised response, the part of TRN-8 that the data path delivers.
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.keys import response_key
from trainer.data.split import SplitError, rows_of_fraction, split


def test_answers_that_differ_only_in_space_and_case_are_one_group() -> None:
    assert response_key("Yes,  of\ncourse. ") == response_key("yes, of course.")
    assert response_key("Yes, of course.") != response_key("Yes, of course!")


@given(
    keys=st.lists(st.sampled_from([f"k{n}" for n in range(12)]), min_size=2, max_size=60),
    rows=st.integers(1, 20),
    seed=st.integers(0, 3),
)
def test_no_group_is_on_both_sides_and_no_row_is_lost(keys: list[str], rows: int, seed: int) -> None:
    try:
        train, validation = split(keys, rows=rows, seed=seed)
    except SplitError:
        smallest = min(keys.count(key) for key in keys)
        assert smallest > rows or len(keys) <= rows
        return
    assert sorted(train + validation) == list(range(len(keys)))
    assert not {keys[row] for row in train} & {keys[row] for row in validation}
    assert 0 < len(validation) <= rows


def test_the_choice_depends_on_the_seed_and_not_on_the_order() -> None:
    keys = [f"k{n}" for n in range(200)]
    _, first = split(keys, rows=20, seed=1)
    assert split(keys, rows=20, seed=1)[1] == first
    assert len(first) == 20
    _, reverse = split(keys[::-1], rows=20, seed=1)
    assert {keys[::-1][row] for row in reverse} == {keys[row] for row in first}
    assert split(keys, rows=20, seed=2)[1] != first


def test_an_empty_side_is_refused() -> None:
    with pytest.raises(SplitError, match="no validation rows: 1 of 4 are wanted"):
        split(["a", "a", "b", "b"], rows=1, seed=0)
    with pytest.raises(SplitError, match="no training rows"):
        split(["a", "b"], rows=2, seed=0)


def test_a_fraction_is_at_least_one_row() -> None:
    assert [rows_of_fraction(n, 0.02) for n in (1, 10, 100, 1000)] == [1, 1, 2, 20]
