"""What a build knows of every row: a few numbers each, and why it is not in the corpus."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from trainer.data.build.spool import Spool

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Reason(IntEnum):
    """Why a row is not in the corpus. ``words`` is how reports and the manifest call it."""

    KEPT = 0
    NOT_SAMPLED = 1
    CONTAMINATED = 2
    EXACT_DUPLICATE = 3
    NEAR_DUPLICATE = 4
    ORACLE = 5
    NOT_RENDERED = 6
    CAPPED = 7
    BAD_ROW = 8

    @property
    def words(self) -> str:
        return self.name.lower()


COUNTED_ONLY = frozenset({Reason.NOT_SAMPLED, Reason.CAPPED})
"""Rows left out because the mix asked for fewer; the others are listed one by one."""


@dataclass
class Gathering:
    """What is known while rows are read; entries of the arrays are rows by their number."""

    spool: Spool
    sources: array[int] = field(default_factory=lambda: array("H"))
    reasons: array[int] = field(default_factory=lambda: array("B"))
    answers: array[int] = field(default_factory=lambda: array("Q"))
    ranks: array[int] = field(default_factory=lambda: array("Q"))
    compared: array[int] = field(default_factory=lambda: array("q"))
    """Numbers of the rows that duplicates are looked for among."""
    hits: dict[int, str] = field(default_factory=dict)
    """The bench item in a contaminated row."""
    unguarded: tuple[str, ...] = ()
    """Bench items that are too short to be looked for."""
    read: Counter[int] = field(default_factory=Counter)
    lost: Counter[tuple[int, Reason]] = field(default_factory=Counter)
    """Rows that never got a number, by source and reason."""
    digests: list[hashlib._Hash] = field(default_factory=list)
    """By source, over its rows as they were read."""

    def table(self) -> Table:
        return Table(
            self,
            np.array(self.sources, np.int64),
            np.array(self.reasons, np.uint8),
            np.array(self.answers, np.uint64),
            np.array(self.ranks, np.uint64),
            np.array(self.compared, np.int64),
        )


@dataclass(frozen=True)
class Table:
    """The same, once all rows are read. ``reasons`` is written to as rows are dropped.

    ``answers`` are 64 bits of the key of the answer, ``ranks`` the seeded order in which caps take rows.
    """

    gathering: Gathering
    sources: Ints
    reasons: npt.NDArray[np.uint8]
    answers: npt.NDArray[np.uint64]
    ranks: npt.NDArray[np.uint64]
    compared: Ints

    @property
    def spool(self) -> Spool:
        return self.gathering.spool

    def kept(self, source: int | None = None) -> Bools:
        """Which rows are still in the corpus, of one source or of all."""
        kept: Bools = self.reasons == Reason.KEPT
        return kept if source is None else kept & (self.sources == source)

    def drop(self, rows: Ints, reason: Reason) -> None:
        self.reasons[rows] = reason
