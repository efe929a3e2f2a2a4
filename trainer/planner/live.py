"""Count the bytes of all tensors that are alive, by what they are for; real tensors and fake ones alike."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LOGITS = "logits"
_INDEX = torch.ops.aten.index.Tensor
_INDEX_PUT = (torch.ops.aten.index_put_.default, torch.ops.aten._index_put_impl_.default)


@dataclass
class Peak:
    """The most bytes alive at once, in all and by label at that moment."""

    total: int = 0
    parts: dict[str, int] = field(default_factory=dict)


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it without types
    """While entered, knows every storage that an operator made and that still lives, and the peak of each phase.

    A storage counts once, however many tensors share it, under the label that was set when it was made; one with a
    dimension of ``vocabulary`` entries that was made while the label is ``working`` counts as logits. What is allocated
    and freed inside one kernel is not seen. Fake tensors selected by a boolean mask (whose number depends on data) are
    taken to be selected whole, which is the most there can be.
    """

    def __init__(self, vocabulary: int = 0, working: str = "activations") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.vocabulary = vocabulary
        self.working = working
        self.label = working
        self.live = 0
        self.phases: dict[str, Peak] = {}
        self._by_label: dict[str, int] = {}
        self._known: dict[int, list[Any]] = {}
        self._peak = Peak()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = _select_whole(func, args)
        if out is None:
            out = func(*args, **(kwargs or {}))
        for leaf in (out,) if isinstance(out, torch.Tensor) else tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return out

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The peak from here on is that of ``name``, until the next phase begins."""
        before, self._peak = self._peak, self.phases.setdefault(name, Peak())
        self._note_peak()
        try:
            yield
        finally:
            self._peak = before

    @contextmanager
    def labelled(self, label: str) -> Iterator[None]:
        before, self.label = self.label, label
        try:
            yield
        finally:
            self.label = before

    def add(self, tensor: torch.Tensor, label: str | None = None) -> None:
        """Count the storage of a tensor; with a ``label``, move one that is counted already to it."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._known.get(key)
        if known is None:
            size = storage.nbytes()
            if not size or tensor.device.type == "meta":
                return
            label = label or self._label_of(tensor)
            self._known[key] = [label, size, weakref.ref(storage, lambda _, key=key: self._gone(key))]  # type: ignore[misc]
            self.live += size
            self._by_label[label] = self._by_label.get(label, 0) + size
            self._note_peak()
        elif label is not None and known[0] != label:
            self._by_label[known[0]] -= known[1]
            self._by_label[label] = self._by_label.get(label, 0) + known[1]
            known[0] = label

    def _label_of(self, tensor: torch.Tensor) -> str:
        return LOGITS if self.label == self.working and self.vocabulary in tensor.shape else self.label

    def _gone(self, key: int) -> None:
        label, size, _ = self._known.pop(key)
        self.live -= size
        self._by_label[label] -= size

    def _note_peak(self) -> None:
        if self.live > self._peak.total:
            self._peak.total = self.live
            self._peak.parts = dict(self._by_label)


def _select_whole(func: Any, args: Any) -> torch.Tensor | None:
    """The result of indexing a fake tensor with a boolean mask as if all of it were True; None for anything else."""
    if func is not _INDEX and func not in _INDEX_PUT:
        return None
    source, masks = args[0], args[1]
    mask = masks[0] if masks else None
    if not isinstance(source, FakeTensor) or mask is None or mask.dtype is not torch.bool:
        return None
    if func is _INDEX:
        return source.flatten(0, mask.ndim - 1).clone()
    return source
