"""A gate's file: which evaluations are compared, by which metrics, and what is asked of them. Light."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictInt, StrictStr, model_validator

from supervisor.config_file import load_sections
from trainer.config import Count, Section

PASS_AT = re.compile(r"pass@([1-9][0-9]*)")
NO_RELEASE = "none"
CACHED = "cached"
_BEYOND = 5
"""Draws that have to lie beyond a bound for it to be one."""
Chance = Annotated[float, Field(ge=0.5, lt=1, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Reference = Literal["base", "release"]


class CheckSection(Section):
    metric: StrictStr = "accepted"
    """A metric of the bench, such as accepted, or pass@K of its accepted samples."""
    rule: Literal["not_worse", "better"] = "not_worse"
    """not_worse: by more than margin; better: at all."""
    margin: Share | None = None
    """not_worse: the drop that is tolerated, in units of the metric (0.02 is two points of a hundred)."""
    against: list[Reference] = ["base", "release"]
    """What the candidate is compared with; release only where there is one."""

    @model_validator(mode="after")
    def _has_its_margin(self) -> CheckSection:
        if (self.margin is None) == (self.rule == "not_worse"):
            raise ValueError(
                "rule not_worse needs the margin that is tolerated, such as 0.03"
                if self.rule == "not_worse"
                else "rule better has no margin: it passes when the candidate is better at all"
            )
        if not self.against:
            raise ValueError("against is empty, and then nothing is checked; name base, release or both")
        if PASS_AT.fullmatch(self.metric) is None and "@" in self.metric:
            raise ValueError(f"{self.metric} is no metric; write pass@5 or the name of one, such as accepted")
        return self


class SequentialSection(Section):
    seed: StrictInt = 0
    """Of the order in which the tasks are asked."""
    batch: Count = 16
    """Tasks between two looks."""
    effect: Share | None = None
    """The difference that rule better is tuned to find; not_worse is tuned to its margin."""


class BenchSection(Section):
    bench: StrictStr
    """The bench's file, as `mens-sup eval run` got it."""
    candidate: StrictStr
    """Folder of the candidate's evaluation."""
    adapter: StrictStr | None = None
    """The candidate's checkpoint: it must be the one that was evaluated."""
    base: StrictStr
    """Folder of the base model's evaluation, or cached: the last one of the same base, bench and sampling."""
    release: StrictStr
    """Folder of the evaluation of the last accepted release; none while nothing is released."""
    sequential: SequentialSection | None = None
    """The candidate is asked task by task in a random order, until the answer is known."""
    checks: Annotated[list[CheckSection], Field(min_length=1)]
    """All of them must pass."""

    @model_validator(mode="after")
    def _can_be_checked(self) -> BenchSection:
        for check in self.checks:
            if self.release == NO_RELEASE and check.against == ["release"]:
                raise ValueError(f"{check.metric} is checked against a release, and release is none")
            if self.sequential and check.rule == "better" and self.sequential.effect is None:
                raise ValueError("rule better in a sequential gate needs sequential.effect, such as 0.05")
        return self


class GateSections(Section):
    name: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    confidence: Chance = 0.95
    """Each verdict is wrong with a chance of at most 1 - confidence."""
    power: Chance = 0.8
    """The chance with which the smallest detectable drop, which is printed, is found."""
    draws: Annotated[StrictInt, Field(ge=1000, le=1_000_000)] = 10_000
    """Of the bootstrap."""
    seed: Annotated[StrictInt, Field(ge=0)] = 0
    """Of the bootstrap: the same scores give the same result."""
    benches: Annotated[list[BenchSection], Field(min_length=1)]

    @model_validator(mode="after")
    def _draws_reach_the_bounds(self) -> GateSections:
        checks = sum(
            against == "base" or bench.release != NO_RELEASE
            for bench in self.benches
            for check in bench.checks
            for against in check.against
        )
        needed = math.ceil(_BEYOND * checks / (1 - self.confidence))
        if self.draws < needed:
            raise ValueError(
                f"{self.draws} draws are too few for bounds of this confidence with {checks} comparisons: fewer than "
                f"{_BEYOND} would lie beyond; set draws to {needed} or more"
            )
        return self


def load_gate(path: Path) -> GateSections:
    """With paths made absolute, from the gate's folder on. Raises ConfigError with every problem of the file."""
    sections, _ = load_sections(path, GateSections)
    base = path.resolve().parent
    return sections.model_copy(update={"benches": [_absolute(bench, base) for bench in sections.benches]})


def _absolute(bench: BenchSection, base: Path) -> BenchSection:
    def place(text: str) -> str:
        return str(base / Path(text).expanduser())

    return bench.model_copy(
        update={
            "bench": place(bench.bench),
            "candidate": place(bench.candidate),
            "adapter": None if bench.adapter is None else place(bench.adapter),
            "base": bench.base if bench.base == CACHED else place(bench.base),
            "release": bench.release if bench.release == NO_RELEASE else place(bench.release),
        }
    )
