"""What a kind of job is. Kinds register as entry points in the group ``mens_supervisor.jobs``.

The supervisor imports none of them by name: it asks the entry point for a :class:`JobKind`, whose
schema, checks, command and relief it uses. Everything here is free of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel

from supervisor.protocol.manifest import Fault

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
    checkpoints. ``accepts`` lists the Manifest.identity keys that the patches alter on purpose. ``helps``: the
    kinds of failure that it helps with in this configuration, empty for those that its name usually stands for.
    """

    rung: str
    patches: tuple[Patch, ...]
    price: str
    lossless: bool
    new_lineage: bool = False
    accepts: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()


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


@dataclass(frozen=True)
class AttemptFacts:
    """What a program's command line may depend on besides its configuration's own sections.

    ``resume_from``: a checkpoint of its own that was found whole, None for step 0. ``python``: launch.python, or the
    supervisor's own interpreter.
    """

    run_dir: Path
    attempt: int
    lineage: int
    resume_from: Path | None
    python: str
    save_steps: int
    keep: int


@dataclass(frozen=True)
class Program:
    """A whole command line, and the folder in which it runs."""

    arguments: tuple[str, ...]
    folder: Path


@dataclass(frozen=True)
class OwnCheckpoint:
    """A checkpoint that a program wrote in its own way. ``faults``: why it is not whole; empty when it is."""

    path: Path
    step: int
    faults: tuple[Fault, ...]


@runtime_checkable
class ForeignKind(Protocol):
    """What a kind of job has besides when its program need not speak the run directory's contract.

    Such a program may leave out any part of it: heartbeat, events, exit report, trainer.lock, our checkpoints. What it
    doesn't say is unknown. Its checkpoints are its own: they are looked through and moved aside, but never deleted.
    """

    def program(self, sections: BaseModel, facts: AttemptFacts) -> Program:
        """The command line of one attempt; makes the folders that it names as placeholders."""

    def own_checkpoints(self, sections: BaseModel, facts: AttemptFacts) -> list[OwnCheckpoint]:
        """The checkpoints of the lineage, oldest step first; empty when they are not ours to know."""


def has_standby(kind: JobKind) -> bool:
    """Whether the kind's program can wait as a warm standby (see protocol/standby.py); it says so by ``standby``."""
    return bool(getattr(kind, "standby", False))


def has_adapter(kind: JobKind) -> bool:
    """Whether the kind's checkpoints are adapters that a gate can judge; it says so by ``adapter``."""
    return bool(getattr(kind, "adapter", False))


def keeps_own_state(kind: JobKind) -> bool:
    """Whether the kind's program keeps what it has done in the run directory itself, safe from a kill at any moment.

    It says so by ``keeps_own_state``. Such a program speaks the contract but has no checkpoints to choose from, no
    snapshots and no adapter; the steps of its heartbeat are those that it would not do again.
    """
    return bool(getattr(kind, "keeps_own_state", False))


@runtime_checkable
class PlansSteps(Protocol):
    """What a kind of job may have besides: the planned steps, where the configuration alone tells them."""

    steps_key: str
    """The dotted key (section.key) that sets them."""
    silent: Sequence[str]
    """Assignments (key=value) with which a run that is thrown away tells no service of itself."""

    def planned_steps(self, sections: BaseModel) -> int | None:
        """None when they follow from the data."""


@runtime_checkable
class SeveralProcesses(Protocol):
    """What a kind of job has besides when its program starts ``AttemptSpec.processes`` ranks of itself."""

    def launch_problems(self, sections: BaseModel, processes: int, strategy: str) -> list[Problem]:
        """What of ``launch`` does not go together with the rest. No torch."""


@runtime_checkable
class Forecasts(Protocol):
    """What a kind of job may have besides: it can tell what a run will need before it starts."""

    def forecaster(self) -> list[str]:
        """Arguments after the interpreter of a program that answers questions (see protocol/forecast.py)."""

    def device(self, sections: BaseModel) -> str:
        """What the configuration asks for: cuda, cpu, or auto for a GPU where there is one."""

    def speed_key(self, sections: BaseModel) -> str:
        """Equal for runs whose processes train about as many tokens per second on one machine."""


def wanted_device(kind: JobKind, sections: BaseModel) -> str:
    """cuda, cpu, or auto for a GPU where there is one; auto as well for a kind that has no method ``device``."""
    device = getattr(kind, "device", None)
    return "auto" if device is None else str(device(sections))


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
