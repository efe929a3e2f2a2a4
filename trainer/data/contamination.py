"""Which rows contain an item of a bench that must stay out of the corpus. No torch.

An item is in a row when at least :data:`MIN_CONTAINMENT` of the item's runs of ``n`` tokens (see
:mod:`trainer.data.shingles`) stand in the row, wherever they stand and whatever stands around them. Runs that many
items have in common do not count. Shorter items must be there as a whole. Whitespace and letter case do not count,
so a reformatted item is still found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.data.shingles import Grams, Hashes, Offsets, chunks, ngrams, tokens

MIN_CONTAINMENT = 0.2
"""Share of an item's n-grams from which it counts as contained. No file of the standard library shares more than 0.08
of the 13-grams of any problem of HumanEval; of its problems and solutions with one word in fifty changed, 97 % are
found, with one in twenty 89 %, with one in ten 73 %."""

SHORT_TOKENS = 8
"""Items of fewer tokens than this (and than ``n``) are not looked for: they stand in innocent rows by chance."""

COMMON_ITEMS = 5
"""A run of tokens that more items than this have is the bench's template, such as its instruction: it says nothing of
any item, and does not count unless an item has no other."""

MAX_FILTER = 1 << 24


@dataclass(frozen=True)
class BenchHit:
    """The item that a row contains, and the share of the item's n-grams found in the row."""

    item: str
    containment: float


class BenchIndex:
    """The n-grams of all items. ``unguarded`` names the items whose texts are all too short to be told from chance."""

    def __init__(self, names: Sequence[str], looks: Sequence[_Look], unguarded: Sequence[str]) -> None:
        self._names = tuple(names)
        self._looks = tuple(looks)
        self.unguarded = tuple(unguarded)

    @classmethod
    def from_items(cls, items: Iterable[tuple[str, str]], n: int) -> BenchIndex:
        """``(name, text)`` of every item, also several texts of one; ``n`` is the length of the runs in tokens."""
        named = list(items)
        names = [name for name, _ in named]
        grams = tokens([text for _, text in named])
        lengths = grams.counts()
        short = min(n, SHORT_TOKENS)
        long_items = np.flatnonzero(lengths >= n)
        whole_items = np.flatnonzero((lengths >= short) & (lengths < n))
        looks = []
        known = {name: number for number, name in enumerate(dict.fromkeys(names))}
        item_of = np.array([known[name] for name in names], np.int64)
        if len(long_items):
            looks.append(_Look(n, MIN_CONTAINMENT, ngrams(grams, n), long_items, item_of))
        if len(whole_items):
            also_long = np.isin(item_of, item_of[long_items])
            looks.append(_Look(short, 1.0, ngrams(grams, short), whole_items, item_of, also_long))
        guarded = {names[item] for item in np.flatnonzero(lengths >= short)}
        return cls(names, looks, list(dict.fromkeys(name for name in names if name not in guarded)))

    def hit(self, text: str) -> BenchHit | None:
        """The item that ``text`` contains, the most contained one of several."""
        return self.hits([text])[0]

    def hits(self, texts: Sequence[str]) -> list[BenchHit | None]:
        """:meth:`hit` of many texts, far faster than one by one."""
        return [hit for chunk in chunks(texts) for hit in self.hits_in(tokens(texts[chunk]))]

    def hits_in(self, grams: Grams) -> list[BenchHit | None]:
        """:meth:`hits` of texts whose tokens are known."""
        found: list[BenchHit | None] = [None] * len(grams.counts())
        for look in self._looks:
            for row, item, containment in look.contained(grams):
                before = found[row]
                if before is None or containment > before.containment:
                    found[row] = BenchHit(self._names[item], containment)
        return found


class _Look:
    """One gram size: items, and the sorted hashes of their grams, each with the items that have it.

    ``item_of`` says which texts are of the same item: grams of more than COMMON_ITEMS do not count, unless an item
    has no other. ``also``: texts whose item is looked for by another text anyway.
    """

    def __init__(
        self,
        size: int,
        enough: float,
        grams: Grams,
        items: Offsets,
        item_of: Offsets,
        also: NDArray[np.bool_] | None = None,
    ) -> None:
        self._size = size
        self._enough = enough
        self._items = items
        counts = grams.counts()
        owners = np.repeat(np.arange(len(counts)), counts)
        chosen = np.isin(owners, items)
        pairs = np.unique(np.stack([grams.hashes[chosen], owners[chosen].astype(np.uint64)]), axis=1)
        telling = _telling(pairs[0], pairs[1].astype(np.int64), item_of, also, whole=enough == 1.0)
        pairs = pairs[:, telling]
        self._hashes, first, self._owner_counts = np.unique(pairs[0], return_index=True, return_counts=True)
        self._owner_starts = first
        self._owners = pairs[1].astype(np.int64)
        self._gram_counts = np.bincount(self._owners, minlength=len(counts))
        size_of_filter = min(MAX_FILTER, 1 << max(16, (64 * len(self._hashes)).bit_length()))
        self._mask = np.uint64(size_of_filter - 1)
        self._filter = np.zeros(size_of_filter, np.bool_)
        self._filter[self._hashes & self._mask] = True

    def contained(self, texts: Grams) -> list[tuple[int, int, float]]:
        """``(text, item, containment)`` of every text and item that it contains enough of, by text and item."""
        grams = ngrams(texts, self._size)
        candidates = np.flatnonzero(self._filter[grams.hashes & self._mask])
        places = np.searchsorted(self._hashes, grams.hashes[candidates])
        places = np.minimum(places, len(self._hashes) - 1)
        real = self._hashes[places] == grams.hashes[candidates]
        if not real.any():
            return []
        rows = np.searchsorted(grams.offsets, candidates[real], side="right") - 1
        found = np.unique(rows * len(self._hashes) + places[real])
        rows, grams_found = found // len(self._hashes), found % len(self._hashes)
        per_row = self._owner_counts[grams_found]
        items = self._owners[_ranges(self._owner_starts[grams_found], per_row)]
        pairs, shared = np.unique(np.repeat(rows, per_row) * len(self._gram_counts) + items, return_counts=True)
        rows, items = pairs // len(self._gram_counts), pairs % len(self._gram_counts)
        containment = shared / self._gram_counts[items]
        enough = containment >= self._enough
        return list(zip(rows[enough].tolist(), items[enough].tolist(), containment[enough].tolist(), strict=True))


def _telling(
    hashes: Hashes, owners: Offsets, item_of: Offsets, also: NDArray[np.bool_] | None, *, whole: bool
) -> NDArray[np.bool_]:
    """Which pairs of a gram and its text count. ``whole``: all of a text or nothing of it."""
    grams = np.unique(hashes, return_inverse=True)[1]
    by_item = np.unique(np.stack([grams, item_of[owners]]), axis=1)
    telling: NDArray[np.bool_] = (np.bincount(by_item[0]) <= COMMON_ITEMS)[grams]
    if whole:
        telling = (np.bincount(owners[telling], minlength=len(item_of)) > 0)[owners]
    without = np.bincount(item_of[owners][telling], minlength=len(item_of))[item_of] == 0
    if also is not None:
        without &= ~also
    counts: NDArray[np.bool_] = telling | without[owners]
    return counts


def _ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """``starts[0], starts[0] + 1, ...`` of every range of ``counts`` numbers, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1]) + np.repeat(starts - ends + counts, counts)
