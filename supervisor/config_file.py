"""A YAML file of one schema, and its problems where they stand in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from supervisor.config_errors import problems_of
from supervisor.jobs import Problem
from supervisor.problems import ConfigError
from supervisor.yaml_source import read_yaml

M = TypeVar("M", bound=BaseModel)


def load_sections(path: Path, schema: type[M]) -> tuple[M, dict[str, int]]:
    """What the file says, and the line of each of its keys. Raises ConfigError with every problem of the file."""
    document, lines = read_yaml(path)
    try:
        return schema.model_validate(document), lines
    except ValidationError as error:
        problems = [located(found, str(path), lines) for found in problems_of(error, schema, document)]
        raise ConfigError(sorted(problems, key=lambda problem: problem.line or 0)) from None


def located(problem: Problem, file: str, lines: Mapping[str, int]) -> Problem:
    """With the line of its key, or of the nearest key above that stands in the file. One that has a file keeps it."""
    if problem.file is not None:
        return problem
    key = problem.key
    while key and key not in lines:
        key = key.rpartition(".")[0]
    return replace(problem, file=file, line=lines.get(key))
