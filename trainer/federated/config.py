"""``lan.yaml``: a federation's file. Light; every field is read by somebody."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictInt, StrictStr, model_validator

from supervisor.config_file import load_sections, located
from supervisor.jobs import Problem
from supervisor.problems import ConfigError
from trainer.config import Count, Section

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$"
Name = Annotated[StrictStr, Field(pattern=NAME)]
Seconds = Annotated[StrictInt, Field(ge=1, le=7 * 86_400)]
Port = Annotated[StrictInt, Field(ge=1, le=65_535)]


class RoundsSection(Section):
    count: Count = 20
    """Rounds in all."""
    train_seconds: Seconds = 600
    """How long each node trains in a round, by its own clock."""
    deadline_seconds: Seconds = 900
    """No round waits longer than this for anybody."""
    late_rounds: Annotated[StrictInt, Field(ge=0, le=10)] = 2
    """A delta that comes so many rounds late still counts; 0: only those that are in time."""
    late_factor: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.5
    """Times this for each round that it is late."""
    warmup_steps: Annotated[StrictInt, Field(ge=0, le=1000)] = 5
    """Optimiser steps in which the learning rate rises again, as the moments begin anew with each round."""

    @model_validator(mode="after")
    def _deadline_leaves_time(self) -> RoundsSection:
        if self.deadline_seconds <= self.train_seconds:
            raise ValueError(
                f"deadline_seconds is {self.deadline_seconds}, and the nodes train for train_seconds = "
                f"{self.train_seconds}: nobody would ever be in time. Leave time to send the adapter both ways"
            )
        return self


class AggregationSection(Section):
    mode: Literal["product", "exact"] = "product"
    """product: the mean of the products B A, re-factored to the adapter's rank; exact: FedEx-LoRA, the mean of the
    factors and what they miss in a second, frozen adapter."""
    residual_rank: Count = 64
    """exact: the most that the frozen adapter may grow to."""
    outer_learning_rate: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] = 1.0
    """How far the adapter goes along the mean of the nodes' deltas; 1: to the mean of what they handed in. Shards that
    have little in common teach different things, of each of which the mean keeps only its share: up to the number of
    such shards is worth a try."""
    norm_times: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 10.0
    """A delta that is more than so many times as large as usual doesn't count."""


class FederationSections(Section):
    name: Name
    """Of the federation; part of everything that is signed."""
    host: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9.:-]{1,253}$")]
    """Name or address under which the nodes reach this machine."""
    port: Port = 9443
    """Of the TLS front, the only port that the nodes need."""
    nodes: Annotated[list[Name], Field(min_length=1, max_length=300)]
    """The boxes; each trains on a shard of its own."""
    train: StrictStr
    """A training's YAML, as for `mens-sup run`: base, adapter and options of all nodes. Its data is a node's own."""
    rounds: RoundsSection = RoundsSection()
    aggregation: AggregationSection = AggregationSection()
    uplink_mbit: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 100.0
    """Of the slowest node, for `mens-sup federate plan`."""

    @model_validator(mode="after")
    def _nodes_differ(self) -> FederationSections:
        twice = sorted({node for node in self.nodes if self.nodes.count(node) > 1})
        if twice:
            raise ValueError(f"nodes names {twice[0]} twice; each box needs a name of its own")
        return self


def load_federation(path: Path) -> FederationSections:
    """With ``train`` made absolute, from the file's folder on. Raises ConfigError with every problem of the file."""
    sections, lines = load_sections(path, FederationSections)
    train = path.resolve().parent / Path(sections.train).expanduser()
    if not train.is_file():
        problem = Problem("train", f"train: {train} does not exist", "Give a training's YAML, as for mens-sup run.")
        raise ConfigError([located(problem, str(path), lines)])
    return sections.model_copy(update={"train": str(train)})


def node_problem(name: str) -> str | None:
    """What is wrong with a node's name."""
    return None if re.match(NAME, name) else f"{name!r} is no name: letters, digits, - and _, 32 at most"
