"""A validation split in which no answer stands on both sides."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence


class SplitError(Exception):
    """The rows cannot be split as asked; one sentence with the remedy."""


def split(keys: Sequence[str], *, rows: int, seed: int) -> tuple[list[int], list[int]]:
    """``(training indices, validation indices)``, both ascending; rows of equal key stay together.

    Groups are taken in the order of a seeded hash of their key as long as they fit into ``rows``, so the
    choice depends on the set of rows and the seed, not on their order. The validation side has at most
    ``rows`` rows, and fewer only when the groups do not add up. Raises SplitError when a side would be empty.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        groups[key].append(index)
    validation: list[int] = []
    for key in sorted(groups, key=lambda key: (hashlib.sha256(f"{seed}:{key}".encode()).digest(), key)):
        if len(validation) + len(groups[key]) <= rows:
            validation += groups[key]
    if not validation:
        raise SplitError(
            f"no validation rows: {rows} of {len(keys)} are wanted, and the smallest group with the same answer has "
            f"{min(map(len, groups.values()), default=0)}; ask for more rows or bring more varied data"
        )
    if len(validation) == len(keys):
        raise SplitError(f"no training rows: all {len(keys)} rows would be used for validation; ask for fewer")
    held_out = set(validation)
    return [index for index in range(len(keys)) if index not in held_out], sorted(validation)


def rows_of_fraction(count: int, fraction: float) -> int:
    """How many of ``count`` rows a fraction is: rounded, at least 1."""
    return max(1, round(count * fraction))
