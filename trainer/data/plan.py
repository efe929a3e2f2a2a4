"""The data plan: which rows make up which bin, for all epochs, as index arrays. No token is touched.

A pure function of the rows' lengths and a :class:`PlanSpec`. The position in the data is the number of
optimiser steps done: step ``s`` consumes bins ``s * bins_per_step`` and on, so resuming is O(1) and exact.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from trainer.data.mixture import MixedRows, Mixture, without
from trainer.data.pack import Ints, pack

Floats = npt.NDArray[np.float64]


class Segment(msgspec.Struct, frozen=True):
    """From optimiser step ``first_step`` on, rows and bins have at most ``max_length`` tokens."""

    max_length: int
    first_step: int


class PlanSpec(msgspec.Struct, frozen=True):
    """What the plan depends on besides the rows.

    ``bins_per_step`` is the global batch: bins per micro-batch x accumulation (x ranks). ``max_steps`` > 0
    decides how many steps there are, epochs wrap as often as needed; otherwise it is ``epochs``, of which a
    fraction takes the first rows of the last epoch's order (with a mixture, so much of every source). ``segments``
    begin with step 0 and never go
    back; each that follows re-plans what its predecessor has not consumed.
    """

    seed: int
    packing: bool
    bins_per_step: int
    segments: tuple[Segment, ...]
    epochs: float | None = None
    max_steps: int = 0


def order(n: int, seed: int, epoch: int, difficulty: Floats | None = None) -> Ints:
    """Row ids 0..n-1 in the order of one epoch: shuffled anew, or shuffled inside ascending difficulty."""
    return _by_level(_rng(seed, epoch).permutation(n).astype(np.int64), difficulty)


def _by_level(rows: Ints, difficulty: Floats | None) -> Ints:
    return rows if difficulty is None else rows[np.argsort(difficulty[rows], kind="stable")]


def _rng(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


@dataclass(frozen=True)
class _Chunk:
    """Bins of (a part of) one epoch under one segment."""

    offsets: Ints
    rows: Ints
    epoch: int
    max_length: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def first(self, count: int) -> _Chunk:
        return _Chunk(self.offsets[: count + 1], self.rows[: self.offsets[count]], self.epoch, self.max_length)


class DataPlan:
    """All bins of a run in the order of consumption. Build it with :func:`build_plan`."""

    def __init__(self, spec: PlanSpec, chunks: list[_Chunk], lengths: Callable[[int], Ints]) -> None:
        self.spec = spec
        counts = np.concatenate([np.diff(chunk.offsets) for chunk in chunks])
        self._rows = np.concatenate([chunk.rows for chunk in chunks])
        self._offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        sizes = np.array([len(chunk) for chunk in chunks])
        self._epochs = np.repeat(np.array([chunk.epoch for chunk in chunks], np.int32), sizes)
        self._max_lengths = np.repeat(np.array([chunk.max_length for chunk in chunks], np.int32), sizes)
        tokens = np.concatenate([lengths(chunk.max_length)[chunk.rows] for chunk in chunks])
        self._tokens = np.concatenate([np.zeros(1, np.int64), np.cumsum(tokens)])[self._offsets]

    @property
    def total_bins(self) -> int:
        return len(self._offsets) - 1

    @property
    def total_steps(self) -> int:
        """Optimiser steps; only the last may consume fewer than ``bins_per_step`` bins."""
        return math.ceil(self.total_bins / self.spec.bins_per_step)

    @property
    def planned_rows(self) -> int:
        return int(self._offsets[-1])

    @property
    def planned_tokens(self) -> int:
        """Tokens of all planned rows, each at the length of its segment."""
        return int(self._tokens[-1])

    @property
    def longest_bin(self) -> int:
        """Tokens of the longest planned bin."""
        return int(np.diff(self._tokens).max())

    def rows_by_length(self) -> dict[int, Ints]:
        """The rows of all bins, each as often as it is planned, by the length to which they are fitted."""
        lengths = np.repeat(self._max_lengths, np.diff(self._offsets))
        return {int(length): self._rows[lengths == length] for length in np.unique(lengths)}

    def bin(self, index: int) -> Ints:
        """Row ids of one bin. Raises IndexError outside ``range(total_bins)``."""
        if not 0 <= index < self.total_bins:
            raise IndexError(f"bin {index} of {self.total_bins}")
        return self._rows[self._offsets[index] : self._offsets[index + 1]]

    def epoch_of_bin(self, index: int) -> int:
        return int(self._epochs[index])

    def max_length_of_bin(self, index: int) -> int:
        """The length to which the rows of this bin must be fitted."""
        return int(self._max_lengths[index])

    def bins_before_step(self, step: int) -> int:
        """Bins consumed by the optimiser steps 0..step-1."""
        return min(step * self.spec.bins_per_step, self.total_bins)

    def rows_before_step(self, step: int) -> int:
        return int(self._offsets[self.bins_before_step(step)])

    def tokens_before_step(self, step: int) -> int:
        return int(self._tokens[self.bins_before_step(step)])

    def fingerprint(self, corpus: str, before_step: int | None = None) -> str:
        """SHA-256 over the corpus' fingerprint, the seed and the bins, in order.

        With ``before_step``, over what those steps consume alone: it stays the same when a later segment
        or another number of epochs re-plans the rest.
        """
        bins = self.total_bins if before_step is None else self.bins_before_step(before_step)
        digest = hashlib.sha256(f"{corpus} {self.spec.seed} {self.spec.bins_per_step} {self.spec.packing}".encode())
        if before_step is None:
            digest.update(msgspec.json.encode(self.spec))
        for array in (self._rows[: self._offsets[bins]], self._offsets[: bins + 1], self._max_lengths[:bins]):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def build_plan(
    n: int,
    lengths: Callable[[int], Ints],
    spec: PlanSpec,
    difficulty: Floats | None = None,
    mixture: Mixture | None = None,
) -> DataPlan:
    """The plan for ``n`` rows.

    ``lengths(max_length)`` gives the tokens of every row fitted to ``max_length``; ``difficulty`` (by row)
    asks for a curriculum. When a segment begins in the middle of an epoch, the rows of that epoch which no
    former step consumes are packed anew, in the epoch's order, so every whole epoch has each row once. With a
    ``mixture`` :class:`trainer.data.mixture.MixedRows` chooses the rows of epochs and of such rests.
    Raises ValueError for a spec that makes no sense.
    """
    _check(n, spec)
    starts = [segment.first_step * spec.bins_per_step for segment in spec.segments]
    wanted = spec.max_steps * spec.bins_per_step if spec.max_steps else None
    chunks: list[_Chunk] = []
    total = epoch = 0
    mixed = MixedRows(mixture, spec.seed) if mixture else None

    def segment_at(done: int) -> int:
        return max(index for index, start in enumerate(starts) if start <= done)

    while share := _share_of_epoch(spec, epoch):
        if mixed is None:
            rows = order(n, spec.seed, epoch, difficulty)[: math.ceil(n * share - 1e-9)]
        else:
            rows = _by_level(mixed.draw(spec.segments[segment_at(total)].max_length, share), difficulty)
        while len(rows):
            segment = segment_at(total)
            length = spec.segments[segment].max_length
            rng = _rng(spec.seed, epoch, segment + 1)
            offsets, packed = pack(lengths(length), rows, length, packing=spec.packing, rng=rng, levels=difficulty)
            chunk = _Chunk(offsets, packed, epoch, length)
            if segment + 1 < len(starts):
                chunk = chunk.first(min(len(chunk), starts[segment + 1] - total))
            if wanted is not None:
                chunk = chunk.first(min(len(chunk), wanted - total))
            chunks.append(chunk)
            total += len(chunk)
            if total == wanted:
                return DataPlan(spec, chunks, lengths)
            if mixed is None or len(chunk.rows) == len(rows):
                rows = without(rows, chunk.rows, n)
            else:
                rows = _by_level(mixed.redraw(chunk.rows, spec.segments[segment_at(total)].max_length), difficulty)
        epoch += 1
    return DataPlan(spec, chunks, lengths)


def _check(n: int, spec: PlanSpec) -> None:
    if n < 1:
        raise ValueError("there are no rows to plan")
    if spec.bins_per_step < 1:
        raise ValueError(f"bins_per_step is {spec.bins_per_step}, it must be at least 1")
    if spec.max_steps < 0 or (not spec.max_steps and (spec.epochs is None or spec.epochs <= 0)):
        raise ValueError("a plan needs max_steps or epochs above 0")
    steps = [segment.first_step for segment in spec.segments]
    if not steps or steps[0] != 0 or steps != sorted(steps):
        raise ValueError(f"segments must begin at step 0 and never go back, they begin at {steps}")


def _share_of_epoch(spec: PlanSpec, epoch: int) -> float:
    """How much of an epoch's order is planned; 0 after the last epoch."""
    if spec.max_steps:
        return 1.0
    assert spec.epochs is not None
    return min(1.0, max(0.0, spec.epochs - epoch))

