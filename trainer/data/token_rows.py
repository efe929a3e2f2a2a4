"""Rendered rows as flat arrays, at their full length; the window is applied when a row is taken out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from trainer.data.fit import Fitted, Ids, Mask, cut, fit, last_answer_start
from trainer.data.histogram import HISTOGRAM_BIN_TOKENS
from trainer.data.mix_spec import MixSpec
from trainer.data.mixture import Mixture
from trainer.data.pack import Ints
from trainer.data.plan import Floats
from trainer.data.render import Rendered


@dataclass(frozen=True)
class Trimmed:
    """What a window costs: rows that are cut, their lost tokens, and rows left with nothing to learn."""

    rows: int
    prompt_tokens: int
    answer_tokens: int
    rows_without_label: int


@dataclass(frozen=True)
class TokenRows:
    """Row ``i`` is ``ids[offsets[i]:offsets[i + 1]]`` with ``labels`` beside it.

    ``keys`` are the rows' normalised responses (see keys.response_key), ``difficulty`` is None without a
    curriculum. Rows of the same number in ``groups`` have the same answer or are near duplicates (see groups.py),
    over training and validation rows together. ``sources`` is the row's index among the sources of ``mix``, which
    declares their weights; both are None without one.
    """

    ids: Ids
    labels: Mask
    offsets: Ints
    keys: tuple[str, ...]
    difficulty: Floats | None
    groups: Ints
    sources: Ints | None = None
    mix: MixSpec | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def full_lengths(self) -> Ints:
        return np.diff(self.offsets)

    def lengths(self, max_length: int) -> Ints:
        """Tokens per row after :meth:`fitted`: a row that is cut has exactly ``max_length``."""
        return np.minimum(self.full_lengths, max_length)

    def fitted(self, row: int, max_length: int) -> Fitted:
        span = slice(self.offsets[row], self.offsets[row + 1])
        return fit(self.ids[span], self.labels[span], max_length)

    def select(self, rows: Sequence[int]) -> TokenRows:
        """A copy with these rows alone, in this order."""
        spans = [slice(self.offsets[row], self.offsets[row + 1]) for row in rows]
        index = np.asarray(rows, dtype=np.int64)
        return TokenRows(
            np.concatenate([np.zeros(0, np.int32), *(self.ids[span] for span in spans)]),
            np.concatenate([np.zeros(0, np.bool_), *(self.labels[span] for span in spans)]),
            np.concatenate([np.zeros(1, np.int64), np.cumsum(self.full_lengths[index])]),
            tuple(self.keys[row] for row in rows),
            None if self.difficulty is None else self.difficulty[index],
            self.groups[index],
            None if self.sources is None else self.sources[index],
            self.mix,
        )

    @property
    def mixture(self) -> Mixture | None:
        """What the data plan needs to give every source its share."""
        if self.mix is None or self.sources is None:
            return None
        return Mixture(self.mix, self.sources, cache(self.label_counts))

    def label_counts(self, max_length: int) -> Ints:
        """Learnt tokens per row after fitting; the first token of a row is never predicted, so never learnt."""
        learnt = self.labels.copy()
        learnt[self.offsets[:-1][self.full_lengths > 0]] = False
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(learnt, dtype=np.int64)])
        counts = np.diff(sums[self.offsets])
        for row in np.flatnonzero(self.full_lengths > max_length).tolist():
            counts[row] = int(self.fitted(row, max_length).labels[1:].sum())
        return counts

    def trimmed(self, max_length: int) -> Trimmed:
        """What fitting all rows to ``max_length`` loses."""
        prompt = answer = 0
        long = np.flatnonzero(self.full_lengths > max_length).tolist()
        for row in long:
            labels = self.labels[self.offsets[row] : self.offsets[row + 1]]
            start = last_answer_start(labels)
            kept = cut(start, len(labels) - start, max_length)
            prompt += kept.tail - kept.head
            answer += len(labels) - kept.end
        return Trimmed(len(long), prompt, answer, int((self.label_counts(max_length) == 0).sum()))

    def histogram(self) -> list[int]:
        """Rows by full length: entry ``i`` counts rows of more than ``64 i`` and at most ``64 (i + 1)`` tokens.

        So the rows that a window of ``64 k`` tokens cuts are the sum from entry ``k`` on.
        """
        return length_histogram(self.full_lengths)

    def fingerprint(self) -> str:
        """SHA-256 over ids, labels, offsets, difficulty, sources and their weights."""
        digest = hashlib.sha256(f"{len(self)} {self.difficulty is not None}".encode())
        for array in (self.offsets, self.ids, self.labels, self.difficulty, self.sources):
            if array is not None:
                digest.update(np.ascontiguousarray(array).data)
        if self.mix is not None:
            digest.update(repr((self.mix.weights, self.mix.max_repeats)).encode())
        return digest.hexdigest()


def token_rows(rows: Iterable[tuple[Rendered, str, float | None]], groups: Sequence[int] | None = None) -> TokenRows:
    """Flat arrays from ``(rendered, key, difficulty)``; difficulty is None for all rows or for none.

    ``groups``: by row; None makes a group of each answer.
    """
    ids: list[Ids] = []
    labels: list[Mask] = []
    keys: list[str] = []
    levels: list[float] = []
    for rendered, key, level in rows:
        ids.append(np.array(rendered.ids, np.int32))
        labels.append(np.array(rendered.labels, np.bool_))
        keys.append(key)
        if level is not None:
            levels.append(level)
    lengths = np.array([len(row) for row in ids], np.int64)
    return TokenRows(
        np.concatenate([np.zeros(0, np.int32), *ids]),
        np.concatenate([np.zeros(0, np.bool_), *labels]),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        tuple(keys),
        np.array(levels, np.float64) if levels else None,
        np.unique(keys, return_inverse=True)[1].astype(np.int64) if groups is None else np.array(groups, np.int64),
    )


def length_histogram(lengths: Ints) -> list[int]:
    """Entry ``i`` counts lengths of more than 64 i and at most 64 (i + 1) tokens."""
    counts: list[int] = np.bincount((lengths - 1) // HISTOGRAM_BIN_TOKENS).tolist() if len(lengths) else []
    return counts
