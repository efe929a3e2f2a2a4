r"""Mathematical expressions as people and models write them, LaTeX or plain, as trees. Pure.

Nothing is ever evaluated as a program: sympy's own readers hand the text to ``eval``. What can't be read for certain is
no expression: then answers are compared as texts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_TOKENS = 400
MAX_DEPTH = 40


class UnreadableError(Exception):
    """The text is no expression that is understood here; a few words."""


@dataclass(frozen=True)
class Number:
    value: Fraction


@dataclass(frozen=True)
class Symbol:
    name: str


@dataclass(frozen=True)
class Apply:
    """``name`` is an operator (+ - * / ^ neg ! abs) or a function (sqrt, root, sin, ln, ...)."""

    name: str
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Several:
    """``kind``: tuple, list, set, or the two brackets of an interval such as ``[)``."""

    kind: str
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Relation:
    """``sign``: = < <= != ; > and >= are turned around."""

    sign: str
    left: Node
    right: Node


@dataclass(frozen=True)
class Percent:
    part: Node


Node = Number | Symbol | Apply | Several | Relation | Percent

FUNCTIONS = frozenset(
    {
        "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln", "log",
        "exp", "sqrt", "abs", "lg",
    }
)  # fmt: skip
_ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log10"}
_GREEK = frozenset(
    {
        "alpha", "beta", "gamma", "delta", "epsilon", "theta", "lambda", "mu", "nu", "rho", "sigma", "tau", "phi",
        "omega", "varphi", "zeta", "eta", "kappa", "xi", "chi", "psi", "infty",
    }
)  # fmt: skip
_DROPPED = re.compile(
    r"\\(?:left|right|displaystyle|big|Big|bigl|bigr|Bigl|Bigr|,|;|!|:| |quad|qquad)(?![a-zA-Z])|~|\\\$|\$|\u200b"
)
_REPLACED = (
    ("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"), ("\\cfrac", "\\frac"), ("\u2212", "-"), ("\u2013", "-"),
    ("\u00d7", "*"), ("\u00b7", "*"), ("\u22c5", "*"), ("\u00f7", "/"), ("\u03c0", "\\pi "), ("\u221e", "\\infty "),
    ("\u221a", "\\sqrt "), ("\u2264", "<="), ("\u2265", ">="), ("\u2260", "!="), ("**", "^"), ("{,}", ""),
    ("\\%", "%"), ("\\{", "\\lbrace "), ("\\}", "\\rbrace "), ("\u00b0", "\\circ "), ("\\lvert", "|"), ("\\rvert", "|"),
    ("\u00b2", "^2"), ("\u00b3", "^3"), ("\u00bd", "(1/2)"),
)  # fmt: skip
_UNIT = re.compile(r"(?:\\(?:text|mathrm|textrm|mbox|operatorname)\{[^{}]*\}|\^\{?\\circ\}?|\\circ|\\degree)\s*$")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"|(?P<command>\\[a-zA-Z]+)|(?P<name>[a-zA-Z]+)|(?P<sign><=|>=|!=|[-+*/^!()\[\]{}|,=<>%_;]))"
)
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)")
_COMMANDS = {"cdot": "*", "times": "*", "div": "/", "le": "<=", "leq": "<=", "ge": ">=", "geq": ">=", "ne": "!=",
             "neq": "!=", "lt": "<", "gt": ">"}  # fmt: skip


def read(text: str) -> Node:
    """The expression in ``text``. Raises UnreadableError."""
    return _Reader(_tokens(_plain(text))).whole()


def comparable_text(text: str) -> str:
    """A text as it is compared when it is no expression: wrapping, case, spaces and a final full stop don't count."""
    text = re.sub(r"\\(?:text|mathrm|textbf|textit|textrm|mbox)\{([^{}]*)\}", r"\1", _DROPPED.sub(" ", text))
    return " ".join(text.replace("**", "").casefold().split()).rstrip(".").strip()


def _plain(text: str) -> str:
    for old, new in _REPLACED:
        text = text.replace(old, new)
    text = _DROPPED.sub(" ", text).strip()
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1]
    without = _UNIT.sub("", text).strip()
    return without or text


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position = 0
    open_brackets = 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if match is None:
            raise UnreadableError("a character without meaning")
        kind, value = str(match.lastgroup), match.group(str(match.lastgroup))
        end = match.end()
        if kind == "number" and "," in value and open_brackets:  # inside brackets a comma divides
            value = value.split(",")[0]
            end = match.start("number") + len(value)
        if kind == "sign":
            open_brackets += (value in "([") - (value in ")]")
        if kind == "command":
            kind, value = _command(value[1:])
            open_brackets += (value == "\\{") - (value == "\\}")
        found.append((kind, value))
        if len(found) > MAX_TOKENS:
            raise UnreadableError("too long")
        position = end
    if not found:
        raise UnreadableError("nothing")
    return found


def _command(name: str) -> tuple[str, str]:
    if name in _COMMANDS:
        return "sign", _COMMANDS[name]
    if name == "lbrace":
        return "sign", "\\{"
    if name == "rbrace":
        return "sign", "\\}"
    if name in ("frac", "binom", "sqrt"):
        return "command", name
    if name in FUNCTIONS or name in _ALIASES:
        return "function", _ALIASES.get(name, name)
    if name == "pi" or name in _GREEK:
        return "symbol", name
    raise UnreadableError(f"the command \\{name}")


class _Reader:
    """Recursive descent: relation, list, sum, product, sign, power, postfix, atom."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._bars = 0

    def whole(self) -> Node:
        node = self._list()
        if self._at < len(self._tokens):
            raise UnreadableError("something that does not belong there")
        return node

    def _list(self) -> Node:
        parts = [self._relation()]
        while self._take(",") or self._take(";"):
            parts.append(self._relation())
        return parts[0] if len(parts) == 1 else Several("list", tuple(parts))

    def _relation(self) -> Node:
        left = self._sum()
        for sign in ("=", "<=", ">=", "!=", "<", ">"):
            if self._take(sign):
                right = self._sum()
                if sign in (">", ">="):
                    return Relation(sign.replace(">", "<"), right, left)
                return Relation(sign, left, right)
        return left

    def _sum(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnreadableError("nested too deeply")
        node = self._product()
        while (sign := self._sign("+", "-")) is not None:
            node = Apply(sign, (node, self._product()))
        self._depth -= 1
        return node

    def _product(self) -> Node:
        node = self._signed()
        while True:
            if (sign := self._sign("*", "/")) is not None:
                node = Apply(sign, (node, self._signed()))
            elif self._starts_factor():
                node = self._beside(node)
            else:
                return node

    def _beside(self, node: Node) -> Node:
        """Two factors without a sign between them; a whole number before a fraction is a mixed number."""
        kind, value = self._tokens[self._at]
        if isinstance(node, Number):
            mixed = (kind, value) == ("command", "frac") or (kind == "number" and self._slash_follows())
            if mixed and node.value.denominator == 1:
                part = self._power()
                if kind == "number":
                    self._expect("/")
                    part = Apply("/", (part, self._power()))
                return Apply("+", (node, part))
            if kind == "number":
                raise UnreadableError("two numbers side by side")
        elif kind == "number":
            raise UnreadableError("a number after a factor")
        return Apply("*", (node, self._power()))

    def _slash_follows(self) -> bool:
        after = self._tokens[self._at + 1 : self._at + 3]
        return len(after) == 2 and after[0] == ("sign", "/") and after[1][0] == "number"

    def _signed(self) -> Node:
        negative = False
        while (sign := self._sign("+", "-")) is not None:
            negative ^= sign == "-"
        node = self._power()
        return Apply("neg", (node,)) if negative else node

    def _power(self) -> Node:
        node = self._postfixed()
        if self._take("^"):
            exponent = self._argument() if self._peek() == ("sign", "{") else self._exponent()
            node = Apply("^", (node, exponent))
            while self._take("!"):
                node = Apply("!", (node,))
        return node

    def _exponent(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnreadableError("nested too deeply")
        if self._take("-"):
            node: Node = Apply("neg", (self._exponent(),))
        else:
            node = self._power()
        self._depth -= 1
        return node

    def _postfixed(self) -> Node:
        node = self._atom()
        while True:
            if self._take("!"):
                node = Apply("!", (node,))
            elif self._take("%"):
                node = Percent(node)
            else:
                return node

    def _atom(self) -> Node:
        kind, value = self._next()
        if kind == "number":
            return Number(Fraction(value.replace(",", "")))
        if kind == "symbol":
            return self._subscripted(value)
        if kind == "function":
            return self._function(value)
        if kind == "name":
            return self._named(value)
        if kind == "command":
            return self._built(value)
        if value == "{":
            return self._until("}")
        if value in ("(", "["):
            return self._bracketed(value)
        if value == "\\{":
            return self._several("set", "\\}")
        if value == "|":
            self._bars += 1
            node = self._sum()
            self._bars -= 1
            self._expect("|")
            return Apply("abs", (node,))
        raise UnreadableError(f"{value} where a number should be")

    def _named(self, value: str) -> Node:
        if value in FUNCTIONS or value in _ALIASES:
            return self._function(_ALIASES.get(value, value))
        if value in ("pi", "infty", "oo"):
            return Symbol("pi" if value == "pi" else "infty")
        if len(value) > 3:  # a word; short ones are products of variables
            raise UnreadableError("a word")
        node: Node = Symbol(value[0])
        for letter in value[1:]:
            node = Apply("*", (node, Symbol(letter)))
        if self._peek() == ("sign", "_") and len(value) > 1:
            raise UnreadableError("a subscript of several letters")
        return self._subscripted(value) if len(value) == 1 else node

    def _subscripted(self, name: str) -> Node:
        if not self._take("_"):
            return Symbol(name)
        braced = self._take("{")
        below = ""
        while True:
            kind, value = self._next()
            if kind not in ("number", "name"):
                raise UnreadableError("a subscript")
            below += value
            if not braced or self._take("}"):
                return Symbol(f"{name}_{below}")

    def _function(self, name: str) -> Node:
        base: Node | None = None
        power: Node | None = None
        if name == "log" and self._take("_"):
            base = self._argument()
        if self._take("^"):
            power = self._argument()
        if self._peek() in (("sign", "("), ("sign", "{"), ("sign", "|")):
            argument = self._argument()
        else:
            argument = self._power()
            while self._starts_factor() and self._tokens[self._at][0] != "function":
                argument = Apply("*", (argument, self._power()))
        if isinstance(argument, Several):
            raise UnreadableError("a function of several values")
        node = (
            Apply(name, (argument,)) if base is None else Apply("/", (Apply("ln", (argument,)), Apply("ln", (base,))))
        )
        return node if power is None else Apply("^", (node, power))

    def _built(self, name: str) -> Node:
        if name == "sqrt":
            if self._take("["):
                degree = self._until("]")
                return Apply("root", (self._argument(), degree))
            return Apply("sqrt", (self._argument(),))
        first, second = self._argument(), self._argument()
        return Apply("/" if name == "frac" else "binom", (first, second))

    def _argument(self) -> Node:
        r"""What a command takes: a group, or one token; of ``\frac12`` the first takes 1."""
        kind, value = self._peek() or ("", "")
        if kind == "number" and value.isdigit() and len(value) > 1:
            self._tokens[self._at] = (kind, value[1:])
            return Number(Fraction(value[0]))
        if kind == "name" and len(value) > 1:
            self._tokens[self._at] = (kind, value[1:])
            return Symbol(value[0])
        return self._atom()

    def _until(self, end: str) -> Node:
        node = self._list()
        self._expect(end)
        return node

    def _bracketed(self, opened: str) -> Node:
        node = self._list()
        closed = self._next()[1]
        if closed not in (")", "]"):
            raise UnreadableError("a bracket that is not closed")
        if isinstance(node, Several) and node.kind == "list":
            kind = "tuple" if opened + closed == "()" else opened + closed
            return Several(kind, node.parts)
        if opened + closed not in ("()", "[]"):
            raise UnreadableError("brackets that do not match")
        return node

    def _several(self, kind: str, end: str) -> Node:
        node = self._list()
        self._expect(end)
        return Several(kind, node.parts if isinstance(node, Several) and node.kind == "list" else (node,))

    def _starts_factor(self) -> bool:
        found = self._peek()
        if found is None:
            return False
        kind, value = found
        return kind != "sign" or value in ("(", "{") or (value == "|" and not self._bars)

    def _peek(self) -> tuple[str, str] | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self) -> tuple[str, str]:
        found = self._peek()
        if found is None:
            raise UnreadableError("an end too early")
        self._at += 1
        return found

    def _take(self, sign: str) -> bool:
        if self._peek() == ("sign", sign):
            self._at += 1
            return True
        return False

    def _sign(self, *signs: str) -> str | None:
        for sign in signs:
            if self._take(sign):
                return sign
        return None

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise UnreadableError(f"no {sign} where one should be")
