"""Commands of ``mens-sup`` that other packages bring. They register as entry points in ``mens_supervisor.commands``.

The entry point's name is the command's name and its value a :class:`Subcommand`. Its module must be light: it is
imported for ``mens-sup --help`` as well. What is heavy is imported, or started as a process, when the command runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points

ENTRY_POINT_GROUP = "mens_supervisor.commands"


@dataclass(frozen=True)
class Subcommand:
    """What ``mens-sup NAME`` is.

    ``add_arguments`` gives the parser its arguments (or actions of its own) and sets the default ``command`` of each to
    a function from the parsed options to the exit code. That function raises supervisor.problems.InputError for
    what its user got wrong. ``examples``: for ``--help``, by the words after ``mens-sup NAME`` (empty for itself), one
    example a line.
    """

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    examples: Mapping[str, str] = field(default_factory=dict)


def subcommand_names() -> list[str]:
    return sorted({entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)})


def load_subcommand(name: str) -> Subcommand:
    """The command registered under ``name``. Raises KeyError."""
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        subcommand: Subcommand = entry.load()
        return subcommand
    raise KeyError(name)
