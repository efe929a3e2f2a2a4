"""Token-true mixing: how often the rows of each source come, so that their shares of what is learnt are as declared.

Source ``i`` has weight ``w_i`` and ``t_i`` learnt tokens (labels of its rows, fitted to the window, with the run's
own tokenizer). One epoch holds

    E   = min(sum of t, min over i of max_repeats * t_i / share_i)     learnt tokens, where share_i = w_i / sum of w
    r_i = share_i * E / t_i                                            passes over source i

so every source has exactly its share, and none is passed over more than ``max_repeats`` times in one epoch: where
that binds, the epoch is shorter. A source's rows come in passes, each a new permutation; an epoch takes ``r_i`` passes
from where the former one stopped. So no row is seen again before all others of its source have been seen.

When the window changes in the middle of an epoch, so do the ``t_i``. The rest of the epoch is then drawn anew, so that
the whole epoch has the shares, every row counted in the window in which it is learnt from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.data.mix_spec import MixSpec

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Mixture:
    """The declaration, the source of every row, and ``learnt(max_length)``: learnt tokens of every row."""

    spec: MixSpec
    sources: Ints
    learnt: Callable[[int], Ints]


@dataclass(frozen=True)
class Passes:
    """One epoch: ``repeats`` are the passes over each source, ``tokens`` its learnt tokens in all."""

    repeats: Floats
    tokens: float


def passes(tokens: Sequence[float] | Floats, shares: Sequence[float] | Floats, max_repeats: float) -> Passes:
    """How often an epoch passes over sources of so many learnt tokens. Raises ValueError when one has none."""
    available, wanted = np.asarray(tokens, np.float64), np.asarray(shares, np.float64)
    if (available <= 0).any():
        raise ValueError(f"source {int(np.argmin(available))} has nothing to learn")
    epoch = min(float(available.sum()), float((max_repeats * available / wanted).min()))
    return Passes(wanted * epoch / available, epoch)


@dataclass(frozen=True)
class _Drawn:
    """Rows and their learnt tokens, in the window for which they were drawn."""

    rows: Ints
    learnt: Ints


class MixedRows:
    """Draws the rows of one epoch after another.

    What comes is a pure function of mixture, seed and the calls so far. The sources are interleaved by learnt tokens,
    so that every part of an epoch has the declared shares, to about a row per source. Nothing adds up over epochs.
    """

    def __init__(self, mixture: Mixture, seed: int) -> None:
        self._mixture, self._seed = mixture, seed
        self._shares = np.array(mixture.spec.shares(), np.float64)
        self._members = [np.flatnonzero(mixture.sources == index) for index in range(len(self._shares))]
        self._waiting = [rows[:0] for rows in self._members]
        """By source, rows that come before those of its next pass."""
        self._passes = [0 for _ in self._members]
        self._draws = 0
        self._left = 0.0
        self._drawn = _Drawn(np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._owed = np.zeros(len(self._members))
        """By source, learnt tokens that it had too few of so far: rows are whole, so shares are met to half a row."""

    def draw(self, max_length: int, epochs: float = 1.0) -> Ints:
        """The rows of the next epoch, or of a part of one, fitted to ``max_length``; at least one row."""
        self._left = epochs
        return self._draw(max_length, at_least=1)

    def redraw(self, used: Ints, max_length: int) -> Ints:
        """Rows for the rest of what was drawn last, once ``used`` of it is consumed and the window has changed."""
        before = self._drawn
        by_source = self._by_source(used, before.learnt)
        total = before.learnt[before.rows].sum()
        self._left *= 1 - by_source.sum() / max(total, 1)
        # What was drawn and not used is owed again, and what was used beyond its share is owed to the others.
        self._owed += self._by_source(before.rows, before.learnt) - by_source
        self._owed -= self._shares * (total - by_source.sum())
        unused = without(before.rows, used, len(self._mixture.sources))
        for source in range(len(self._members)):
            mine = unused[self._mixture.sources[unused] == source]
            self._waiting[source] = np.concatenate([mine, self._waiting[source]])
        return self._draw(max_length)

    def _draw(self, max_length: int, at_least: int = 0) -> Ints:
        learnt = self._mixture.learnt(max_length)
        available = [float(learnt[rows].sum()) for rows in self._members]
        tokens = passes(available, self._shares, self._mixture.spec.max_repeats).tokens * self._left
        wanted = self._shares * tokens + self._owed
        neediest = int(np.argmax(wanted))
        wanted[neediest] = max(wanted[neediest], at_least)
        jitter = _rng(self._seed, len(self._members), self._draws)
        rows: list[Ints] = []
        places: list[Floats] = []
        for source, target in enumerate(wanted.tolist()):
            middles = self._waiting_for(source, target, learnt)
            count = int(np.searchsorted(middles, target))
            if source == neediest:
                count = max(count, at_least)
            taken, self._waiting[source] = np.split(self._waiting[source], [count])
            rows.append(taken)
            within = middles[:count] + (jitter.random(count) - 0.5) * learnt[taken]
            places.append(within / max(target, 1.0))
        drawn = np.concatenate(rows)[np.argsort(np.concatenate(places), kind="stable")]
        self._owed = wanted - self._by_source(drawn, learnt)
        self._drawn = _Drawn(drawn, learnt)
        self._draws += 1
        return drawn

    def _waiting_for(self, source: int, target: float, learnt: Ints) -> Floats:
        """Where the middles of the waiting rows lie, in learnt tokens, once these rows are enough for ``target``.

        A row belongs where its middle lies, so that there is half a row too much or too little at most.
        """
        while learnt[self._waiting[source]].sum() < target:
            members, number = self._members[source], self._passes[source]
            shuffled = members[_rng(self._seed, source, number).permutation(len(members))]
            self._waiting[source] = np.concatenate([self._waiting[source], shuffled])
            self._passes[source] += 1
        sizes = learnt[self._waiting[source]]
        middles: Floats = np.cumsum(sizes) - sizes / 2
        return middles

    def _by_source(self, rows: Ints, learnt: Ints) -> Floats:
        counts = np.bincount(self._mixture.sources[rows], weights=learnt[rows], minlength=len(self._members))
        return counts.astype(np.float64)


def without(rows: Ints, used: Ints, n: int) -> Ints:
    """``rows`` (numbers below ``n``) without as many of each as ``used`` has, the first ones."""
    if len(used) == len(rows):
        return rows[:0]
    by_row = np.argsort(rows, kind="stable")
    ordered = rows[by_row]
    occurrence = np.empty(len(rows), np.int64)
    occurrence[by_row] = np.arange(len(rows)) - np.searchsorted(ordered, ordered)
    return rows[occurrence >= np.bincount(used, minlength=n)[rows]]


def _rng(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((0x6D6978, *key))))
