"""Which rows must stay on one side of a split: those with the same answer, and copies of one another. No torch."""

from __future__ import annotations

from collections.abc import Sequence

NEAR_THRESHOLD = 0.8
"""Jaccard similarity of token trigrams from which rows count as copies, where nobody has looked for them before."""


def group_names(keys: Sequence[str], *relations: Sequence[str | int]) -> list[str]:
    """For each row the name of its group: the smallest of the group's ``keys``, so it depends on no order.

    Rows are in one group when they have the same key or the same value in one of the ``relations``, directly or
    through other rows. All arguments are by row.
    """
    parents = list(range(len(keys)))

    def root(row: int) -> int:
        while parents[row] != row:
            parents[row] = parents[parents[row]]
            row = parents[row]
        return row

    for relation in (keys, *relations):
        first: dict[str | int, int] = {}
        for row, value in enumerate(relation):
            one, other = root(first.setdefault(value, row)), root(row)
            if one != other:
                parents[max(one, other)] = min(one, other)
    names: dict[int, str] = {}
    for row, key in enumerate(keys):
        top = root(row)
        names[top] = min(key, names.get(top, key))
    return [names[root(row)] for row in range(len(keys))]
