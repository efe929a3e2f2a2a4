"""Whether two expressions have the same value. Pure, exact for rational numbers, bounded in time and size.

Expressions with irrational numbers are compared at 50 digits, those with variables at several points as well: two
different expressions of the size that is read here do not agree at all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import mpmath

from rft.verifiers.maths_expression import (
    Apply,
    Node,
    Number,
    Percent,
    Relation,
    Several,
    Symbol,
    UnreadableError,
    comparable_text,
    read,
)

DIGITS = 50
CLOSE = 30
"""Digits to which values must agree: the rest is for what evaluation loses."""
MAX_BITS = 20_000
"""Of an exact number; beyond it the value is taken as one of 50 digits."""
MAX_EXPONENT = 100_000
"""Decimal digits before or after the point, beyond which a number is refused: 10^10^10^10 would take all the memory."""
MAX_FACTORIAL = 2000
POINTS = 5

Value = Any
"""A Fraction, or an mpmath number of the thread's own context."""


class _Undefined(Exception):
    """No value: division by zero, a logarithm of zero, a number beyond the limits."""


_local = threading.local()


def _context() -> Any:
    context = getattr(_local, "context", None)
    if context is None:  # mpmath's own one is shared by all threads
        context = _local.context = mpmath.MPContext()
        context.dps = DIGITS
    return context


def same_answer(given: str, right: str, relative_tolerance: float = 0.0) -> bool:
    """Whether ``given`` says what ``right`` says: the same value, or the same text where one is no expression."""
    try:
        wanted = read(right)
        found = read(given)
    except UnreadableError:
        text = comparable_text(right)
        return bool(text) and comparable_text(given) == text
    return same_value(_bare(found, wanted), _bare(wanted, found), relative_tolerance)


def readable(text: str) -> bool:
    """Whether an answer can be compared at all."""
    try:
        read(text)
    except UnreadableError:
        return bool(comparable_text(text))
    return True


def same_value(given: Node, right: Node, relative_tolerance: float = 0.0) -> bool:
    if isinstance(given, Several) or isinstance(right, Several):
        return _same_several(given, right, relative_tolerance)
    if isinstance(given, Relation) or isinstance(right, Relation):
        return _same_relation(given, right, relative_tolerance)
    if isinstance(given, Percent) != isinstance(right, Percent):
        # "50%" answers both 50 (of a question that asks for per cent) and 1/2.
        bare = given.part if isinstance(given, Percent) else given
        other = right.part if isinstance(right, Percent) else right
        if _same_number(bare, other, relative_tolerance):
            return True
    return _same_number(given, right, relative_tolerance)


def _bare(node: Node, other: Node) -> Node:
    """``x = 5`` says 5 when the other one says no more than a value."""
    if (
        isinstance(node, Relation)
        and node.sign == "="
        and isinstance(node.left, Symbol)
        and not isinstance(other, Relation)
    ):
        return node.right
    return node


def _same_several(given: Node, right: Node, tolerance: float) -> bool:
    if not (isinstance(given, Several) and isinstance(right, Several)) or len(given.parts) != len(right.parts):
        return False
    kinds = {given.kind, right.kind}
    if len(kinds) == 2 and kinds not in ({"list", "set"}, {"list", "tuple"}):
        return False
    if kinds <= {"list", "set"}:
        left = list(right.parts)
        for part in given.parts:
            match = next((i for i, other in enumerate(left) if same_value(part, other, tolerance)), None)
            if match is None:
                return False
            del left[match]
        return True
    return all(same_value(a, b, tolerance) for a, b in zip(given.parts, right.parts, strict=True))


def _same_relation(given: Node, right: Node, tolerance: float) -> bool:
    if not (isinstance(given, Relation) and isinstance(right, Relation)) or given.sign != right.sign:
        return False
    if same_value(given.left, right.left, tolerance) and same_value(given.right, right.right, tolerance):
        return True
    both = given.sign in ("=", "!=")
    return both and same_value(given.left, right.right, tolerance) and same_value(given.right, right.left, tolerance)


def _same_number(given: Node, right: Node, tolerance: float) -> bool:
    names = sorted(_symbols(given) | _symbols(right))
    agreed = 0
    for point in range(3 * POINTS):
        values = {name: _coordinate(name, point) for name in names}
        try:
            wanted = _value(right, values)
        except _Undefined:
            if not names:
                return False
            continue
        try:
            found = _value(given, values)
        except _Undefined:
            return False
        if not _close(found, wanted, tolerance):
            return False
        agreed += 1
        if not names or agreed == POINTS:
            return True
    return False


def _coordinate(name: str, point: int) -> Fraction:
    """Of a variable at a point: no round number, of either sign, the same in every process."""
    number = int.from_bytes(name.encode()[:8], "big") % 1009
    size = Fraction(1 + (number * 7919 + point * 104729) % 9973, 1 + (number * 31 + point * 17) % 97 + 997)
    return -size if (number + point) % 2 else size


def _close(found: Value, wanted: Value, tolerance: float) -> bool:
    if isinstance(found, Fraction) and isinstance(wanted, Fraction):
        return found == wanted or abs(found - wanted) <= Fraction(tolerance) * abs(wanted)
    context = _context()
    a, b = _inexact(found), _inexact(wanted)
    allowed = max(context.mpf(tolerance), context.mpf(10) ** -CLOSE)
    return bool(abs(a - b) <= allowed * (abs(b) if abs(b) > context.mpf(10) ** -CLOSE else 1))


def _symbols(node: Node) -> set[str]:
    if isinstance(node, Symbol):
        return set() if node.name in ("pi", "e", "i") else {node.name}
    if isinstance(node, Apply | Several):
        return set().union(*map(_symbols, node.parts))
    if isinstance(node, Relation):
        return _symbols(node.left) | _symbols(node.right)
    return _symbols(node.part) if isinstance(node, Percent) else set()


def _inexact(value: Value) -> Value:
    context = _context()
    return context.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _bounded(value: Value) -> Value:
    if isinstance(value, Fraction):
        bits = value.numerator.bit_length() + value.denominator.bit_length()
        return value if bits <= MAX_BITS else _bounded(_inexact(value))
    context = _context()
    if not context.isfinite(value):
        raise _Undefined
    size = abs(value)
    if size != 0 and abs(context.mag(size)) > 4 * MAX_EXPONENT:
        raise _Undefined
    return value


def _value(node: Node, values: Mapping[str, Fraction]) -> Value:
    context = _context()
    if isinstance(node, Number):
        return node.value
    if isinstance(node, Symbol):
        constants = {"pi": lambda: +context.pi, "e": lambda: +context.e, "i": lambda: context.mpc(0, 1)}
        return constants[node.name]() if node.name in constants else values[node.name]
    if isinstance(node, Percent):
        return _divided(_value(node.part, values), Fraction(100))
    if not isinstance(node, Apply):
        raise _Undefined
    parts = [_value(part, values) for part in node.parts]
    try:
        return _bounded(_applied(node.name, parts))
    except (ZeroDivisionError, ValueError, OverflowError, TypeError, mpmath.libmp.NoConvergence):
        raise _Undefined from None


def _applied(name: str, parts: Sequence[Value]) -> Value:
    first = parts[0]
    match name:
        case "neg":
            return -first
        case "+" | "-" | "*" | "/":
            return _arithmetic(name, first, parts[1])
        case "^":
            return _power(first, parts[1])
        case "!":
            if not isinstance(first, Fraction) or first.denominator != 1 or not 0 <= first <= MAX_FACTORIAL:
                raise _Undefined
            return Fraction(mpmath.libmp.ifac(int(first)))
        case "abs":
            return abs(first)
        case "sqrt":
            return _root(first, Fraction(2))
        case "root":
            return _root(first, parts[1])
        case "binom":
            return _binomial(first, parts[1])
    return _function(name, _inexact(first))


def _arithmetic(name: str, a: Value, b: Value) -> Value:
    if name == "/":
        return _divided(a, b)
    if not (isinstance(a, Fraction) and isinstance(b, Fraction)):
        a, b = _inexact(a), _inexact(b)
    return a + b if name == "+" else a - b if name == "-" else a * b


def _divided(a: Value, b: Value) -> Value:
    if b == 0:
        raise _Undefined
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a / b
    return _inexact(a) / _inexact(b)


def _power(base: Value, exponent: Value) -> Value:
    context = _context()
    if base == 0:
        if isinstance(exponent, Fraction) and exponent > 0:
            return Fraction(0)
        if exponent == 0:
            return Fraction(1)
        raise _Undefined
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(exponent) * bits <= MAX_BITS:
            return base ** int(exponent)
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator < 100:
        exact = _exact_root(base, exponent.denominator)
        if exact is not None and abs(exponent.numerator) * 64 <= MAX_BITS:
            return exact**exponent.numerator
    logarithm = context.log(_inexact(base)) * _inexact(exponent)
    if abs(logarithm) > MAX_EXPONENT:
        raise _Undefined
    return context.exp(logarithm)


def _exact_root(value: Fraction, degree: int) -> Fraction | None:
    """The root of a positive number when it is rational."""
    if value <= 0:
        return None
    parts = []
    for number in (value.numerator, value.denominator):
        root, exact = _integer_root(number, degree)
        if not exact:
            return None
        parts.append(root)
    return Fraction(parts[0], parts[1])


def _integer_root(number: int, degree: int) -> tuple[int, bool]:
    low, high = 1, 1 << (number.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if middle**degree <= number:
            low = middle
        else:
            high = middle - 1
    return low, low**degree == number


def _root(value: Value, degree: Value) -> Value:
    if not isinstance(degree, Fraction) or degree.denominator != 1 or not 2 <= degree <= 99:
        raise _Undefined
    if isinstance(value, Fraction) and value < 0 and degree % 2 == 1:
        return -_root(-value, degree)
    return _power(value, 1 / degree)


def _binomial(n: Value, k: Value) -> Value:
    whole = all(isinstance(part, Fraction) and part.denominator == 1 for part in (n, k))
    if not whole or not 0 <= k <= n <= MAX_FACTORIAL:
        raise _Undefined
    return Fraction(mpmath.libmp.ifac(int(n)) // (mpmath.libmp.ifac(int(k)) * mpmath.libmp.ifac(int(n - k))))


def _function(name: str, value: Value) -> Value:
    context = _context()
    if abs(value) > MAX_EXPONENT and name not in ("ln", "log", "log10"):
        raise _Undefined  # reducing the argument of a sine costs its size
    if name in ("ln", "log", "log10"):
        if value == 0:
            raise _Undefined
        # "log" without a base is the natural one here on both sides alike.
        return context.log(value) if name != "log10" else context.log(value) / context.log(10)
    names = {
        "sin": context.sin, "cos": context.cos, "tan": context.tan, "cot": context.cot, "sec": context.sec,
        "csc": context.csc, "arcsin": context.asin, "arccos": context.acos, "arctan": context.atan,
        "sinh": context.sinh, "cosh": context.cosh, "tanh": context.tanh, "exp": context.exp,
    }  # fmt: skip
    if name not in names:
        raise _Undefined
    return names[name](value)
