"""Verifiers by name: those of this package, and those that others bring as entry points.

An entry point in the group ``mens_supervisor.verifiers`` is a :class:`Kind`. Its module must be light: what is heavy is
imported by ``open``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rft.config import JudgeSection
from rft.verifiers.verifier import Verifier
from supervisor.config_errors import problems_of
from supervisor.jobs import Problem
from supervisor.problems import ConfigError
from trainer.config import Section

ENTRY_POINT_GROUP = "mens_supervisor.verifiers"


@dataclass(frozen=True)
class Kind:
    """What a verifier is before it is built.

    ``settings`` is its strict schema; ``build`` makes it of settings and the job's judge section, quickly and without
    starting anything. ``locate`` makes relative paths among the settings absolute against a folder; ``check`` finds
    what the schema can't, such as a program that is not there. None where there are neither.
    """

    settings: type[Section]
    build: Callable[[Any, JudgeSection], Verifier]
    locate: Callable[[Any, Path], Any] | None = None
    check: Callable[[Any], list[str]] | None = None


_OWN: Mapping[str, str] = {
    "python_tests": "rft.verifiers.python_tests:KIND",
    "command": "rft.verifiers.command:KIND",
    "json_schema": "rft.verifiers.json_schema:KIND",
    "function_calls": "rft.verifiers.function_calls:KIND",
    "maths": "rft.verifiers.maths:KIND",
    "reasoning_gym": "rft.verifiers.reasoning_gym:KIND",
    "python": "rft.verifiers.plugin:KIND",
}


class UnknownVerifierError(Exception):
    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"verifier {name!r} is not installed; known verifiers: {', '.join(known)}")
        self.known = known


def known_verifiers() -> list[str]:
    return sorted({*_OWN, *(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))})


def kind_of(name: str) -> Kind:
    """Raises UnknownVerifierError; ImportError of a plug-in that is broken."""
    if name in _OWN:
        module, _, attribute = _OWN[name].partition(":")
        kind: Kind = getattr(importlib.import_module(module), attribute)
        return kind
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        found = entry.load()
        if not isinstance(found, Kind):
            raise ImportError(f"the entry point {name} is no rft.verifiers.registry.Kind")
        return found
    raise UnknownVerifierError(name, known_verifiers())


def settings_problems(name: str, settings: Mapping[str, Any]) -> list[str]:
    """What is wrong with a verifier's name or settings, a sentence or two each; empty when it can be built."""
    return [f"{problem.message}. {problem.remedy}".strip(" .") for problem in _problems(name, settings)]


def _problems(name: str, settings: Mapping[str, Any]) -> list[Problem]:
    try:
        kind = kind_of(name)
    except (UnknownVerifierError, ImportError) as error:
        return [Problem("", str(error))]
    try:
        parsed = kind.settings.model_validate(dict(settings))
    except ValidationError as error:
        return problems_of(error, kind.settings, settings)
    return [Problem("", text) for text in (kind.check(parsed) if kind.check else [])]


def located_settings(name: str, settings: Mapping[str, Any], base: Path) -> Mapping[str, Any]:
    """The same settings with relative paths made absolute against ``base``; as they are when they are not usable."""
    try:
        kind = kind_of(name)
        parsed = kind.settings.model_validate(dict(settings))
    except (UnknownVerifierError, ImportError, ValidationError):
        return settings
    if kind.locate is None:
        return settings
    plain: dict[str, Any] = kind.locate(parsed, base).model_dump(exclude_unset=True)
    return plain


def build(name: str, settings: Mapping[str, Any], judge: JudgeSection) -> Verifier:
    """The verifier, not opened yet. Raises ConfigError."""
    if problems := _problems(name, settings):
        raise ConfigError([Problem(f"verifier {name}", p.message, p.remedy) for p in problems])
    kind = kind_of(name)
    return kind.build(kind.settings.model_validate(dict(settings)), judge)
