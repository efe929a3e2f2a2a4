"""What was found, and how it is judged. Pure, free of torch."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

FORMAT = 1
BEYOND = 8.0
"""A module departs when its own error is more than this many times what the difference in precision explains."""
WHOLE = "the model"
"""The name of the outermost module."""
_LAYER = re.compile(r"(?P<layer>.*\.\d+)(?:\.(?P<block>.*))?")


class Side(msgspec.Struct, frozen=True):
    """A load of a model. ``peak_bytes``: of this process while that model was in it; None where it can't be told."""

    spec: str
    base: str
    revision: str
    adapter: str | None
    dtype: str
    nf4: bool
    device: str
    peak_bytes: int | None


class Values(msgspec.Struct, frozen=True):
    """Of a module's output: mean, standard deviation and largest magnitude of what is finite, and how many are not."""

    mean: float
    std: float
    largest: float
    not_finite: int


class Difference(msgspec.Struct, frozen=True):
    """``relative``: L2 norm of the difference by that of A's values, ``cosine`` of both; None where a norm is zero."""

    relative: float | None
    cosine: float | None


class Own(msgspec.Struct, frozen=True):
    """The error that arises in one place: B's code given A's values, against A's result.

    ``explained``: the error that the difference in precision makes there, by simulation; ``times``: the largest of the
    channels' own errors by what is explained of them, None where there is an error that nothing explains.
    """

    relative: float | None = 0.0
    explained: float | None = 0.0
    times: float | None = 0.0

    @property
    def departs(self) -> bool:
        return self.times is None or not self.times <= BEYOND


class ModuleTrace(msgspec.Struct, frozen=True):
    """A module's ``call``, counted from 0. ``entered`` and ``left``: numbers of these events, in order of execution.

    ``b`` and ``accumulated``: as B runs by itself, with all errors gathered so far; None where shapes differ.
    ``own``: of the module, from its input to its output; ``before``: of what its parent does with earlier results to
    make this module's input.
    """

    name: str
    kind: str
    call: int
    entered: int
    left: int
    a: Values
    b: Values | None
    accumulated: Difference | None
    own: Own
    before: Own

    @property
    def layer(self) -> str:
        """The numbered layer that it is or belongs to, else its own name."""
        found = _LAYER.fullmatch(self.name)
        return found["layer"] if found else self.name

    @property
    def block(self) -> str:
        """The part of its layer, such as ``self_attn``; empty for the layer itself and what is in none."""
        found = _LAYER.fullmatch(self.name)
        return (found["block"] or "").split(".")[0] if found else ""


class Departure(msgspec.Struct, frozen=True):
    """``module``: the one whose inputs agree and whose result doesn't; ``where``: in words."""

    module: str
    where: str
    own: Own


class TraceDiff(msgspec.Struct, frozen=True):
    """``modules``: those that both have. ``first``: None when nothing departs. ``same_next_token``: of how many
    positions of the prompt both would go on with the same token, of how many."""

    format: int
    a: Side
    b: Side
    verdict: Literal["identical", "agree", "depart"]
    first: Departure | None
    departures: tuple[Departure, ...]
    modules: tuple[ModuleTrace, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    tokens: int
    prompt_cut: bool
    same_next_token: tuple[int, int] | None
    stored_bytes: int


def departures(modules: tuple[ModuleTrace, ...]) -> tuple[Departure, ...]:
    """Every place whose own error is beyond what is explained, in order of execution: parts before the whole."""
    found: list[tuple[int, Departure]] = []
    names = {module.name for module in modules}
    for module in modules:
        if module.before.departs:
            parent = module.name.rpartition(".")[0]
            where = f"in its own operations, before {module.name.removeprefix(f'{parent}.')}"
            found.append((module.entered, Departure(parent or WHOLE, where, module.before)))
        if module.own.departs:
            has_parts = module.name == WHOLE or any(name.startswith(f"{module.name}.") for name in names)
            where = "in its own operations, after its parts" if has_parts else "from its input to its output"
            found.append((module.left, Departure(module.name, where, module.own)))
    return tuple(departure for _, departure in sorted(found, key=lambda each: each[0]))


def verdict(modules: tuple[ModuleTrace, ...]) -> Literal["identical", "agree", "depart"]:
    if departures(modules):
        return "depart"
    exact = all(own.times == 0 for module in modules for own in (module.own, module.before))
    return "identical" if exact else "agree"
