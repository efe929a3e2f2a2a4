"""Values between a test and the program under test, as JSON: what is sent is rebuilt from plain parts by its receiver,
with the receiver's own classes, so that nothing of the sender's (an ``__eq__``, a frame, a module) comes along.

Numbers, texts, the built-in containers and what the standard library makes of them travel by value; so do instances of
classes that both sides know, which are those of the task's prompt. Functions, iterators and other objects stay where
they are and travel as a reference, which a receiver can use but not compare. Containers that can change have numbers,
counted equally on both sides: shared and cyclic ones keep their shape, and what a call does to its arguments is told.
"""

from __future__ import annotations

import enum
import importlib
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_SMALL = 1 << 63
_ITSELF = frozenset({type(None), bool, str, float})
"""Types whose values travel as they are; whole numbers do so, too, unless they are large."""
_BUILT_IN_TYPES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, object,
    )
}  # fmt: skip
_EXACT = {
    "Decimal": "decimal", "Fraction": "fractions",
    "datetime": "datetime", "date": "datetime", "time": "datetime", "timedelta": "datetime",
}  # fmt: skip
"""The module of each class that travels by its parts. Who has not loaded it has no such value: what is in memory costs
every process that is forked."""
_VIEWS = {type({}.keys()): "k", type({}.values()): "v", type({}.items()): "m"}


class NoValueError(Exception):
    """Something cannot be handed over; a phrase that says what and why."""


class MalformedError(Exception):
    """What came is no value."""


NOT_OURS = (
    MalformedError, ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""What decoding raises for what no codec has sent."""


class Nodes:
    """The containers that one call has handed over, in both directions, by number."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}

    def add(self, value: Any) -> None:
        self.numbers[id(value)] = len(self.objects)
        self.objects.append(value)

    def forget(self, keep: int) -> None:
        """Take back all but the first ``keep``."""
        for value in self.objects[keep:]:
            del self.numbers[id(value)]
        del self.objects[keep:]


class Codec:
    """``shared``: classes that the other side knows under the same name. ``refer`` gives the number of something that
    stays here, or raises NoValueError; ``reference`` makes what stands here for something of the other side;
    ``own`` finds what was referred to; ``referred`` tells the number of what stands for the other side's, or None."""

    def __init__(
        self,
        refer: Callable[[Any, str], int],
        own: Callable[[int], Any],
        reference: Callable[[int, str, str], Any],
        referred: Callable[[Any], int | None],
    ) -> None:
        self.shared: Mapping[str, type[Any]] = {}
        self._refer, self._own, self._reference, self._referred = refer, own, reference, referred

    # Sending.

    def encode(self, value: Any, nodes: Nodes) -> Any:
        """Raises NoValueError."""
        kind = type(value)
        if kind in _ITSELF:
            return value
        if kind is int:
            return value if -_SMALL < value < _SMALL else ["i", hex(value)]
        number = nodes.numbers.get(id(value))
        if number is not None:
            return ["r", number]
        if kind is tuple:
            return ["t", *self._encoded(value, nodes)]
        tag = self._tag(value)
        if tag is not None:
            nodes.add(value)
            return [tag, *self._body(tag, value, nodes)]
        return self._encode_rare(value, kind, nodes)

    def _encoded(self, values: Iterable[Any], nodes: Nodes) -> list[Any]:
        """Each of them; most need no call. Raises NoValueError."""
        encode = self.encode
        return [
            value if (kind := type(value)) in _ITSELF or (kind is int and -_SMALL < value < _SMALL)
            else encode(value, nodes)
            for value in values
        ]  # fmt: skip

    def _tag(self, value: Any) -> str | None:
        """The letter of a container that can change; None for everything else."""
        kind = type(value)
        if kind is list:
            return "l"
        if kind is dict:
            return "d"
        if kind is set:
            return "s"
        for parent, letter in _CHANGING:
            if isinstance(value, parent):
                return letter
        if self.shared.get(kind.__name__) is kind and not issubclass(kind, tuple | enum.Enum | BaseException):
            return "o"
        return None

    def _body(self, tag: str, value: Any, nodes: Nodes) -> list[Any]:
        if tag in "ls":
            return self._encoded(value, nodes)
        if tag in _MAPPINGS:
            pairs = [self._encoded(pair, nodes) for pair in dict.items(value)]
            if tag == "D":
                factory = value.default_factory
                name = str(getattr(factory, "__name__", ""))
                return [name if _BUILT_IN_TYPES.get(name) is factory else "", *pairs]
            return pairs
        if tag == "q":
            return [value.maxlen, *self._encoded(value, nodes)]
        if tag == "B":
            return [bytes(value).hex()]
        return [type(value).__name__, *[self._encoded(pair, nodes) for pair in _state(value)]]

    def _encode_rare(self, value: Any, kind: type, nodes: Nodes) -> Any:
        if kind is frozenset:
            return ["z", *self._encoded(value, nodes)]
        if kind is bytes:
            return ["b", value.hex()]
        if kind is complex:
            return ["c", value.real, value.imag]
        if kind is range:
            return ["g", *self._encoded((value.start, value.stop, value.step), nodes)]
        if kind in _VIEWS:
            return [_VIEWS[kind], *self._encoded(value, nodes)]
        if kind is type and any(value is known for known in _BUILT_IN_TYPES.values()):
            return ["T", value.__name__]
        if value is Ellipsis or value is NotImplemented:
            return ["E", value is Ellipsis]
        name = kind.__name__
        if name in _EXACT and getattr(sys.modules.get(_EXACT[name]), name, None) is kind:
            return ["x", name, _parts_of(name, value)]
        if self.shared.get(kind.__name__) is kind:
            if issubclass(kind, enum.Enum):
                return ["M", kind.__name__, value.name]
            if issubclass(kind, tuple):
                return ["N", kind.__name__, *self._encoded(tuple.__iter__(value), nodes)]
        number = self._referred(value)
        if number is not None:
            return ["F", number]
        plain = _plain(value)
        if plain is not value:
            return self.encode(plain, nodes)
        manner = "function" if callable(value) else "iterator" if hasattr(kind, "__next__") else "object"
        return ["f", self._refer(value, manner), manner, kind.__name__]

    # Receiving.

    def decode(self, form: Any, nodes: Nodes) -> Any:
        """Raises MalformedError, or whatever Python makes of a form that is not one of ours (see NOT_OURS)."""
        if not isinstance(form, list):
            if type(form) in _ITSELF or type(form) is int:
                return form
            raise MalformedError
        tag = form[0]
        if tag == "l":
            items: list[Any] = []
            nodes.add(items)
            items.extend(self._decoded(form[1:], nodes))
            return items
        if tag == "t":
            return tuple(self._decoded(form[1:], nodes))
        if tag == "r":
            return nodes.objects[_index(form[1])]
        if tag in _EMPTY or tag == "o":
            made = self._empty(tag, form)
            nodes.add(made)
            self._fill(tag, made, form[1:], nodes)
            return made
        return self._decode_rare(tag, form, nodes)

    def _decoded(self, forms: Iterable[Any], nodes: Nodes) -> list[Any]:
        """Each of them; most need no call. Raises as :meth:`decode`."""
        decode = self.decode
        return [form if (kind := type(form)) in _ITSELF or kind is int else decode(form, nodes) for form in forms]

    def _empty(self, tag: str, form: list[Any]) -> Any:
        if tag == "o":
            kind: Any = self.shared[form[1]]
            return kind.__new__(kind)
        if tag == "D":
            return defaultdict(_BUILT_IN_TYPES.get(form[1]))
        if tag == "q":
            return deque(maxlen=form[1])
        return _EMPTY[tag]()

    def _fill(self, tag: str, made: Any, body: list[Any], nodes: Nodes) -> None:
        if tag in _MAPPINGS:
            for pair in body[1:] if tag == "D" else body:
                key, item = self._decoded(pair, nodes)
                dict.__setitem__(made, key, item)
        elif tag == "s":
            made.update(self._decoded(body, nodes))
        elif tag == "q":
            made.extend(self._decoded(body[1:], nodes))
        elif tag == "B":
            made.extend(bytes.fromhex(body[0]))
        elif tag == "o":
            for name, item in body[1:]:
                if not isinstance(name, str) or (name.startswith("__") and name.endswith("__")):
                    raise MalformedError
                object.__setattr__(made, name, self.decode(item, nodes))
        else:
            made.extend(self._decoded(body, nodes))

    def _decode_rare(self, tag: Any, form: list[Any], nodes: Nodes) -> Any:
        if tag == "i":
            return int(form[1], 16)
        if tag == "z":
            return frozenset(self._decoded(form[1:], nodes))
        if tag == "b":
            return bytes.fromhex(form[1])
        if tag == "c":
            return complex(form[1], form[2])
        if tag == "g":
            return range(*[_index(self.decode(part, nodes), negative=True) for part in form[1:]])
        if tag == "k":
            return dict.fromkeys(self._decoded(form[1:], nodes)).keys()
        if tag == "v":
            return dict(enumerate(self._decoded(form[1:], nodes))).values()
        if tag == "m":
            return dict(self._decoded(form[1:], nodes)).items()
        if tag == "T":
            return _BUILT_IN_TYPES[form[1]]
        if tag == "E":
            return Ellipsis if form[1] else NotImplemented
        if tag == "x":
            return _exact(form[1], form[2])
        if tag == "M":
            return self.shared[form[1]][form[2]]
        if tag == "N":
            kind = self.shared[form[1]]
            return tuple.__new__(kind, self._decoded(form[2:], nodes))
        if tag == "F":
            return self._own(_index(form[1]))
        if tag == "f":
            return self._reference(_index(form[1]), str(form[2]), str(form[3]))
        raise MalformedError

    # What a call did to its arguments.

    def contents(self, nodes: Nodes) -> list[list[Any]]:
        """What is in each container now, to be compared with later."""
        return [_parts(value) for value in nodes.objects]

    def changes(self, nodes: Nodes, before: list[list[Any]]) -> list[Any]:
        """Number and new content of each container that is not as it was. Raises NoValueError."""
        changed = []
        for number, parts in enumerate(before):
            value = nodes.objects[number]
            now = _parts(value)
            if len(now) != len(parts) or any(new is not old for new, old in zip(now, parts, strict=True)):
                tag = self._tag(value)
                if tag is not None:
                    changed.append([number, tag, *self._body(tag, value, nodes)])
        return changed

    def apply(self, changed: list[Any], nodes: Nodes, limit: int) -> None:
        """Do to the first ``limit`` containers what the other side did to its copies. Raises as :meth:`decode`."""
        for number, tag, *body in changed:
            value = nodes.objects[_index(number)]
            if number >= limit or self._tag(value) != tag:
                raise MalformedError
            if tag == "o":
                for name, _ in _state(value):
                    object.__delattr__(value, name)
            else:
                value.clear()
            self._fill(tag, value, body, nodes)


_CHANGING: tuple[tuple[type, str], ...] = (
    (Counter, "C"), (OrderedDict, "O"), (defaultdict, "D"), (deque, "q"), (bytearray, "B"),
)  # fmt: skip
_MAPPINGS = "dCOD"
_EMPTY: dict[str, Callable[[], Any]] = {
    "l": list, "d": dict, "s": set, "C": Counter, "O": OrderedDict, "D": defaultdict, "q": deque, "B": bytearray,
}  # fmt: skip


def _plain(value: Any) -> Any:
    """The built-in value below an instance of a subclass of one, a number of numpy's included; else ``value``."""
    if isinstance(value, bytes):
        return bytes.__getitem__(value, slice(None))
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool | int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, complex):
        return complex.__pos__(value)
    if isinstance(value, list):
        return list(list.__iter__(value))
    if isinstance(value, tuple):
        return tuple(tuple.__iter__(value))
    if isinstance(value, dict):
        return dict(dict.items(value))
    if isinstance(value, set):
        return set(set.__iter__(value))
    if isinstance(value, frozenset):
        return frozenset(frozenset.__iter__(value))
    if type(value).__module__ == "numpy" and type(value).__name__ != "ndarray" and hasattr(value, "item"):
        return value.item()
    return value


def _state(value: Any) -> list[tuple[str, Any]]:
    """Attributes of an instance, those in slots included."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return list(found.items())


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [part for pair in dict.items(value) for part in pair]
    if isinstance(value, bytearray):
        return list(value)
    if isinstance(value, set | list | deque):
        return list(value)
    return [part for pair in _state(value) for part in pair]


def _index(number: Any, negative: bool = False) -> int:
    if type(number) is not int or (number < 0 and not negative):
        raise MalformedError
    return number


def _parts_of(name: str, value: Any) -> Any:
    if name == "timedelta":
        return [value.days, value.seconds, value.microseconds]
    return value.isoformat() if _EXACT[name] == "datetime" else str(value)


def _exact(name: str, form: Any) -> Any:
    module = _EXACT[name]
    kind = getattr(importlib.import_module(module), name)
    if name == "timedelta":
        return kind(*form)
    return kind.fromisoformat(form) if module == "datetime" else kind(form)
