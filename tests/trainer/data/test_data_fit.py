# proves TRN-6
from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.fit import Fitted, Ids, Mask, fit, last_answer_start


def row(prompt: int, answer: int, after: int = 0) -> tuple[Ids, Mask]:
    """Ids 0..n-1, so that what is kept can be read off; labels on the answer."""
    labels = np.array([False] * prompt + [True] * answer + [False] * after)
    return np.arange(prompt + answer + after, dtype=np.int32), labels


def kept(fitted: Fitted) -> tuple[list[int], list[int]]:
    return fitted.ids.tolist(), np.flatnonzero(fitted.labels).tolist()


def test_a_short_answer_is_kept_whole_and_the_prompt_loses_its_middle() -> None:
    fitted = fit(*row(20, 3, after=1), 11)
    # 4 tokens of answer leave 7: the first 4 and the last 3 of the prompt
    assert kept(fitted) == ([0, 1, 2, 3, 17, 18, 19, 20, 21, 22, 23], [7, 8, 9])
    assert (fitted.trimmed_prompt_tokens, fitted.trimmed_answer_tokens) == (13, 0)


def test_a_long_answer_keeps_half_the_window_and_loses_its_tail() -> None:
    fitted = fit(*row(20, 30), 9)
    assert kept(fitted) == ([0, 1, 18, 19, 20, 21, 22, 23, 24], [4, 5, 6, 7, 8])
    assert (fitted.trimmed_prompt_tokens, fitted.trimmed_answer_tokens) == (16, 25)


def test_a_short_prompt_leaves_the_rest_of_the_window_to_the_answer() -> None:
    fitted = fit(*row(2, 30), 10)
    assert kept(fitted) == (list(range(10)), list(range(2, 10)))
    assert (fitted.trimmed_prompt_tokens, fitted.trimmed_answer_tokens) == (0, 22)


def test_earlier_answers_stay_labelled_where_they_are_kept() -> None:
    ids = np.arange(16, dtype=np.int32)
    labels = np.zeros(16, np.bool_)
    labels[[1, 2, 6, 7, 14, 15]] = True
    fitted = fit(ids, labels, 8)
    assert last_answer_start(labels) == 14
    assert kept(fitted) == ([0, 1, 2, 11, 12, 13, 14, 15], [1, 2, 6, 7])


@given(prompt=st.integers(0, 60), answer=st.integers(1, 60), after=st.integers(0, 3), max_length=st.integers(1, 70))
def test_the_promise_holds_for_all_sizes(prompt: int, answer: int, after: int, max_length: int) -> None:
    ids, labels = row(prompt, answer, after)
    fitted = fit(ids, labels, max_length)
    assert len(fitted.ids) == len(fitted.labels) == min(len(ids), max_length)
    assert len(fitted.ids) + fitted.trimmed_prompt_tokens + fitted.trimmed_answer_tokens == len(ids)
    assert answer + after - fitted.trimmed_answer_tokens >= min(answer + after, max_length / 2)
    assert (np.diff(fitted.ids) > 0).all(), "what is kept stays in order"
    assert (fitted.labels == labels[fitted.ids]).all(), "labels move with their tokens"
    if fitted.trimmed_answer_tokens and fitted.trimmed_prompt_tokens:
        assert prompt - fitted.trimmed_prompt_tokens == max_length // 2
    head, tail = fitted.ids < prompt, (fitted.ids < prompt).sum()
    assert fitted.ids[head][: (tail + 1) // 2].tolist() == list(range((tail + 1) // 2))
    if len(ids) <= max_length:
        assert fitted.ids is ids and fitted.labels is labels
