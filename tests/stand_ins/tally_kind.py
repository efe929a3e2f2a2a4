"""A kind of job for tests that keeps what it has done itself: it counts lines of a file that it appends to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from supervisor.jobs import Problem, Rung

PROGRAM = Path(__file__).with_name("tally_program.py")


class TallySections(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    lines: int = 10
    dies_after: tuple[int, ...] = ()
    """The program kills itself when so many lines are there, once for each."""
    always_dies_at: int | None = None
    """It crashes whenever so many lines are there."""
    stops_at: int | None = None
    """It says that it has completed after so many lines."""
    line_seconds: float = 0.0


class TallyKind:
    """Implements :class:`supervisor.jobs.JobKind`."""

    name = "tally"
    keeps_own_state = True
    schema: type[BaseModel] = TallySections
    rungs: Mapping[str, Rung] = {}

    def resolve(self, sections: BaseModel, base: Path) -> BaseModel:
        return sections

    def preflight(self, sections: BaseModel) -> list[Problem]:
        return []

    def command(self, sections: BaseModel) -> list[str]:
        return [str(PROGRAM)]


TALLY = TallyKind()
