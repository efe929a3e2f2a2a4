"""The supervisor's own sections of a configuration; a kind of job adds its own beside them.

The field descriptions end up in the JSON schema, which editors show while one types.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
TRIM_RETENTION = "trim_retention"
WAIT_FOR_FOREIGN_VRAM = "wait_for_foreign_vram"
DEFAULT_LADDER = (
    TRIM_RETENTION,
    WAIT_FOR_FOREIGN_VRAM,
    "expandable_segments",
    "halve_micro_batch",
    "checkpoint_activations",
    "paged_optimizer",
    "shorten_sequence",
    "switch_model",
)


class Section(BaseModel):
    """A frozen part of the configuration that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Limits(Section):
    """When to try again and when to stop."""

    max_attempts: int = Field(5, ge=1)
    """Attempts that may fail before the supervisor gives up; the first one counts. A later one that got a tenth of the
    planned steps further does not count, but in all there are never more than 2 x max_attempts - 1."""
    max_hours: float = Field(48.0, gt=0)
    """Hours that the run may take in all, over all continuations. A longer estimate is refused before launch, at the
    wall the run is stopped with a checkpoint; --authorize-hours allows more."""
    hang_seconds: float = Field(600.0, gt=0)
    """Seconds without a sign of life after which a training trainer counts as hung, and is ended and restarted. Other
    phases have a multiple of it (saving and loading 3x, compiling 6x); a phase that has been silent for longer before
    gets four times that."""
    stop_grace_seconds: float = Field(120.0, gt=0)
    """Seconds that the trainer has for its checkpoint after a stop request, before it is killed."""
    backoff_seconds: float = Field(2.0, ge=0)
    """Pause before the next attempt, in seconds; it doubles with every further failure in a row. There is none after
    the first failure in a row when its attempt had got ahead and nothing outside the trainer has to recover."""
    backoff_max_seconds: float = Field(60.0, ge=0)
    """The longest pause between two attempts, in seconds."""
    admission: Literal["refuse", "warn", "off"] = "refuse"
    """Before the first attempt the peak memory is predicted and said. `refuse` starts nothing when it certainly cannot
    fit: more than 1.3 times the memory there is, whatever relief is taken; `warn` only says so; `off` predicts nothing.
    """

    @model_validator(mode="after")
    def _ordered(self) -> Limits:
        if self.backoff_max_seconds < self.backoff_seconds:
            raise ValueError(
                f"backoff_max_seconds ({self.backoff_max_seconds:g}) is less than "
                f"backoff_seconds ({self.backoff_seconds:g}); raise it or lower the other"
            )
        return self


Relievable = Literal[
    "cuda_oom", "cuda_oom_foreign", "oom_at_load", "host_oom", "shm_full", "disk_full", "too_many_files", "nan_loss",
    "hang", "native_crash", "worker_killed", "nccl_error", "network", "gpu_lost", "completed_early", "unknown",
]  # fmt: skip
"""Kinds of failure that a rung of the user's own may answer: all but a mistake of the user's and somebody's wish."""


class CustomRung(Section):
    """A rung of your own: keys of this configuration that are set when it is taken, once."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    """What it is called in events, status and report."""
    set: dict[str, Any] = Field(min_length=1)
    """Dotted keys and their new values, such as `train.max_length: 512`."""
    helps: tuple[Relievable, ...] = Field(min_length=1)
    """The kinds of failure that it is taken for."""
    price: str = Field(min_length=1)
    """What it costs, one sentence; it is announced before the rung is taken and stands in the report."""
    lossless: bool = False
    """Say that it changes neither what is learnt nor from what."""
    new_lineage: bool = False
    """Start again from step 0 beside the old checkpoints, as another base model has to."""


def _branch(value: Any) -> str:
    return "own" if isinstance(value, dict | CustomRung) else "known"


LadderEntry = Annotated[
    Annotated[str, Tag("known")] | Annotated[CustomRung, Tag("own")],
    Discriminator(_branch),
]


class ReliefSettings(Section):
    """What may be changed, and in which order, when a run fails for want of memory or disk."""

    ladder: tuple[LadderEntry, ...] = DEFAULT_LADDER
    """Rungs that may be taken, mildest first: names, or mappings that make up a rung of your own. A rung that isn't
    listed is never taken; an empty list means no relief."""
    strict_order: bool = False
    """Take the rungs literally in the order given, instead of only those that help with the failure."""
    foreign_wait_minutes: float = Field(30.0, ge=0)
    """Minutes to wait for GPU memory that somebody else holds before lossless relief is taken; 0: not at all."""
    seq_len_rungs: tuple[Annotated[int, Field(ge=16)], ...] = Field(
        (4096, 3072, 2048, 1536, 1024, 768, 512), min_length=1
    )
    """Sequence lengths in tokens, falling; relief goes to the next one below the present length."""

    @model_validator(mode="after")
    def _falling(self) -> ReliefSettings:
        if any(low >= high for high, low in pairwise(self.seq_len_rungs)):
            raise ValueError("seq_len_rungs must fall from each number to the next; sort them, longest first")
        return self

    @property
    def order(self) -> tuple[str, ...]:
        """The names of the ladder's rungs."""
        return tuple(entry if isinstance(entry, str) else entry.name for entry in self.ladder)

    @property
    def own_rungs(self) -> tuple[CustomRung, ...]:
        return tuple(entry for entry in self.ladder if isinstance(entry, CustomRung))


class CheckpointSettings(Section):
    """How often to save and how much to keep."""

    save_steps: int = Field(50, ge=1)
    """Optimiser steps between two checkpoints."""
    keep: int = Field(3, ge=1)
    """Checkpoints kept, the newest ones; the best one is kept as well."""
    snapshot: str = Field("auto", pattern=r"^(auto|off|/[^\x00]*)$")
    """Where the state after every optimiser step goes, so that a crash costs no more than one step: `auto` is
    /dev/shm, another folder in memory may be named, `off` means nowhere."""


class NotifySettings(Section):
    """Tell somebody how a run goes and how it ended."""

    command: tuple[str, ...] = ()
    """A program and its arguments; it gets the event as JSON on its standard input. Empty: none is started."""
    urls_file: str | None = None
    """A file with addresses of services (mail, chat, push, ...), one a line, as apprise writes them; they are secrets:
    the file must not be readable by everybody."""
    on: tuple[
        Literal["completed", "gave_up", "stopped", "degraded", "time_wall", "disk_forecast", "gate"], ...
    ] = ("completed", "gave_up", "stopped", "degraded", "time_wall", "disk_forecast", "gate")
    """Which events are told: outcomes, `degraded` for each relief that isn't lossless, `time_wall` when it shows that
    the run will not end within limits.max_hours, `disk_forecast` when a disk will be full within hours, `gate` for the
    result of each gate."""
    ping_file: str | None = None
    """A file with the address (http, https) of a dead man's switch, called every ping_minutes while the supervisor is
    at work: it raises the alarm when the calls stop. A secret like those of urls_file."""
    ping_minutes: float = Field(5.0, ge=0.1)
    """Minutes between two calls of the dead man's switch."""


Argument = Annotated[str, Field(pattern=r"^[^\x00]*$")]
"""Text that can be handed to a process: without a NUL character."""


class LaunchSettings(Section):
    """How the trainer's process is started."""

    python: Argument | None = None
    """Python interpreter of the trainer, a path or a name on PATH. Unset: the supervisor's own."""
    env: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], Argument] = Field(default_factory=dict)
    """Environment variables of the trainer, added to the supervisor's own."""
    standby: Literal["auto", "off"] = "auto"
    """Keep a second trainer process ready, everything imported, that takes over when the first one dies. It takes about
    0.6 GiB of memory but no GPU memory; `auto` does without when less than 1.25 GiB are free, and with more than one
    process."""
    processes: int = Field(1, ge=1, le=64)
    """Processes that train together on this machine, one for each GPU. The global batch is micro-batch x accumulation x
    processes."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """How the processes share the work: ddp gives each the whole model, fsdp a part of every layer."""


class SupervisorSections(Section):
    """Everything in a configuration that the supervisor itself reads."""

    name: str = Field("run", pattern=NAME_PATTERN)
    """The run's name, part of its folder's name. Unset: the name of the configuration file."""
    kind: str = "sft"
    """The kind of job; it decides which further sections there are."""
    limits: Limits = Limits()
    relief: ReliefSettings = ReliefSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    notify: NotifySettings = NotifySettings()
    launch: LaunchSettings = LaunchSettings()
    gates: tuple[Argument, ...] = ()
    """Gate files that judge the best checkpoint when the run has completed; see `mens-sup eval gates`."""

    def resolved(self, base: Path) -> SupervisorSections:
        """The same with every relative path made absolute against ``base``."""

        def absolute(path: str) -> str:
            # not Path.resolve(): a virtual environment's interpreter is a link that must stay one
            return os.path.normpath(base / Path(path).expanduser())

        files = {"urls_file": self.notify.urls_file, "ping_file": self.notify.ping_file}
        named = {key: absolute(file) for key, file in files.items() if file}
        own = self.model_copy(
            update={
                "notify": self.notify.model_copy(update=named),
                "gates": tuple(absolute(gate) for gate in self.gates),
            }
        )
        python = own.launch.python
        if python is None or os.sep not in python:
            return own
        return own.model_copy(update={"launch": own.launch.model_copy(update={"python": absolute(python)})})
