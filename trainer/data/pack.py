"""Packing: whole rows into bins of at most ``max_length`` tokens."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

WINDOW_ROWS = 1024
"""Rows are only packed with rows near them in the order, so that shuffle and curriculum survive."""


def pack(
    lengths: Ints,
    order: Ints,
    max_length: int,
    *,
    packing: bool,
    rng: np.random.Generator,
    levels: npt.NDArray[np.float64] | None = None,
) -> tuple[Ints, Ints]:
    """Bins of the rows in ``order``: ``(offsets, rows)``, bin ``i`` is ``rows[offsets[i]:offsets[i + 1]]``.

    Best fit decreasing inside windows of WINDOW_ROWS rows of ``order``; the bins of a window come in an order
    drawn from ``rng``. A window ends where the level (by row id, ascending in ``order``) changes. No row is
    ever split. Without ``packing`` every row is a bin, in ``order``. ``lengths`` are tokens by row id. Raises
    ValueError when a row is longer than ``max_length``.
    """
    sizes = lengths[order]
    if len(sizes) and int(sizes.max()) > max_length:
        row = int(order[int(sizes.argmax())])
        raise ValueError(f"row {row} has {int(sizes.max())} tokens, more than the {max_length} of a bin")
    if not packing:
        return np.arange(len(order) + 1, dtype=np.int64), order.astype(np.int64)
    ends = list(range(WINDOW_ROWS, len(order), WINDOW_ROWS))
    if levels is not None:
        ends = _window_ends(levels[order])
    bins: list[list[int]] = []
    start = 0
    for end in [*ends, len(order)]:
        window = _best_fit(order[start:end].tolist(), sizes[start:end], max_length)
        bins += [window[index] for index in rng.permutation(len(window)).tolist()]
        start = end
    counts = np.fromiter(map(len, bins), dtype=np.int64, count=len(bins))
    rows = np.fromiter((row for members in bins for row in members), dtype=np.int64, count=len(order))
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]), rows


def _window_ends(levels: npt.NDArray[np.float64]) -> list[int]:
    changes = (np.flatnonzero(np.diff(levels)) + 1).tolist()
    ends: list[int] = []
    for start, end in zip([0, *changes], [*changes, len(levels)], strict=True):
        ends += [*range(start + WINDOW_ROWS, end, WINDOW_ROWS), end]
    return ends[:-1]


def _best_fit(rows: list[int], sizes: Ints, max_length: int) -> list[list[int]]:
    """Longest row first, each into the fullest bin that still has room."""
    bins: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (free tokens, bin), ascending
    by_size = np.argsort(-sizes, kind="stable").tolist()
    size_list = sizes.tolist()
    for position in by_size:
        size = size_list[position]
        place = bisect_left(rooms, (size, -1))
        if place == len(rooms):
            room, index = max_length, len(bins)
            bins.append([])
        else:
            room, index = rooms.pop(place)
        bins[index].append(rows[position])
        insort(rooms, (room - size, index))
    return bins
