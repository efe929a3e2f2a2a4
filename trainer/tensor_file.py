"""Safetensors files whose layout is known before a tensor is written, so that they can be rewritten in place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: ``begin`` to ``end``, bytes from the file's beginning."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Layout:
    header: bytes
    places: tuple[Place, ...]

    @property
    def size(self) -> int:
        return self.places[-1].end if self.places else len(self.header)

    def views(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """The tensors inside ``memory``, a flat uint8 tensor of ``size`` bytes, in the order of ``places``."""
        return [memory[place.begin : place.end].view(place.dtype).view(place.shape) for place in self.places]


def lay_out(tensors: Mapping[str, torch.Tensor]) -> Layout:
    """Wide types first, so that every tensor is aligned; by name within a type: equal states give equal files."""
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), str(tensors[name].dtype), name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in order:
        tensor = tensors[name]
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    places = []
    begin = len(head)
    for name in order:
        tensor = tensors[name]
        end = begin + tensor.numel() * tensor.element_size()
        places.append(Place(name, tensor.dtype, tuple(tensor.shape), begin, end))
        begin = end
    return Layout(head, tuple(places))


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a new file. Raises OSError when the disk is full."""
    layout = lay_out(tensors)
    with open(path, "wb") as file:
        file.write(layout.header)
        for place in layout.places:
            data = tensors[place.name].detach().contiguous().cpu().reshape(-1).view(torch.uint8)
            file.write(data.numpy().data)


def in_order(layout: Layout, tensors: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor]:
    """The tensors in the layout's order. Raises KeyError when one is missing."""
    return [tensors[place.name] for place in layout.places]
