"""Which of equal and of similar rows stays, and what is beyond a cap: source by source, in order of precedence.

A row gives way to none but one that is in the corpus, or that its own source has instead: what an earlier source loses
to its oracle or to its cap takes nothing from a later one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trainer.data.build.mix import Mix, SourceSection
from trainer.data.build.table import Bools, Ints, Reason, Table
from trainer.data.build.tokens import TokenTable
from trainer.data.near_duplicates import Duplicates

Similar = Callable[[Ints, Ints], Bools]
"""Whether two rows are near duplicates, pair by pair; rows by position in ``Table.compared``."""

MOST_ROUNDS = 1000
"""Rows of one cluster that all others in it are compared with at most; what is left of it then stays."""


@dataclass(frozen=True)
class Settled:
    """By row: ``clusters`` is the number of the first of all rows that are copies of it, through a chain perhaps;
    ``copy_of`` the earlier row for which it was dropped as a copy, or -1."""

    clusters: Ints
    copy_of: Ints


def drop_repeated(table: Table, duplicates: Duplicates) -> None:
    """Of rows that are equal inside one source the first stays."""
    exact = _by_row(table, duplicates.exact_of)
    firsts = _first_in_source(table, exact)
    table.drop(table.compared[firsts[table.compared] != table.compared], Reason.EXACT_DUPLICATE)


def settle(mix: Mix, table: Table, duplicates: Duplicates, tokens: TokenTable | None, similar: Similar) -> Settled:
    """Drop copies and what is beyond a cap from the rows that are kept so far."""
    exact = _by_row(table, duplicates.exact_of)
    near = mix.sections.duplicates.near
    clusters = exact if near == "off" else _by_row(table, duplicates.cluster_of)
    firsts = _first_in_source(table, exact)
    copy_of = np.full(len(exact), -1, np.int64)
    kept_of = copy_of.copy()  # by what rows are equal to: the one that is in the corpus
    compare = _Greedy(table, clusters, copy_of, similar)
    for index, section in enumerate(mix.sections.sources):
        rows = np.flatnonzero(table.kept(index))
        there = kept_of[exact[rows]]
        copy_of[rows] = there
        table.drop(rows[there >= 0], Reason.EXACT_DUPLICATE)
        if near == "drop":
            compare.drop_similar(rows[there < 0])
        _cap(section, table, np.flatnonzero(table.kept(index)), tokens)
        kept = np.flatnonzero(table.kept(index))
        kept_of[exact[kept]] = kept
        compare.forget_dropped()
    repeated = np.flatnonzero((table.reasons == Reason.EXACT_DUPLICATE) & (copy_of < 0))
    first = firsts[repeated]
    copy_of[repeated] = np.where(copy_of[first] >= 0, copy_of[first], first)
    return Settled(clusters, copy_of)


class _Greedy:
    """Goes through the rows in order: each stays unless one that stays already is similar to it."""

    def __init__(self, table: Table, clusters: Ints, copy_of: Ints, similar: Similar) -> None:
        self._table, self._clusters, self._copy_of, self._similar = table, clusters, copy_of, similar
        self._sizes = np.bincount(clusters[table.compared], minlength=len(clusters))
        self._place = np.full(len(clusters), -1, np.int64)
        self._place[table.compared] = np.arange(len(table.compared))
        self._staying: dict[int, list[int]] = {}
        self._touched: list[int] = []

    def drop_similar(self, rows: Ints) -> None:
        pending = rows[self._sizes[self._clusters[rows]] > 1]
        for number in range(MOST_ROUNDS):
            if not len(pending):
                return
            clusters, first, inverse = np.unique(self._clusters[pending], return_index=True, return_inverse=True)
            leaders = np.array(
                [self._leader(*found, number) for found in zip(clusters.tolist(), pending[first].tolist(), strict=True)]
            )[inverse]
            others = leaders != pending
            pending, leaders = pending[others], leaders[others]
            same = self._similar(self._place[leaders], self._place[pending])
            self._copy_of[pending[same]] = leaders[same]
            self._table.drop(pending[same], Reason.NEAR_DUPLICATE)
            pending = pending[~same]

    def forget_dropped(self) -> None:
        """Rows that a cap has taken out since make no other give way."""
        for cluster in self._touched:
            self._staying[cluster] = [row for row in self._staying[cluster] if self._table.reasons[row] == Reason.KEPT]
        self._touched = []

    def _leader(self, cluster: int, row: int, number: int) -> int:
        """The ``number``-th row of the cluster that stays; ``row`` becomes it when there are fewer."""
        staying = self._staying.setdefault(cluster, [])
        if number == len(staying):
            staying.append(row)
            self._touched.append(cluster)
        return staying[number]


def _cap(section: SourceSection, table: Table, kept: Ints, tokens: TokenTable | None) -> None:
    """Leave out what is beyond the source's caps, by the rows' seeded ranks."""
    order = kept[np.argsort(table.ranks[kept], kind="stable")]
    within = np.ones(len(order), np.bool_)
    if section.max_rows is not None:
        within[section.max_rows :] = False
    if section.max_tokens is not None and tokens is not None:
        within &= np.cumsum(tokens.tokens[order]) <= section.max_tokens
    table.drop(order[~within], Reason.CAPPED)


def _by_row(table: Table, of: Ints) -> Ints:
    """What is known by position in ``Table.compared``, by row; rows that were not compared are alone."""
    found = np.arange(len(table.sources), dtype=np.int64)
    found[table.compared] = table.compared[of]
    return found


def _first_in_source(table: Table, exact: Ints) -> Ints:
    """By row the first row of its source that is equal to it."""
    key = table.sources * len(exact) + exact
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    firsts: Ints = first[inverse].astype(np.int64)
    return firsts
