"""An adapter as one flat float32 array, which is what goes over the wire.

One array and not hundreds: Flower keeps each array as an object of its own, and many small ones end in "database is
locked". float32 because Flower's ArrayRecord refuses bfloat16; adapters are trained in float32 anyway.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainer.federated.common import Common

Flat = NDArray[np.float32]
A_SUFFIX, B_SUFFIX = ".lora_A.weight", ".lora_B.weight"


class Layer(msgspec.Struct, frozen=True):
    """A weight of ``rows`` x ``columns`` that the adapter named ``name`` (PEFT's prefix) adds to."""

    name: str
    rows: int
    columns: int


class Layout(msgspec.Struct, frozen=True):
    """Where in the flat array each factor lies: per layer, by name, first A [rank, columns], then B [rows, rank]."""

    rank: int
    layers: tuple[Layer, ...]

    @property
    def size(self) -> int:
        """Numbers in the array."""
        return sum(self.rank * (layer.rows + layer.columns) for layer in self.layers)

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class Blueprint(msgspec.Struct, frozen=True):
    """What is one for all nodes: the adapter's layout, its ``scale`` (lora_alpha / r), the seed of its beginning
    and what PEFT's adapter_config.json says of it.

    Beyond that, what goes beside the adapter in ``final/``: ``template`` (template.json) and ``chat_template``, the
    ``identity`` and ``versions`` of its manifest, and ``run``, the training as a run's run.yaml; and ``common``, which
    every box is asked to have. Empty where only the adapter was asked for.
    """

    layout: Layout
    scale: float
    seed: int
    adapter_config: dict[str, Any] = {}
    template: dict[str, Any] = {}
    chat_template: str = ""
    identity: dict[str, str] = {}
    versions: dict[str, str] = {}
    run: dict[str, Any] = {}
    common: Common | None = None


@dataclass(frozen=True)
class Factors:
    b: NDArray[np.float32]
    a: NDArray[np.float32]


class NotAnAdapterError(ValueError):
    """Tensors that are no LoRA adapter of one rank; the text names the first that does not fit."""


def layout_of(tensors: Mapping[str, NDArray[np.floating]]) -> Layout:
    """The layout of an adapter's tensors, by the names in its adapter_model.safetensors. Raises NotAnAdapterError."""
    prefixes = sorted(name.removesuffix(A_SUFFIX) for name in tensors if name.endswith(A_SUFFIX))
    strange = sorted(set(tensors) - {prefix + suffix for prefix in prefixes for suffix in (A_SUFFIX, B_SUFFIX)})
    if strange or not prefixes:
        raise NotAnAdapterError(f"{strange[0] if strange else 'no tensor'} is not a factor of a LoRA adapter")
    rank = tensors[prefixes[0] + A_SUFFIX].shape[0]
    layers = []
    for prefix in prefixes:
        a, b = tensors[prefix + A_SUFFIX], tensors.get(prefix + B_SUFFIX)
        if b is None or a.ndim != 2 or b.ndim != 2 or a.shape[0] != rank or b.shape[1] != rank:
            raise NotAnAdapterError(f"{prefix} has no two factors of rank {rank}")
        layers.append(Layer(prefix, b.shape[0], a.shape[1]))
    return Layout(rank, tuple(layers))


def pack(layout: Layout, tensors: Mapping[str, NDArray[np.floating]]) -> Flat:
    """Raises NotAnAdapterError when the tensors are not laid out so."""
    if layout_of(tensors) != layout:
        raise NotAnAdapterError("the adapter has other layers, or another rank, than the federation's")
    flat = np.empty(layout.size, np.float32)
    for layer, factors in zip(layout.layers, unpack(layout, flat), strict=True):
        factors.a[:] = tensors[layer.name + A_SUFFIX]
        factors.b[:] = tensors[layer.name + B_SUFFIX]
    return flat


def unpack(layout: Layout, flat: Flat) -> list[Factors]:
    """Views into ``flat`` ([layout.size]), in the order of the layers."""
    found, begin = [], 0
    for layer in layout.layers:
        middle = begin + layout.rank * layer.columns
        end = middle + layer.rows * layout.rank
        a = flat[begin:middle].reshape(layout.rank, layer.columns)
        found.append(Factors(b=flat[middle:end].reshape(layer.rows, layout.rank), a=a))
        begin = end
    return found


def named(layout: Layout, flat: Flat) -> dict[str, NDArray[np.float32]]:
    """The tensors under the names of adapter_model.safetensors."""
    tensors = {}
    for layer, factors in zip(layout.layers, unpack(layout, flat), strict=True):
        tensors[layer.name + A_SUFFIX] = factors.a
        tensors[layer.name + B_SUFFIX] = factors.b
    return tensors


def of_rank(layout: Layout, rank: int) -> Layout:
    """The same layers with factors of another rank; 0: no numbers at all."""
    return Layout(rank, layout.layers)


def joined(adapter: Flat, frozen: Flat) -> Flat:
    """A broadcast: the adapter that is trained and, behind it, the frozen one of the same layers."""
    return np.concatenate([adapter, frozen])


def parted(layout: Layout, broadcast: Flat) -> tuple[Flat, Layout, Flat]:
    """The adapter that is trained, and layout and numbers of the frozen one, whose rank is told by how many there are.

    Raises NotAnAdapterError when the broadcast is no two adapters of these layers.
    """
    rank, rest = divmod(broadcast.size - layout.size, of_rank(layout, 1).size)
    if rank < 0 or rest:
        raise NotAnAdapterError(f"a broadcast of {broadcast.size} numbers is no adapter of these layers")
    return broadcast[: layout.size], of_rank(layout, rank), broadcast[layout.size :]


def padded(layout: Layout, flat: Flat, rank: int) -> Flat:
    """The same products by factors of ``rank``: with zeros behind. Raises ValueError when they are more already."""
    if rank < layout.rank:
        raise ValueError(f"factors of rank {layout.rank} do not go into rank {rank}")
    wide = of_rank(layout, rank)
    found = np.zeros(wide.size, np.float32)
    for new, old in zip(unpack(wide, found), unpack(layout, flat), strict=True):
        new.a[: layout.rank] = old.a
        new.b[:, : layout.rank] = old.b
    return found


def side_by_side(layout: Layout, flat: Flat, other_layout: Layout, other: Flat) -> tuple[Layout, Flat]:
    """One adapter whose products are the sums of both: the ranks one after the other."""
    whole = of_rank(layout, layout.rank + other_layout.rank)
    found = np.empty(whole.size, np.float32)
    parts = zip(unpack(whole, found), unpack(layout, flat), unpack(other_layout, other), strict=True)
    for new, first, second in parts:
        np.concatenate([first.a, second.a], 0, out=new.a)
        np.concatenate([first.b, second.b], 1, out=new.b)
    return whole, found


def read_npy(data: bytes) -> Flat:
    """One flat float32 array, as numpy saves it. Raises ValueError, and what a spoilt header makes numpy raise.

    What the header says is compared with what is there before anything is taken from it: it may come from anybody.
    """
    stream = io.BytesIO(data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("it is no array of a known format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    numbers = (len(data) - stream.tell()) // 4
    if dtype != np.dtype("<f4") or shape != (numbers,) or len(data) - stream.tell() != 4 * numbers:
        raise ValueError(f"it says {list(shape)} of {dtype}, which is no flat float32 array of {numbers} numbers")
    return np.frombuffer(data, "<f4", offset=stream.tell())


def digest(flat: Flat) -> str:
    return hashlib.sha256(np.ascontiguousarray(flat, "<f4").tobytes()).hexdigest()
