"""What may be asked: the bodies of requests, bounded and strict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from supervisor.daemon.service import Submission

MAX_ID = 2**53
"""As far as JSON's numbers are whole in every language."""

_NO_CONTROL = r"^[^\x00-\x1f\x7f]*$"

AbsolutePath = Annotated[str, Field(max_length=4096, pattern=r"^/[^\x00-\x1f\x7f]*$")]
Line = Annotated[str, Field(min_length=1, max_length=4096, pattern=_NO_CONTROL)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class SubmitRequest(_Strict):
    """A job for the queue. The daemon reads the configuration itself; whoever asks must be able to read it too."""

    config: AbsolutePath = Field(description="absolute path of the YAML file on the daemon's machine")
    name: str | None = Field(None, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    run_dir: AbsolutePath | None = Field(None, description="the run's folder; a new one when left out")
    after: list[Annotated[int, Field(ge=1, le=MAX_ID)]] = Field([], max_length=100)
    priority: int = Field(0, ge=-1000, le=1000)
    sets: list[Line] = Field([], max_length=100, description="KEY=VALUE, as --set of `mens-sup run`")
    accept_change: list[Line] = Field([], max_length=100)
    max_attempts: int | None = Field(None, ge=1, le=1_000_000)
    authorize_hours: float | None = Field(None, gt=0, le=1_000_000)
    force_overfit: bool = False

    def submission(self, config: Path, kind: str) -> Submission:
        return Submission(
            config=config,
            kind=kind,
            arguments=tuple(self._arguments()),
            after=tuple(dict.fromkeys(self.after)),
            priority=self.priority,
            name=self.name,
            run_dir=None if self.run_dir is None else Path(self.run_dir),
        )

    def _arguments(self) -> list[str]:
        """Of `mens-sup run`, each in one word, so that no value can be taken for an option."""
        found = [f"--set={each}" for each in self.sets]
        found += [f"--accept-change={each}" for each in self.accept_change]
        if self.max_attempts is not None:
            found.append(f"--max-attempts={self.max_attempts}")
        if self.authorize_hours is not None:
            found.append(f"--authorize-hours={self.authorize_hours}")
        if self.force_overfit:
            found.append("--force-overfit")
        return found


class ScheduleRequest(_Strict):
    """A configuration to be submitted again and again."""

    config: AbsolutePath = Field(description="absolute path of the YAML file on the daemon's machine")
    cron: Annotated[str, Field(min_length=1, max_length=200, pattern=_NO_CONTROL)] = Field(
        description="minute hour day-of-month month day-of-week, such as 0 2 * * *"
    )
