"""A real sampling job, with its store, around the toy sampler and verifier of tests/rft/toy_job.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from supervisor.jobs import Problem, Rung

PROGRAM = Path(__file__).parents[1] / "rft" / "toy_job.py"


class ToyRftSections(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks: int = 20


class ToyRftKind:
    """Implements :class:`supervisor.jobs.JobKind`."""

    name = "toy_rft"
    keeps_own_state = True
    schema: type[BaseModel] = ToyRftSections
    rungs: Mapping[str, Rung] = {}

    def resolve(self, sections: BaseModel, base: Path) -> BaseModel:
        return sections

    def preflight(self, sections: BaseModel) -> list[Problem]:
        return []

    def command(self, sections: BaseModel) -> list[str]:
        assert isinstance(sections, ToyRftSections)
        return [str(PROGRAM), str(sections.tasks)]


TOY_RFT = ToyRftKind()
