"""Command lines with placeholders. Pure.

``{name}`` stands for a value, ``{{name}}`` for itself; braces around anything else are left alone, so that JSON
needs no care. An argument whose placeholder is empty is left out, and so is a group (a list in the list).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

PLACEHOLDER = re.compile(r"\{\{([a-z_][a-z0-9_]*)\}\}|\{([a-z_][a-z0-9_]*)\}")

Group = tuple[str, ...]


@dataclass(frozen=True)
class Argument:
    """One item of the command with its dotted key. ``words``: more than one only in a group."""

    key: str
    words: Group

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for word in self.words for name in placeholders(word))


def placeholders(text: str) -> list[str]:
    """The names of the placeholders in a text, in order."""
    return [found[2] for found in PLACEHOLDER.finditer(text) if found[2]]


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with every placeholder replaced. Raises KeyError for one that ``values`` lacks."""
    return PLACEHOLDER.sub(lambda found: values[found[2]] if found[2] else f"{{{found[1]}}}", text)


def parse(command: object) -> list[Argument]:
    """The items of ``command`` as the schema allows it. Raises ValueError: text with unbalanced quotes."""
    if isinstance(command, str):
        return [Argument("command", (word,)) for word in shlex.split(command)]
    assert isinstance(command, Sequence)
    items = []
    for index, item in enumerate(command):
        words = tuple(map(str, item)) if isinstance(item, list | tuple) else (str(item),)
        items.append(Argument(f"command.{index}", words))
    return items


def expand(arguments: Sequence[Argument], values: Mapping[str, str]) -> tuple[str, ...]:
    """The command line. Raises KeyError for a placeholder that ``values`` lacks."""
    return tuple(_expanded(arguments, values))


def _expanded(arguments: Sequence[Argument], values: Mapping[str, str]) -> Iterator[str]:
    for argument in arguments:
        if all(values[name] for name in argument.names):
            yield from (fill(word, values) for word in argument.words)
