"""Token-true mixing: how often the rows of each source come, so that their shares of what is learnt are as declared.

Source ``i`` has weight ``w_i`` and ``t_i`` learnt tokens (labels of its rows, fitted to the window, with the run's
own tokenizer). One epoch holds

    E   = min(sum of t, min over i of max_repeats * t_i / share_i)     learnt tokens, where share_i = w_i / sum of w
    r_i = share_i * E / t_i                                            passes over source i

so every source has exactly its share, and none is passed over more than ``max_repeats`` times in one epoch: where
that binds, the epoch is shorter. A source's rows come in passes, each a new permutation; an epoch takes ``r_i`` passes
from where the former one stopped. So no row is seen again before all others of its source have been seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

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


def mixed_epochs(mixture: Mixture, seed: int) -> Callable[[int], Ints]:
    """A function that gives the rows of the next epoch at each call, for rows fitted to the length it is called with.

    The order is a pure function of mixture, seed, and the lengths of the calls so far. The sources are interleaved
    by learnt tokens, so that every part of an epoch has the declared shares, to about a row per source. Nothing adds
    up over epochs.
    """
    shares = np.array(mixture.spec.shares(), np.float64)
    members = [np.flatnonzero(mixture.sources == index) for index in range(len(shares))]
    done = np.zeros(len(shares))
    epochs = count()

    def next_epoch(max_length: int) -> Ints:
        learnt = mixture.learnt(max_length)
        available = np.array([int(learnt[rows].sum()) for rows in members], np.float64)
        repeats = passes(available, shares, mixture.spec.max_repeats).repeats
        jitter = _rng(seed, len(shares), next(epochs))
        rows: list[Ints] = []
        places: list[Floats] = []
        for source, of_source in enumerate(members):
            start, end = done[source], done[source] + repeats[source]
            for number in range(int(start), int(np.ceil(end))):
                shuffled = of_source[_rng(seed, source, number).permutation(len(of_source))]
                sizes = learnt[shuffled] / available[source]
                # A row belongs where its middle lies, so that an epoch has half a row too much or too little at most.
                middles = number + np.cumsum(sizes) - sizes / 2
                taken = (middles >= start) & (middles < end)
                rows.append(shuffled[taken])
                within = middles[taken] + (jitter.random(int(taken.sum())) - 0.5) * sizes[taken]
                places.append((within - start) / repeats[source])
            done[source] = end
        return np.concatenate(rows)[np.argsort(np.concatenate(places), kind="stable")].astype(np.int64)

    return next_epoch


def _rng(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((0x6D6978, *key))))
