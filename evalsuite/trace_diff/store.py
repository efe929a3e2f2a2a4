"""Activations of one pass, in a file: what memory holds of them is where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import torch
import xxhash


class Point(NamedTuple):
    """A tensor that goes into or comes out of a call of a module; ``slot``: which of several."""

    module: str
    call: int
    out: bool
    slot: str


@dataclass(frozen=True)
class _Place:
    offset: int
    size: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Store:
    """Tensors by point, in the order in which they came. Equal ones lie there once: most outputs are inputs as well."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "w+b")  # noqa: SIM115  # closed by __exit__
        self._places: dict[Point, _Place] = {}
        self._known: dict[tuple[str, torch.dtype, tuple[int, ...]], _Place] = {}
        self._end = 0

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return self._end

    def put(self, point: Point, tensor: torch.Tensor) -> None:
        """Raises OSError when the disk is full."""
        shape = tuple(tensor.shape)
        data = tensor.detach().to("cpu").contiguous().view(-1).view(torch.uint8).numpy().data
        key = (xxhash.xxh3_128_hexdigest(data), tensor.dtype, shape)
        if (place := self._known.get(key)) is None:
            place = _Place(self._end, data.nbytes, tensor.dtype, shape)
            self._file.seek(self._end)
            self._file.write(data)
            self._end += data.nbytes
            self._known[key] = place
        self._places[point] = place

    def __contains__(self, point: Point) -> bool:
        return point in self._places

    def shape(self, point: Point) -> tuple[int, ...]:
        return self._places[point].shape

    def get(self, point: Point) -> torch.Tensor:
        """As it was stored, on the CPU. Raises KeyError."""
        place = self._places[point]
        self._file.seek(place.offset)
        data = bytearray(place.size)
        self._file.readinto(data)
        flat = torch.frombuffer(data, dtype=place.dtype) if data else torch.empty(0, dtype=place.dtype)
        return flat.view(place.shape)
