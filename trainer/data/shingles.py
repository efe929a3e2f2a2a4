"""Token n-grams of texts as 64-bit hashes, many texts at a time in numpy. No torch.

A token is a run of letters, digits and underscores, or a single other character; characters of three or more bytes
in UTF-8 (Chinese, Japanese, Thai, most symbols) are a token each. Whitespace and control characters only separate,
letter case does not count. The hashes depend on nothing but the text, on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.data.keys import normalised

Hashes = NDArray[np.uint64]
Offsets = NDArray[np.int64]

CHUNK_CHARACTERS = 1 << 17
"""Texts hashed at a time, so that the working arrays stay in the processor's cache."""

_WORD, _SINGLE, _SPACE = 1, 2, 0
_BASE = 0x9E3779B97F4A7C15
_BASE_INVERSE = pow(_BASE, -1, 1 << 64)


@dataclass(frozen=True)
class Grams:
    """Hashes of consecutive pieces; those of text ``i`` are ``hashes[offsets[i]:offsets[i + 1]]``."""

    hashes: Hashes
    offsets: Offsets

    def counts(self) -> Offsets:
        """How many pieces each text has."""
        return np.diff(self.offsets)

    def select(self, texts: NDArray[np.bool_]) -> Grams:
        """Those of the texts chosen."""
        counts = self.counts()
        offsets = np.zeros(int(texts.sum()) + 1, np.int64)
        np.cumsum(counts[texts], out=offsets[1:])
        return Grams(self.hashes[np.repeat(texts, counts)], offsets)

    def joined(self, texts: int) -> Grams:
        """Every so many neighbouring texts as one."""
        return Grams(self.hashes, self.offsets[::texts])


def chunks(texts: Sequence[str]) -> Iterator[slice]:
    """``texts`` in pieces of about CHUNK_CHARACTERS, at least one text each."""
    start = characters = 0
    for index, text in enumerate(texts):
        characters += len(text)
        if characters >= CHUNK_CHARACTERS:
            yield slice(start, index + 1)
            start, characters = index + 1, 0
    if start < len(texts):
        yield slice(start, len(texts))


def tokens(texts: Sequence[str]) -> Grams:
    """The tokens of every text, in their order."""
    return encoded_tokens(
        [
            text.lower().encode() if text.isascii() else normalised(text).encode("utf-8", "surrogatepass")
            for text in texts
        ]
    )


def encoded_tokens(texts: Sequence[bytes]) -> Grams:
    """:func:`tokens` of texts that went through :func:`normalised` and are encoded as UTF-8."""
    if not texts:
        return Grams(np.empty(0, np.uint64), np.zeros(1, np.int64))
    data = np.frombuffer(b"\n".join(texts), np.uint8)
    starts = np.flatnonzero(_is_start(data))
    text_ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1) - 1
    offsets = np.zeros(len(texts) + 1, np.int64)
    offsets[1:] = np.searchsorted(starts, text_ends)
    return Grams(_window_hashes(_BYTE_CODES.take(data), starts, np.append(starts[1:], len(data))), offsets)


def ngrams(grams: Grams, size: int) -> Grams:
    """All runs of ``size`` tokens of each text, or the whole of a text that has fewer (none, if it has no token)."""
    count = len(grams.hashes)
    lengths = grams.counts()
    row_end = np.repeat(grams.offsets[1:], lengths)
    position = np.arange(count)
    chosen = position + size <= row_end
    short = (lengths > 0) & (lengths < size)
    chosen[grams.offsets[:-1][short]] = True
    starts = position[chosen]
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.where(short, 1, np.maximum(lengths - size + 1, 0)), out=offsets[1:])
    ends = np.minimum(starts + size, row_end[chosen])
    return Grams(_window_hashes(grams.hashes, starts, ends), offsets)


def mixed(values: Hashes) -> Hashes:
    """A bijection that spreads every bit over the word (the finaliser of MurmurHash3)."""
    values = values ^ (values >> np.uint64(33))
    values *= np.uint64(0xFF51AFD7ED558CCD)
    values ^= values >> np.uint64(33)
    values *= np.uint64(0xC4CEB9FE1A85EC53)
    values ^= values >> np.uint64(33)
    return values


def _window_hashes(codes: Hashes, starts: Offsets, ends: Offsets) -> Hashes:
    """A hash of ``codes[start:end]`` for every pair; codes of zero leave it as it is.

    Polynomial hashes modulo 2^64 out of one running sum: the difference of two prefixes, moved back to power zero.
    """
    powers, inverse = _powers(len(codes) + 1)
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.multiply(codes, powers[: len(codes)], out=sums[1:])
    np.cumsum(sums[1:], out=sums[1:])
    return mixed((sums[ends] - sums[starts]) * inverse[starts])


def _is_start(data: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether a token begins at each byte of the UTF-8 text."""
    kinds = _BYTE_KINDS.take(data)
    word = kinds == _WORD
    starts: NDArray[np.bool_] = word.copy()
    starts[1:] &= ~word[:-1]
    starts |= kinds == _SINGLE
    wide = np.flatnonzero(data >= 0xE0)
    if len(wide):
        of_wide = np.zeros(len(data) + 4, np.bool_)
        for step in (0, 1, 2):
            of_wide[wide + step] = True
        of_wide[wide[data[wide] >= 0xF0] + 3] = True
        of_wide = of_wide[: len(data)]
        starts[1:] |= word[1:] & of_wide[:-1]
        starts &= ~of_wide
        starts[wide] = True
    return starts


def _kinds() -> NDArray[np.uint8]:
    kinds = np.full(256, _SINGLE, np.uint8)
    kinds[:0x21] = kinds[0x7F] = _SPACE
    for byte in range(0x80):
        if chr(byte).isalnum() or chr(byte) == "_":
            kinds[byte] = _WORD
    kinds[0x80:] = _WORD
    return kinds


def _codes() -> Hashes:
    codes = mixed(np.arange(1, 257, dtype=np.uint64) * np.uint64(_BASE))
    codes[_kinds() == _SPACE] = 0
    return codes


_BYTE_KINDS = _kinds()
_BYTE_CODES = _codes()
_power_tables: list[tuple[Hashes, Hashes]] = []


def _powers(count: int) -> tuple[Hashes, Hashes]:
    """The first powers of the base, and of its inverse, at least ``count`` of each."""
    if not _power_tables or len(_power_tables[0][0]) < count:
        size = max(1 << 16, 1 << (count - 1).bit_length())
        pair = []
        for base in (_BASE, _BASE_INVERSE):
            factors = np.full(size, base, np.uint64)
            factors[0] = 1
            pair.append(np.cumprod(factors, dtype=np.uint64))
        _power_tables[:] = [(pair[0], pair[1])]
    return _power_tables[0]
