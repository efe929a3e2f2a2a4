"""What a kind of job is. Kinds register as entry points in the group ``mens_supervisor.jobs``.

The supervisor imports none of them by name: it asks the entry point for a :class:`JobKind`, whose
schema, checks, command and relief it uses. Everything here is free of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

ENTRY_POINT_GROUP = "mens_supervisor.jobs"


@dataclass(frozen=True)
class Problem:
    """Something unusable in a configuration or in a file that it names.

    ``key`` is the dotted configuration key. ``file``/``line`` point into another file (a data set);
    when they are None, the reader of the configuration fills in where the key stands.
    """

    key: str
    message: str
    remedy: str = ""
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class Patch:
    """One typed change to the effective configuration: dotted key, value before, value after."""

    key: str
    old: Any
    new: Any


@dataclass(frozen=True)
class Relief:
    """One rung taken: what changes, what it costs, and what a resumed trainer may find changed.

    ``price`` is one sentence for people, written before it is applied. ``lossless`` relief changes
    neither what is learnt nor from what. ``new_lineage`` starts again at step 0 beside the old
    checkpoints. ``accepts`` lists the Manifest.identity keys that the patches alter on purpose.
    """

    rung: str
    patches: tuple[Patch, ...]
    price: str
    lossless: bool
    new_lineage: bool = False
    accepts: tuple[str, ...] = ()


Rung = Callable[[Mapping[str, Any], Mapping[str, Any]], Relief | None]
"""``(effective configuration, corpus facts) -> relief, or None when this rung has nothing left``.

Pure. The facts are the ``data`` of the trainer's last ``corpus`` event, empty before the first.
"""


class JobKind(Protocol):
    """A kind of job, as found under its entry point."""

    name: str
    schema: type[BaseModel]
    """The kind's own top-level sections; combined with the supervisor's into one strict document."""
    rungs: Mapping[str, Rung]
    """The relief this kind understands, by rung name, memory and model relief only."""

    def resolve(self, sections: BaseModel, base: Path) -> BaseModel:
        """The same sections with every relative path made absolute against ``base``."""

    def preflight(self, sections: BaseModel) -> list[Problem]:
        """What would make the very first attempt fail: missing files, unreadable rows. No torch."""

    def command(self, sections: BaseModel) -> list[str]:
        """Arguments after the interpreter, for example ``["-m", "trainer"]``."""


class UnknownKindError(Exception):
    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"kind {name!r} is not installed; known kinds: {', '.join(known) or 'none'}")
        self.known = known


def known_kinds() -> list[str]:
    return sorted({entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)})


def load_kind(name: str) -> JobKind:
    """The kind registered under ``name``. Raises UnknownKindError."""
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        kind: JobKind = entry.load()
        return kind
    raise UnknownKindError(name, known_kinds())
