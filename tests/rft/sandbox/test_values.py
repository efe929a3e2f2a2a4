"""Values between a test and a program: what arrives is what was sent, and nothing else than a value can arrive."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft.sandbox.inside import seccomp
from rft.sandbox.inside.candidate import Program
from rft.sandbox.inside.peer import Peer, Remote
from rft.sandbox.inside.values import NOT_OURS, Codec, Nodes, NoValueError

atoms = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
    | st.integers(min_value=-(1 << 200), max_value=1 << 200)
)  # fmt: skip
keys = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.tuples(st.integers(), st.text(max_size=2))
values = st.recursive(
    atoms,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(keys, inner) | st.sets(keys)
    | st.frozensets(keys),
    max_leaves=8,
)  # fmt: skip


class Loop:
    """A line whose other side answers at once."""

    def __init__(self) -> None:
        self.other: Peer | None = None
        self.messages: list[Any] = []

    def send(self, message: Any) -> None:
        self.messages.append(json.loads(json.dumps(message)))

    def receive(self) -> Any:
        if self.other is not None:
            self.other.serve(self.messages.pop())
        return self.messages.pop()


def defined(source: str, *names: str) -> dict[str, Any]:
    line = Loop()
    line.other = Program().peer(line)
    found: dict[str, Any] = Peer(line, {}).ask("load", None, (source, names, ()))
    return found


ECHO = defined("def echo(*values, **named): return values, named", "echo")["echo"]


def refused(*_: Any) -> Any:
    raise NoValueError("it stays")


def codec() -> Codec:
    return Codec(refused, refused, refused, lambda _: None)


# proves RFT-2
@given(values, values)
@settings(max_examples=60, deadline=None)
def test_values_arrive_as_they_were(one: Any, other: Any) -> None:
    (first, second), named = ECHO(one, other, key=one)
    assert (shape(first), shape(second), shape(named["key"])) == (shape(one), shape(other), shape(one))


def shape(value: Any) -> Any:
    """What is equal for equal values of equal types, nan included; sets have no order."""
    if isinstance(value, list | tuple):
        return type(value).__name__, [shape(item) for item in value]
    if isinstance(value, dict):
        return [(shape(key), shape(item)) for key, item in value.items()]
    if isinstance(value, set | frozenset):
        return type(value).__name__, sorted(repr(shape(item)) for item in value)
    return type(value).__name__, repr(value)


# proves RFT-2
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from("ltdsrbzigcxfFoTMNEkvmCODqB"),
        lambda inner: st.lists(inner, max_size=5),
        max_leaves=12,
    )
)
@settings(max_examples=150, deadline=None)
def test_whatever_is_sent_gives_plain_values_or_is_refused(form: Any) -> None:
    try:
        value = codec().decode(form, Nodes())
    except (*NOT_OURS, NoValueError):
        return
    assert type(value).__module__ in ("builtins", "collections", "datetime", "fractions", "decimal")


# proves RFT-2
def test_what_is_no_value_is_never_compared() -> None:
    thing = defined("class A:\n    __eq__ = lambda *_: True\nthing = A()", "thing")["thing"]
    assert type(thing) is Remote
    for act in (lambda: thing == 1, lambda: thing != 1, lambda: thing in [1], lambda: {thing}, lambda: bool(thing),
                lambda: thing < 1, lambda: math.sin(thing)):  # fmt: skip
        with pytest.raises((NoValueError, TypeError)):
            act()


# proves RFT-3
def test_the_filter_is_known_for_both_architectures() -> None:
    for machine in ("x86_64", "aarch64"):
        strict, open_ = seccomp.program(machine, False), seccomp.program(machine, True)
        assert len(strict) % 8 == 0 and len(strict) > len(open_) > 400
    with pytest.raises(seccomp.NoFilterError, match="riscv64"):
        seccomp.program("riscv64", True)
