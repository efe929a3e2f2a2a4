"""Hundreds of patterns against thousands of lines, fast: a pattern is tried only where a word of it stands. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

SHORTEST = 3
"""Characters of a literal that is worth looking for."""

_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?(?:[:=!>]|<[=!]|P<\w+>))?|[*+?]\??|\{\d*,?\d*\}\??|.", re.DOTALL
)


@dataclass(frozen=True)
class Phrase:
    """One alternative of a pattern. ``literals``: lower case; one of them is in every text it matches, unless empty."""

    pattern: str
    literals: tuple[str, ...]

    def found_in(self, text: str, lowered: str) -> bool:
        """``lowered`` is ``text.lower()``. Upper and lower case are the same."""
        if self.literals and not any(literal in lowered for literal in self.literals):
            return False
        return compiled(self.pattern).search(text) is not None


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """At first use: compiling all of them would take longer than the supervisor's start may."""
    return re.compile(pattern, re.IGNORECASE)


@cache
def phrases(pattern: str) -> tuple[Phrase, ...]:
    """The alternatives of a pattern."""
    return tuple(Phrase("".join(part), _literals(part)) for part in _alternatives(_TOKEN.findall(pattern)))


def _alternatives(tokens: list[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += token.startswith("(")
        depth -= token == ")"
        if token == "|" and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _literals(tokens: list[str]) -> tuple[str, ...]:
    """The literals of which one must be there: the longest plain run, or those of a group's alternatives."""
    best: tuple[str, ...] = ()
    for found in _required(tokens):
        if found and min(map(len, found)) >= SHORTEST and (not best or min(map(len, found)) > min(map(len, best))):
            best = found
    return best


def _required(tokens: list[str]) -> Iterator[tuple[str, ...]]:
    run = ""
    position = 0
    while position < len(tokens):
        token = tokens[position]
        if token.startswith("("):
            end = _closing(tokens, position)
            yield (run,)
            run = ""
            if token in ("(", "(?:") and not _optional(tokens, end + 1):
                inside = [_literals(part) for part in _alternatives(tokens[position + 1 : end])]
                yield tuple(literal for part in inside for literal in part) if all(inside) else ()
            position = end + 1
            continue
        plain = _plain(token)
        if plain is None or _optional(tokens, position + 1):
            yield (run,)
            run = ""
        else:
            run += plain
        position += 1
    yield (run,)


def _plain(token: str) -> str | None:
    """The character that a token stands for; None for everything that stands for several or for none."""
    if token.startswith("\\"):
        return None if token[1].isalnum() else token[1].lower()
    return token.lower() if len(token) == 1 and token not in ".^$|*+?)" else None


def _optional(tokens: list[str], position: int) -> bool:
    return position < len(tokens) and (tokens[position][0] in "*?" or tokens[position].startswith("{0"))


def _closing(tokens: list[str], position: int) -> int:
    depth = 0
    for index in range(position, len(tokens)):
        depth += tokens[index].startswith("(")
        depth -= tokens[index] == ")"
        if depth == 0:
            return index
    return len(tokens)
