"""What is done at the doors of a model's modules, pass by pass."""

from __future__ import annotations

import torch

from evalsuite.trace_diff import measure
from evalsuite.trace_diff.hooks import Call
from evalsuite.trace_diff.measure import Error
from evalsuite.trace_diff.result import WHOLE, Difference, Values
from evalsuite.trace_diff.spec import Simulation
from evalsuite.trace_diff.store import Point, Store
from evalsuite.trace_diff.weights import coarse_output, generator, inexact, is_linear


class Recorded:
    """The first model as it runs: everything is stored."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.kinds: dict[str, str] = {}
        self.values: dict[Point, Values] = {}
        self.order: list[Point] = []

    def arrived(self, point: Point, tensor: torch.Tensor) -> torch.Tensor:
        self._store.put(point, tensor)
        self.order.append(point)
        return tensor

    def left(self, point: Point, tensor: torch.Tensor, call: Call) -> torch.Tensor:
        self._store.put(point, tensor)
        self.order.append(point)
        self.kinds[point.module] = type(call.module).__name__
        self.values[point] = measure.values(tensor)
        return tensor


class Free:
    """The second model as it runs, against what is stored: errors gather."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.values: dict[Point, Values] = {}
        self.differences: dict[Point, Difference] = {}
        self.same_next_token: tuple[int, int] | None = None

    def arrived(self, point: Point, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def left(self, point: Point, tensor: torch.Tensor, call: Call) -> torch.Tensor:
        self.values[point] = measure.values(tensor)
        if point in self._store and self._store.shape(point) == tuple(tensor.shape):
            stored = self._store.get(point)
            self.differences[point] = measure.difference(stored, tensor)
            if point.module == WHOLE:
                same = stored.argmax(-1) == tensor.cpu().argmax(-1)
                self.same_next_token = int(same.sum()), same.numel()
        return tensor


class Forced:
    """The second model with the first one's values at every door: what differs arose right there.

    ``kept`` receives what it made of them. Tensors of another shape than the stored are in ``misfits``.
    """

    def __init__(self, store: Store, kept: Store | None) -> None:
        self._store = store
        self._kept = kept
        self.errors: dict[Point, Error] = {}
        self.misfits: list[tuple[Point, tuple[int, ...], tuple[int, ...]]] = []

    def arrived(self, point: Point, tensor: torch.Tensor) -> torch.Tensor:
        return self._compared(point, tensor)

    def left(self, point: Point, tensor: torch.Tensor, call: Call) -> torch.Tensor:
        return self._compared(point, tensor)

    def _compared(self, point: Point, tensor: torch.Tensor) -> torch.Tensor:
        if self._kept is not None:
            self._kept.put(point, tensor)
        if point not in self._store:
            return tensor
        if self._store.shape(point) != tuple(tensor.shape):
            self.misfits.append((point, self._store.shape(point), tuple(tensor.shape)))
            return tensor
        stored = self._store.get(point)
        self.errors[point] = measure.error(stored, tensor)
        return stored.to(tensor.device, tensor.dtype)


class Simulated:
    """The finer model made as coarse as the other, with the first one's values, themselves inexact, at every door.

    ``target``: what it makes of them when nothing is made coarse. The errors are those that a difference in precision
    explains.
    """

    def __init__(self, simulation: Simulation, store: Store, target: Store, head: torch.nn.Module | None) -> None:
        self._simulation = simulation
        self._store = store
        self._target = target
        self._head = head
        self.errors: dict[Point, Error] = {}

    def arrived(self, point: Point, tensor: torch.Tensor) -> torch.Tensor:
        return self._compared(point, tensor)

    def left(self, point: Point, tensor: torch.Tensor, call: Call) -> torch.Tensor:
        made = tensor
        if is_linear(call.module) and call.args and isinstance(call.args[0], torch.Tensor):
            nf4 = self._simulation.nf4 and not self._spared(point, call.module)
            made = coarse_output(call.module, call.args[0], self._simulation.noise, nf4, str(point))
        return self._compared(point, self._inexact(point, made)).to(tensor.dtype)

    def _spared(self, point: Point, module: torch.nn.Module) -> bool:
        parts = point.module.split(".")
        return module is self._head or any(name in parts or name == point.module for name in self._simulation.spared)

    def _compared(self, point: Point, tensor: torch.Tensor) -> torch.Tensor:
        if point not in self._store or self._store.shape(point) != tuple(tensor.shape):
            return tensor
        self.errors[point] = measure.error(self._target.get(point), tensor)
        return self._inexact(point, self._store.get(point).to(tensor.device)).to(tensor.dtype)

    def _inexact(self, point: Point, tensor: torch.Tensor) -> torch.Tensor:
        return inexact(tensor, self._simulation.noise, generator(f"values {point}", tensor.device))
