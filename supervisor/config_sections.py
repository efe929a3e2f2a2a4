"""The supervisor's own sections of a configuration; a kind of job adds its own beside them.

The field descriptions end up in the JSON schema, which editors show while one types.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
TRIM_RETENTION = "trim_retention"
DEFAULT_LADDER = (TRIM_RETENTION, "halve_micro_batch", "shorten_sequence", "switch_model")


class Section(BaseModel):
    """A frozen part of the configuration that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Limits(Section):
    """When to try again and when to stop."""

    max_attempts: int = Field(5, ge=1)
    """Attempts that may fail before the supervisor gives up; the first one counts."""
    stop_grace_seconds: float = Field(120.0, gt=0)
    """Seconds that the trainer has for its checkpoint after a stop request, before it is killed."""
    backoff_seconds: float = Field(2.0, ge=0)
    """Pause before the second attempt, in seconds; it doubles with every further failure in a row."""
    backoff_max_seconds: float = Field(60.0, ge=0)
    """The longest pause between two attempts, in seconds."""

    @model_validator(mode="after")
    def _ordered(self) -> Limits:
        if self.backoff_max_seconds < self.backoff_seconds:
            raise ValueError(
                f"backoff_max_seconds ({self.backoff_max_seconds:g}) is less than "
                f"backoff_seconds ({self.backoff_seconds:g}); raise it or lower the other"
            )
        return self


class ReliefSettings(Section):
    """What may be changed, and in which order, when a run fails for want of memory or disk."""

    ladder: tuple[str, ...] = DEFAULT_LADDER
    """Rungs that may be taken, mildest first. A rung that isn't listed is never taken; an empty list
    means no relief."""
    strict_order: bool = False
    """Take the rungs literally in the order given, instead of only those that help with the failure."""
    seq_len_rungs: tuple[Annotated[int, Field(ge=16)], ...] = Field(
        (4096, 3072, 2048, 1536, 1024, 768, 512), min_length=1
    )
    """Sequence lengths in tokens, falling; relief goes to the next one below the present length."""

    @model_validator(mode="after")
    def _falling(self) -> ReliefSettings:
        if any(low >= high for high, low in pairwise(self.seq_len_rungs)):
            raise ValueError("seq_len_rungs must fall from each number to the next; sort them, longest first")
        return self


class CheckpointSettings(Section):
    """How often to save and how much to keep."""

    save_steps: int = Field(50, ge=1)
    """Optimiser steps between two checkpoints."""
    keep: int = Field(3, ge=1)
    """Checkpoints kept, the newest ones; the best one is kept as well."""


class NotifySettings(Section):
    """Tell somebody how a run ended."""

    command: tuple[str, ...] = ()
    """A program and its arguments; it gets the event as JSON on its standard input. Empty: nobody is told."""
    on: tuple[Literal["completed", "gave_up", "stopped", "degraded"], ...] = (
        "completed",
        "gave_up",
        "stopped",
        "degraded",
    )
    """Which events are told: outcomes, and `degraded` for each relief that isn't lossless."""


Argument = Annotated[str, Field(pattern=r"^[^\x00]*$")]
"""Text that can be handed to a process: without a NUL character."""


class LaunchSettings(Section):
    """How the trainer's process is started."""

    python: Argument | None = None
    """Python interpreter of the trainer, a path or a name on PATH. Unset: the supervisor's own."""
    env: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], Argument] = Field(default_factory=dict)
    """Environment variables of the trainer, added to the supervisor's own."""


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
