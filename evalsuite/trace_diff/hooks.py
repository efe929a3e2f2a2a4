"""One forward pass with a visitor at the door of every module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from peft.tuners.tuners_utils import BaseTunerLayer

from evalsuite.trace_diff.result import WHOLE
from evalsuite.trace_diff.store import Point


class Visitor(Protocol):
    """Is given every tensor of floating point that goes in or comes out, and returns what goes on instead."""

    def arrived(self, point: Point, tensor: torch.Tensor) -> torch.Tensor: ...

    def left(self, point: Point, tensor: torch.Tensor, call: Call) -> torch.Tensor: ...


class Call:
    """What a module was called with, after the visitor has been at its inputs."""

    def __init__(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        self.module = module
        self.args = args


def modules(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Those that are looked at, by name: all but the parts of an adapted layer, which a merged one doesn't have."""
    found: dict[str, torch.nn.Module] = {}
    inside: list[str] = []
    for name, module in model.named_modules():
        if any(name.startswith(each) for each in inside):
            continue
        if isinstance(module, BaseTunerLayer):
            inside.append(f"{name}.")
        found[name or WHOLE] = module
    return found


@contextmanager
def visited(model: torch.nn.Module, visitor: Visitor) -> Iterator[None]:
    """Passes of ``model`` go through ``visitor`` meanwhile."""
    handles = []
    for name, module in modules(model).items():
        before, after = _doors(name, visitor)
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _doors(name: str, visitor: Visitor) -> tuple[Callable[..., Any], Callable[..., Any]]:
    entered = left = 0

    def before(
        module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        nonlocal entered
        call, entered = entered, entered + 1
        tensors = dict(floating((args, kwargs)))
        seen = {slot: visitor.arrived(Point(name, call, False, slot), tensor) for slot, tensor in tensors.items()}
        changed: tuple[tuple[Any, ...], dict[str, Any]] = replaced((args, kwargs), seen)
        return changed

    def after(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        nonlocal left
        call, left = left, left + 1
        what = Call(module, args)
        seen = {
            slot: visitor.left(Point(name, call, True, slot), tensor, what) for slot, tensor in floating(output)
        }
        return replaced(output, seen)

    return before, after


def floating(value: Any, slot: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of floating point in ``value``, by where they stand in it. Masks are left out: their numbers are no
    activations and differ from type to type."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.numel():
            yield slot, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if "mask" not in str(key):
                yield from floating(each, f"{slot}.{key}")
    elif isinstance(value, (tuple, list)):
        for at, each in enumerate(value):
            yield from floating(each, f"{slot}.{at}")


def replaced(value: Any, tensors: Mapping[str, torch.Tensor], slot: str = "") -> Any:
    """``value`` with ``tensors`` where :func:`floating` found some."""
    if isinstance(value, torch.Tensor):
        return tensors.get(slot, value)
    if isinstance(value, Mapping):
        changed = {key: replaced(each, tensors, f"{slot}.{key}") for key, each in value.items()}
        if all(changed[key] is value[key] for key in changed):
            return value
        new: Any = copy.copy(value)
        for key, each in changed.items():
            new[key] = each
        return new
    if isinstance(value, (tuple, list)):
        items = [replaced(each, tensors, f"{slot}.{at}") for at, each in enumerate(value)]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
