"""Which rows are copies of one another, exactly or nearly, over any number of rows in bounded memory. No torch.

Exact: equal after :func:`trainer.data.keys.normalised` (whitespace and letter case do not count). Near: the Jaccard
similarity of their token trigrams, computed and not estimated, reaches a threshold. MinHash with banding only finds
the pairs worth comparing. What stays in memory is about 250 bytes a row; the trigrams wait in a temporary file.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import numpy as np
import rensa
import xxhash
from numpy.typing import NDArray

from trainer.data.keys import normalised
from trainer.data.messages import Row
from trainer.data.shingles import CHUNK_CHARACTERS, Grams, Hashes, Offsets, encoded_tokens, mixed, ngrams

GRAM_TOKENS = 3

BANDS, BAND_ROWS = 12, 5
"""Two rows meet in a band when BAND_ROWS MinHashes agree: 99.2 % of pairs with similarity 0.8 meet in some band,
86 % at 0.7, and 4 in a million at 0.05."""

PART_SHARE = 0.5
"""No part of a pair may be less similar than this share of the threshold: rows of one template with different
answers are different rows."""

LEADERS = 8
"""How many rows of a bucket the others are compared with at most."""

GRAMS_AT_A_TIME = 1 << 20
"""Trigrams that are compared at a time, to bound the memory."""

Kind = TypeVar("Kind", np.int64, np.uint64)


@dataclass(frozen=True)
class Duplicates:
    """For row ``i``: ``exact_of[i]`` is the first row with the same text, ``cluster_of[i]`` the first of all rows that
    are copies of it, exactly or through a chain of near-duplicate pairs. Both are ``i`` for a row that is the first.
    """

    exact_of: NDArray[np.int64]
    cluster_of: NDArray[np.int64]

    def exact(self) -> NDArray[np.bool_]:
        """Rows whose text stood before."""
        repeated: NDArray[np.bool_] = self.exact_of != np.arange(len(self.exact_of))
        return repeated

    def near(self) -> NDArray[np.bool_]:
        """Rows whose text is new but nearly that of an earlier row."""
        joined: NDArray[np.bool_] = self.cluster_of != np.arange(len(self.cluster_of))
        return joined & ~self.exact()


def duplicate_parts(row: Row) -> tuple[str, str]:
    """What is compared of a row: all that is asked (system prompt, input, tool results), and all that is answered."""
    asked = "\n".join(message.content for message in row.messages if message.role != "assistant")
    return asked, row.response


def find_duplicates(
    texts: Iterable[str | Sequence[str]], *, threshold: float, seed: int, spool: Path | None = None
) -> Duplicates:
    """The exact and near-duplicates among ``texts``, which are read once, in their order.

    A row is a text or its parts (all rows the same number of them); parts are compared part by part.
    ``threshold`` is the Jaccard similarity of token trigrams, in (0, 1]. ``spool`` is the folder for the temporary
    file of about 4 bytes a token, by default the system's. The result depends on texts, threshold and seed only.
    Raises OSError when the file cannot be written.
    """
    with DuplicateSearch(seed, spool) as search:
        for text in texts:
            search.add((text,) if isinstance(text, str) else text)
        return search.finish(threshold)


@dataclass(frozen=True)
class Sketches:
    """What :class:`DuplicateFinder` needs to know of some rows.

    ``keys``: 16 bytes a row, equal for equal rows. ``sketched``: which rows have the rest, row by row: ``bands``, the
    number of trigrams of each part in ``lengths``, and all ``trigrams`` one after the other.
    """

    keys: bytes
    sketched: NDArray[np.bool_]
    bands: Hashes
    lengths: NDArray[np.int64]
    trigrams: NDArray[np.uint32]


class Sketcher:
    """Makes sketches; several may share the work in processes of their own, each given its rows in their order.

    Remembers the keys of its rows: a copy of an earlier row needs no MinHash.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._seen: set[bytes] = set()

    def sketch(self, rows: Sequence[Sequence[str]], grams: Grams) -> Sketches:
        """``rows`` are normalised parts, as many in each row, and ``grams`` the tokens of all of these parts."""
        parts = len(rows[0]) if rows else 1
        keys = [xxhash.xxh3_128_digest(b"\x1e".join(encoded([row]))) for row in rows]
        sketched = np.zeros(len(rows), np.bool_)
        for index, key in enumerate(keys):
            if key not in self._seen:
                self._seen.add(key)
                sketched[index] = True
        if any(len(row) != parts for row in rows):
            raise ValueError(f"rows of one batch have different numbers of parts, the first has {parts}")
        trigrams = ngrams(grams if sketched.all() else grams.select(np.repeat(sketched, parts)), GRAM_TOKENS)
        bands = _band_keys(trigrams.hashes, trigrams.offsets[::parts], self._seed)
        short = (trigrams.hashes >> np.uint64(32)).astype(np.uint32)
        return Sketches(b"".join(keys), sketched, bands, trigrams.counts().reshape(-1, parts), short)


class DuplicateFinder:
    """Takes sketches of all rows in their order, then says which rows are copies. Closes its temporary file."""

    def __init__(self, spool: Path | None) -> None:
        self._file = tempfile.TemporaryFile(dir=spool, buffering=0)  # noqa: SIM115
        self._first: dict[bytes, int] = {}
        self._exact_of = array("q")
        self._bands = _Growing(np.uint64, BANDS)
        self._lengths: _Growing[np.int64] | None = None

    def __enter__(self) -> DuplicateFinder:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, sketches: Sketches) -> None:
        """The next rows. Raises OSError when the temporary file cannot be written."""
        new = np.zeros(len(sketches.sketched), np.bool_)
        for row in range(len(new)):
            index = len(self._exact_of)
            first = self._first.setdefault(sketches.keys[16 * row : 16 * row + 16], index)
            self._exact_of.append(first)
            new[row] = first == index
        if self._lengths is None:
            self._lengths = _Growing(np.int64, sketches.lengths.shape[1])
        wanted = new[sketches.sketched]
        lengths = sketches.lengths[wanted]
        trigrams = sketches.trigrams
        if not wanted.all():
            trigrams = trigrams[np.repeat(wanted, sketches.lengths.sum(axis=1))]
        _write_all(self._file, trigrams)
        self._lengths.extend(lengths)
        self._bands.extend(sketches.bands[wanted])

    def finish(self, threshold: float) -> Duplicates:
        """To be called once, at the end. Raises OSError."""
        exact_of = np.array(self._exact_of, np.int64)
        if self._lengths is None:
            return Duplicates(exact_of, exact_of.copy())
        self._first.clear()
        self._threshold = threshold
        firsts = np.flatnonzero(exact_of == np.arange(len(exact_of)))
        self._stored_of = np.searchsorted(firsts, exact_of)
        self._store = _Store(self._file, self._lengths.values())
        parents = _clusters(self._bands.values(), self._store, threshold)
        cluster_of = exact_of.copy()
        cluster_of[firsts] = firsts[parents]
        return Duplicates(exact_of, cluster_of[exact_of])

    def similar(self, left: Offsets, right: Offsets) -> NDArray[np.bool_]:
        """Whether two rows are near duplicates of one another, pair by pair; after :meth:`finish`. Raises OSError."""
        same = np.zeros(len(left), np.bool_)
        if len(left):
            one, other = self._stored_of[left], self._stored_of[right]
            bands = self._bands.values()
            met = np.flatnonzero((bands[one] == bands[other]).any(axis=1))
            same[met] = self._store.similar(one[met], other[met], self._threshold)
        return same


class DuplicateSearch:
    """:func:`find_duplicates` for rows that come one by one; of their texts it keeps few at a time."""

    def __init__(self, seed: int, spool: Path | None = None) -> None:
        self._sketcher, self._finder = Sketcher(seed), DuplicateFinder(spool)
        self._forms: list[list[str]] = []
        self._characters = 0

    def __enter__(self) -> DuplicateSearch:
        return self

    def __exit__(self, *error: object) -> None:
        self._finder.__exit__(*error)

    def add(self, row: Sequence[str]) -> None:
        """The parts of the next row. Raises OSError when the temporary file cannot be written."""
        self._forms.append([normalised(part) for part in row])
        self._characters += sum(map(len, row))
        if self._characters >= CHUNK_CHARACTERS:
            self._sketch()

    def finish(self, threshold: float) -> Duplicates:
        """To be called once, at the end. Raises OSError."""
        self._sketch()
        return self._finder.finish(threshold)

    def _sketch(self) -> None:
        if self._forms:
            self._finder.add(self._sketcher.sketch(self._forms, encoded_tokens(encoded(self._forms))))
        self._forms, self._characters = [], 0


def encoded(rows: Sequence[Sequence[str]]) -> list[bytes]:
    """All parts of all rows, as UTF-8; a lone surrogate is no error."""
    return [part.encode("utf-8", "surrogatepass") for row in rows for part in row]


def _band_keys(hashes: Hashes, offsets: Offsets, seed: int) -> Hashes:
    """One 64-bit key per row and band. Those of rows without trigrams mean nothing."""
    count = len(offsets) - 1
    size = BANDS * BAND_ROWS
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(hashes, offsets.astype(np.uint64), size, seed)
    flat = np.fromiter(chain.from_iterable(matrix.to_rows()), np.uint64, count * size)
    signature = flat.reshape(count, BANDS, BAND_ROWS)
    key = np.zeros((count, BANDS), np.uint64)
    for row in range(BAND_ROWS):
        key = mixed(key ^ signature[:, :, row])
    return key


class _Store:
    """The trigrams of every row, part by part, in a file."""

    def __init__(self, file: BinaryIO, lengths: NDArray[np.int64]) -> None:
        self._descriptor = file.fileno()
        self.lengths = lengths
        ends = np.cumsum(lengths.sum(axis=1))
        self._starts = np.concatenate(([0], ends))

    def similar(self, left: Offsets, right: Offsets, threshold: float) -> NDArray[np.bool_]:
        """Whether each pair of rows is nearly the same."""
        sizes = self.lengths.sum(axis=1)
        pieces = (sizes[left] + sizes[right]).cumsum() // GRAMS_AT_A_TIME
        same = np.zeros(len(left), np.bool_)
        for piece in np.unique(pieces):
            start, end = np.searchsorted(pieces, (piece, piece + 1))
            same[start:end] = self._similar(left[start:end], right[start:end], threshold)
        return same

    def _similar(self, left: Offsets, right: Offsets, threshold: float) -> NDArray[np.bool_]:
        parts = self.lengths.shape[1]
        keys = np.concatenate([self._keys(left, 0), self._keys(right, 1)])
        keys.sort()
        keys = keys[np.concatenate(([True], keys[1:] != keys[:-1]))]
        shared = np.flatnonzero(keys[1:] >> np.uint64(1) == keys[:-1] >> np.uint64(1))
        cells = len(left) * parts
        both = np.bincount((keys[shared] >> np.uint64(33)).astype(np.int64), minlength=cells).reshape(-1, parts)
        sizes = np.bincount((keys >> np.uint64(33)).astype(np.int64), minlength=cells).reshape(-1, parts)
        either = sizes - both
        enough = both >= PART_SHARE * threshold * either
        whole: NDArray[np.bool_] = both.sum(axis=1) >= threshold * either.sum(axis=1)
        return whole & enough.all(axis=1)

    def _keys(self, rows: Offsets, side: int) -> Hashes:
        """``pair and part << 33 | trigram << 1 | side`` for every trigram of every row."""
        grams = np.concatenate([self._read(row) for row in rows.tolist()]).astype(np.uint64)
        cells = np.repeat(np.arange(self.lengths[rows].size, dtype=np.uint64), self.lengths[rows].ravel())
        return cells << np.uint64(33) | grams << np.uint64(1) | np.uint64(side)

    def _read(self, row: int) -> NDArray[np.uint32]:
        start, end = int(self._starts[row]) * 4, int(self._starts[row + 1]) * 4
        data = os.pread(self._descriptor, end - start, start)
        if len(data) != end - start:
            raise OSError(f"the temporary file of trigrams was cut short: {len(data)} of {end - start} bytes")
        return np.frombuffer(data, np.uint32)


def _clusters(bands: Hashes, store: _Store, threshold: float) -> Offsets:
    """For every row the first row of its cluster."""
    parents = np.arange(len(bands))
    comparable = np.flatnonzero(store.lengths.sum(axis=1) > 0)
    different = np.empty(0, np.uint64)  # pairs that met in a band before and are not similar
    for band in range(BANDS):
        keys = bands[comparable, band]
        order = np.argsort(keys, kind="stable")
        keys, members = keys[order], comparable[order]
        for _ in range(LEADERS):
            first = np.concatenate(([True], keys[1:] != keys[:-1])) if len(keys) else np.zeros(0, np.bool_)
            bucket = np.cumsum(first) - 1
            left, right = members[first][bucket[~first]], members[~first]
            apart = parents[left] != parents[right]
            left, right = left[apart], right[apart]
            if not len(left):
                break
            pairs = left.astype(np.uint64) << np.uint64(32) | right.astype(np.uint64)
            unknown = ~np.isin(pairs, different)
            same = np.zeros(len(pairs), np.bool_)
            same[unknown] = store.similar(left[unknown], right[unknown], threshold)
            different = np.union1d(different, pairs[~same])
            parents = united(parents, left[same], right[same])
            keys, members = keys[~first][apart][~same], right[~same]
    return parents


def united(parents: Offsets, left: Offsets, right: Offsets) -> Offsets:
    """``parents`` with the clusters of every pair merged; each cluster is named by its smallest member."""
    parents = parents.copy()
    while True:
        one, other = parents[left], parents[right]
        if (one == other).all():
            return parents
        np.minimum.at(parents, np.maximum(one, other), np.minimum(one, other))
        while not (parents[parents] == parents).all():
            parents = parents[parents]


class _Growing(Generic[Kind]):
    """Rows of ``width`` values appended in batches, kept in one array that grows by half."""

    def __init__(self, kind: type[Kind], width: int) -> None:
        self._array: NDArray[Kind] = np.empty((1 << 12, width), kind)
        self._count = 0

    def extend(self, rows: NDArray[Kind]) -> None:
        needed = self._count + len(rows)
        if needed > len(self._array):
            larger = np.empty((max(needed, len(self._array) * 3 // 2), *self._array.shape[1:]), self._array.dtype)
            larger[: self._count] = self._array[: self._count]
            self._array = larger
        self._array[self._count : needed] = rows
        self._count = needed

    def values(self) -> NDArray[Kind]:
        return self._array[: self._count]


def _write_all(file: BinaryIO, hashes: NDArray[np.uint32]) -> None:
    data = memoryview(hashes.tobytes())
    while data:
        data = data[file.write(data) :]
