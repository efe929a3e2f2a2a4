"""Rows longer than the window: the answer keeps at least half of it, and every lost token is counted.

Let ``n`` tokens be a prompt of ``p`` (all before the last assistant answer, earlier turns included) and an
answer of ``a`` (that answer and what the template writes after it), and ``L`` the window. If ``n > L``:

    answer's right   h = min(a, ceil(L / 2))
    prompt keeps     b = min(p, L - h)       its first ceil(b / 2) and its last floor(b / 2) tokens
    answer keeps     k = min(a, L - b)       its first k tokens

so the prompt loses its middle first, and the answer its tail only when the prompt is already within its
half. The result has exactly ``L`` tokens. Labels move with their tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Fitted:
    """A row inside the window: ``ids`` and ``labels`` of equal length, and the tokens that it lost."""

    ids: Ids
    labels: Mask
    trimmed_prompt_tokens: int
    trimmed_answer_tokens: int


@dataclass(frozen=True)
class Cut:
    """What is kept: ``[0, head)``, ``[tail, answer)`` and ``[answer, end)`` of a row."""

    head: int
    tail: int
    answer: int
    end: int


def cut(prompt: int, answer: int, max_length: int) -> Cut:
    """The rule above for ``prompt`` + ``answer`` tokens. Raises ValueError for a window without room."""
    if max_length < 1:
        raise ValueError(f"max_length is {max_length}, it must be at least 1")
    if prompt + answer <= max_length:
        return Cut(prompt, prompt, prompt, prompt + answer)
    budget = min(prompt, max_length - min(answer, (max_length + 1) // 2))
    return Cut((budget + 1) // 2, prompt - budget // 2, prompt, prompt + min(answer, max_length - budget))


def fit(ids: Ids, labels: Mask, max_length: int) -> Fitted:
    """The row cut to ``max_length`` tokens; a row that fits is returned as it is (no copy).

    A row without labels counts as all prompt.
    """
    if len(ids) <= max_length:
        return Fitted(ids, labels, 0, 0)
    prompt = last_answer_start(labels)
    kept = cut(prompt, len(ids) - prompt, max_length)
    pieces = [slice(0, kept.head), slice(kept.tail, kept.answer), slice(kept.answer, kept.end)]
    return Fitted(
        np.concatenate([ids[piece] for piece in pieces]),
        np.concatenate([labels[piece] for piece in pieces]),
        kept.tail - kept.head,
        len(ids) - kept.end,
    )


def last_answer_start(labels: Mask) -> int:
    """Index of the first token of the last run of labelled tokens; the length when there is none."""
    learnt = np.flatnonzero(labels)
    if not len(learnt):
        return len(labels)
    before = np.flatnonzero(~labels[: learnt[-1]])
    return int(before[-1]) + 1 if len(before) else 0
