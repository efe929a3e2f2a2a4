"""Numbers about tensors, a stretch of rows at a time, so that their wide copies stay small."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from evalsuite.trace_diff.result import Difference, Values

_STRETCH = 1 << 21
"""Elements that are widened at once."""


@dataclass(frozen=True)
class Error:
    """A difference by channel (the last axis). ``rms``: root mean square over the rows; infinite where only one of the
    two is finite. ``norm``: of A's values."""

    relative: float | None
    rms: torch.Tensor


def values(tensor: torch.Tensor) -> Values:
    count, total, squares, largest = 0, 0.0, 0.0, 0.0
    for (rows,) in _stretches(tensor):
        finite = rows[torch.isfinite(rows)]
        if finite.numel():
            count += finite.numel()
            total += float(finite.sum())
            squares += float((finite * finite).sum())
            largest = max(largest, float(finite.abs().max()))
    mean = total / count if count else 0.0
    std = math.sqrt(max(0.0, squares / count - mean * mean)) if count else 0.0
    return Values(mean, std, largest, tensor.numel() - count)


def difference(a: torch.Tensor, b: torch.Tensor) -> Difference:
    """Of two tensors of one shape; elements of which either isn't finite are left out."""
    of_a = of_b = product = apart = 0.0
    for rows_a, rows_b in _stretches(a, b):
        both = torch.isfinite(rows_a) & torch.isfinite(rows_b)
        left, right = rows_a[both], rows_b[both]
        of_a += float((left * left).sum())
        of_b += float((right * right).sum())
        product += float((left * right).sum())
        apart += float(((left - right) ** 2).sum())
    norm = math.sqrt(of_a * of_b)
    return Difference(math.sqrt(apart / of_a) if of_a else None, max(-1.0, min(1.0, product / norm)) if norm else None)


def error(expected: torch.Tensor, found: torch.Tensor) -> Error:
    channels = expected.shape[-1] if expected.dim() else 1
    squares = torch.zeros(channels, dtype=torch.float64)
    norm, count = 0.0, 0
    for rows_a, rows_b in _stretches(expected, found):
        same = (rows_a == rows_b) | (rows_a.isnan() & rows_b.isnan())
        apart = torch.where(same, 0.0, rows_b - rows_a).nan_to_num(nan=math.inf, posinf=math.inf, neginf=math.inf)
        squares += (apart * apart).sum(0)
        norm += float((rows_a.nan_to_num(0.0, 0.0, 0.0) ** 2).sum())
        count += rows_a.shape[0]
    total = float(squares.sum())
    relative = math.sqrt(total / norm) if norm and math.isfinite(total) else 0.0 if total == 0 else None
    return Error(relative, (squares / max(1, count)).sqrt())


def times_explained(own: Error, explained: Error) -> float | None:
    """The largest of the channels' own errors by what is explained of each, of most channels at least.

    A channel by itself can be explained too little by chance: what is explained of half of the channels counts for all.
    None when there is an error and nothing is explained.
    """
    if float(own.rms.max()) == 0:
        return 0.0
    floor = explained.rms.clamp(min=float(explained.rms.median()))
    found = float((own.rms / floor).nan_to_num(0.0, posinf=math.inf).max())
    return found if math.isfinite(found) else None


def _stretches(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same rows of each in float64, on the CPU."""
    flat = [tensor.reshape(-1, tensor.shape[-1] if tensor.dim() else 1) for tensor in tensors]
    each = max(1, _STRETCH // max(1, flat[0].shape[1]))
    for start in range(0, flat[0].shape[0], each):
        yield tuple(rows[start : start + each].to("cpu", torch.float64) for rows in flat)
