"""Parsers whose ``--help`` shows examples, one a line, and arguments that several commands have."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from typing import Any


class HelpFormatter(argparse.HelpFormatter):
    """Wraps text; of an epilog that begins with "example" each example stands on a line of its own."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if not text.startswith("example"):
            return super()._fill_text(text, width, indent)
        head, *lines = re.split(r"\n|\s{2,}", text)
        return "\n".join([head, *(f"  {line}" for line in lines if line)])


class Parser(argparse.ArgumentParser):
    """So are the parsers of its commands, and of theirs."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter, **options})


def give_examples(parser: argparse.ArgumentParser, examples: Mapping[str, str]) -> None:
    """``examples``: by the words after those of ``parser``, empty for itself. One that has an epilog keeps it."""
    for words, below in commands_below(parser):
        if not below.epilog and (shown := examples.get(" ".join(words), "").strip()):
            below.epilog = f"example{'s' if chr(10) in shown else ''}:\n{shown}"


def commands_below(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """``parser`` and every command below it, with the words that lead there."""
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from commands_below(below, (*words, name))


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", dest="as_json", action="store_true", help="JSON on standard output")


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
