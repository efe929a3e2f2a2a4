"""Bad input as people should read it: one paragraph each, where it is, what is wrong, what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisor.jobs import Problem


class InputError(Exception):
    """What was asked for can't be done; the text says why and what to do instead."""


class ConfigError(InputError):
    """A configuration that can't be used; carries everything that is wrong with it at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(render_problems(problems))
        self.problems = list(problems)


def render_problems(problems: Sequence[Problem]) -> str:
    """One paragraph per problem, such as ``x.yaml:12: train.lr is not a known key. Did you mean ...?``"""
    return "\n".join(_render(problem) for problem in problems)


def _render(problem: Problem) -> str:
    where = problem.file or "configuration"
    if problem.line is not None:
        where += f":{problem.line}"
    text = problem.message.strip()
    if problem.key and re.sub(r"\.\d+$", "", problem.key) not in text:
        text = f"{problem.key}: {text}"
    remedy = problem.remedy.strip()
    if remedy[:1].islower():  # "...; pip install x": a command keeps its spelling
        return _ended(f"{where}: {text.rstrip('.')}; {remedy}")
    return f"{where}: {_ended(text)} {_ended(remedy)}".rstrip()


def _ended(sentence: str) -> str:
    return sentence if not sentence or sentence[-1] in ".!?" else f"{sentence}."
