"""What the daemon can be asked to do, and what it answers: the line between the control server and the daemon.

Values are frozen and plain, so that they go through HTTP and SQLite unchanged. Times are Unix seconds.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Protocol

import msgspec


class EntryState(enum.StrEnum):
    """Where an entry of the queue stands. It ends in one of the last three."""

    WAITING = "waiting"
    """It could start; the resource is held by another entry, or its turn has not come."""
    BLOCKED = "blocked"
    """An entry that it shall follow has not completed."""
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    """Held back until it is resumed; what was running has saved a checkpoint and ended."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (EntryState.COMPLETED, EntryState.FAILED, EntryState.CANCELLED)


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A job for the queue.

    ``config``: absolute path of the YAML file. ``kind``: the kind of job that it names (sft, rft, eval, command, ...).
    ``arguments``: further arguments of `mens-sup run`, such as ``--set=train.max_steps=20``. ``after``: ids of entries
    that have to complete first. ``priority``: higher goes first, equal ones in the order of their coming. ``run_dir``:
    the run's folder, None for a new one under the daemon's runs. ``name``: None for the configuration's own.
    """

    config: Path
    kind: str
    arguments: tuple[str, ...] = ()
    after: tuple[int, ...] = ()
    priority: int = 0
    name: str | None = None
    run_dir: Path | None = None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One job of the queue, from its coming on and for ever.

    ``resource``: what it holds or waits for, ``gpu-UUID`` or ``cpu``. ``outcome``: that of its run (completed, gave_up,
    stopped, failed_config), None before there is one. ``explanation``: why it stands where it stands, for people.
    """

    id: int
    name: str
    config: Path
    run_dir: Path
    kind: str
    state: EntryState
    priority: int
    after: tuple[int, ...]
    resource: str
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    outcome: str | None = None
    explanation: str = ""
    arguments: tuple[str, ...] = ()


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration that is submitted again and again. ``next_at``: None when it will not be any more."""

    id: str
    config: Path
    cron: str
    kind: str
    next_at: float | None


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A resource and the entry that holds it, None while it is free."""

    resource: str
    entry: int | None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How the daemon itself is. ``tick_age_seconds``: how long ago its main loop went round last."""

    version: str
    pid: int
    uptime_seconds: float
    tick_age_seconds: float
    runs: Path
    leases: tuple[Lease, ...]


class NoSuchEntryError(LookupError):
    """There is no entry, or no schedule, of that id."""


class NotPossibleError(Exception):
    """The daemon will not do it; the text is a sentence that says why and what to do instead."""


class DaemonService(Protocol):
    """Called by the control server from threads of its own, several at a time. What returns has been made durable.

    Every method answers within a second or so: what takes longer (ending a trainer, waiting for a GPU) goes on
    afterwards and shows in the entry. Unknown ids raise NoSuchEntryError.
    """

    def submit(self, submission: Submission) -> Entry:
        """Queue a job. Raises NotPossibleError, and NoSuchEntryError for what it shall follow."""

    def entries(self, ended: int | None = None) -> tuple[Entry, ...]:
        """In the order of their ids: all that have not ended, and the ``ended`` that ended last (None: all of them)."""

    def entry(self, entry_id: int) -> Entry: ...

    def cancel(self, entry_id: int) -> Entry:
        """Take it out of the queue; a running one saves a checkpoint and ends. Raises NotPossibleError."""

    def pause(self, entry_id: int) -> Entry:
        """Hold it back; a running one saves a checkpoint and ends. Raises NotPossibleError."""

    def resume(self, entry_id: int) -> Entry:
        """Put a paused one into the queue again. Raises NotPossibleError."""

    def schedules(self) -> tuple[Schedule, ...]: ...

    def add_schedule(self, config: Path, cron: str) -> Schedule:
        """Raises NotPossibleError when ``cron`` is no schedule, or the configuration no good."""

    def remove_schedule(self, schedule_id: str) -> None: ...

    def health(self) -> Health: ...
