"""Tasks gathered into independent units: what is drawn again by a bootstrap and counted by a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Units:
    """``sums`` (units, columns): values of each unit's tasks, added up. ``sizes`` (units,): its tasks.

    The mean of a column is over tasks: the sum of its sums by the sum of sizes.
    """

    sums: Floats
    sizes: Floats

    @property
    def count(self) -> int:
        return len(self.sizes)

    @property
    def tasks(self) -> int:
        return int(self.sizes.sum())

    @property
    def effective(self) -> float:
        """Equal units that would tell as much: fewer than there are, where some are larger than others."""
        return float(self.sizes.sum() ** 2 / (self.sizes**2).sum())

    @property
    def means(self) -> Floats:
        return np.asarray(self.sums.sum(axis=0) / self.sizes.sum())

    @property
    def left_out(self) -> Floats:
        """(units, columns): the means without each unit; there must be two units at least."""
        return np.asarray((self.sums.sum(axis=0) - self.sums) / (self.sizes.sum() - self.sizes)[:, None])

    @property
    def standard_errors(self) -> Floats:
        """(columns,): of the means, by leaving out one unit after the other. NaN with a single unit."""
        if self.count < 2:
            return np.full(self.sums.shape[1], np.nan)
        without = self.left_out
        spread = ((without - without.mean(axis=0)) ** 2).sum(axis=0)
        return np.asarray(np.sqrt(spread * (self.count - 1) / self.count))

    @property
    def differing(self) -> NDArray[np.int64]:
        """(columns,): units whose mean is not the commonest one. Only these say anything about a spread."""
        means = np.sort(np.round(self.sums / self.sizes[:, None], 12), axis=0)
        found = []
        for column in means.T:
            starts = np.flatnonzero(np.concatenate(([True], column[1:] != column[:-1], [True])))
            found.append(self.count - int(np.diff(starts).max()))
        return np.asarray(found, dtype=np.int64)

    def column(self, index: int) -> Units:
        return Units(self.sums[:, [index]], self.sizes)


def units_of(values: ArrayLike, clusters: Sequence[str] | None = None) -> Units:
    """``values`` (tasks,) or (tasks, columns); ``clusters``: one name for each task, every task by itself without it.

    Units stand in the order of their first task. Raises ValueError when there is no task.
    """
    table = np.asarray(values, dtype=np.float64)
    table = table[:, None] if table.ndim == 1 else table
    if not len(table):
        raise ValueError("there are no tasks")
    if clusters is None:
        return Units(table, np.ones(len(table)))
    numbers: dict[str, int] = {}
    places = np.fromiter((numbers.setdefault(name, len(numbers)) for name in clusters), np.int64, len(clusters))
    if len(places) != len(table):
        raise ValueError(f"{len(table)} tasks and {len(places)} clusters")
    sums = np.zeros((len(numbers), table.shape[1]))
    np.add.at(sums, places, table)
    return Units(sums, np.bincount(places).astype(np.float64))
