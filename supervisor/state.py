"""``state.json``: the supervisor's own memory of a run, replaced atomically."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import msgspec

from supervisor.protocol.atomic import write_atomic


class Outcome(enum.StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    GAVE_UP = "gave_up"
    STOPPED = "stopped"
    FAILED_CONFIG = "failed_config"


class ReliefTaken(msgspec.Struct, frozen=True):
    """A rung as applied: before attempt ``attempt``, because of ``kind``, with its patches.

    ``answers``: the root cause and place of the failure, see relief/ledger.py. ``in_vain``: it was waited for something
    that did not come.
    """

    attempt: int
    rung: str
    kind: str
    price: str
    lossless: bool
    patches: dict[str, Any]
    accepts: tuple[str, ...] = ()
    new_lineage: bool = False
    answers: str = ""
    in_vain: bool = False


class Failure(msgspec.Struct, frozen=True):
    """One failed attempt in the ledger. ``fingerprint`` identifies the root cause."""

    attempt: int
    kind: str
    step: int
    message: str
    fingerprint: str
    time: float
    lineage: int = 1
    resumed_step: int | None = None
    """The step of the checkpoint that the attempt resumed from, None when it began at step 0."""
    verified_step: int = 0
    """The newest verified checkpoint of the lineage when the attempt had ended, 0 without one."""
    planned_steps: int = 0


class RunState(msgspec.Struct, kw_only=True):
    id: str
    kind: str
    outcome: Outcome = Outcome.RUNNING
    attempt: int = 0
    max_attempts: int
    attempts_before: int = 0
    """Attempts of earlier `mens-sup run` calls; the cap counts from here."""
    settled: int = 0
    """The last attempt whose end is entered here; a later one was still going on when this was written."""
    lineage: int = 1
    step: int = 0
    planned_steps: int = 0
    tokens_seen: int = 0
    loss: float | None = None
    """The newest training loss and evaluation loss, for lists of runs: nobody has to read the log for them."""
    eval_loss: float | None = None
    last_checkpoint: str | None = None
    best_checkpoint: str | None = None
    relief: list[ReliefTaken] = []
    failures: list[Failure] = []
    accepted_changes: dict[str, int] = {}
    """Differences to a checkpoint that the user accepted, each with the first attempt that it holds for; a checkpoint
    of that attempt or a later one carries the new identity and needs no acceptance any more."""
    overrides: dict[str, Any] = {}
    """Accepted differences to run.yaml, by dotted key."""
    explanation: str = ""
    """Why the run ended as it did, one paragraph."""
    supervisor_pid: int = 0
    trainer_pid: int = 0
    trainer_start: int = 0
    """When that process started, in clock ticks since boot: with ``boot_id`` it tells it from a later namesake."""
    boot_id: str = ""
    beat_gaps: dict[str, float] = {}
    """The longest time between two heartbeats so far, in seconds, by phase."""
    seconds_used: float = 0.0
    """Of supervision so far, over all `mens-sup run` calls: attempts, pauses and waits."""
    force_overfit: bool = False
    """The user has accepted that the data is passed over too often (`--force-overfit`)."""
    authorized_hours: float | None = None
    """Hours in all that were allowed on the command line beyond limits.max_hours."""
    seconds_per_step: float | None = None
    """As last measured in this lineage, evaluations and saves included."""
    started: float = 0.0
    updated: float = 0.0


def read_state(path: Path) -> RunState | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunState)
    except FileNotFoundError:
        return None


def write_state(path: Path, state: RunState) -> None:
    data = msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n"
    # Accepted changes and relief may set the trainer's environment, which may hold passwords and tokens.
    write_atomic(path, data, mode=0o600)
