"""The ``command`` kind: its checks before launch and its command line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from supervisor.command.own_checkpoints import find_checkpoints
from supervisor.command.relief import ACCUMULATION, LENGTH, MICRO_BATCH, MODEL, RUNGS, named
from supervisor.command.sections import CommandSections
from supervisor.command.template import Argument, expand, fill, parse, placeholders
from supervisor.jobs import AttemptFacts, OwnCheckpoint, Problem, Program, Rung

SUPPLIED = ("resume_from", "output_dir", "run_dir", "attempt", "lineage", "save_steps", "keep", "python")
"""Placeholders that have their value from the supervisor."""
PER_LINEAGE = ("output_dir", "lineage")


class CommandKind:
    """Implements :class:`supervisor.jobs.JobKind` and :class:`supervisor.jobs.ForeignKind`."""

    name = "command"
    schema: type[BaseModel] = CommandSections
    rungs: Mapping[str, Rung] = RUNGS

    def resolve(self, sections: BaseModel, base: Path) -> CommandSections:
        assert isinstance(sections, CommandSections)
        folder = base if sections.working_dir is None else base / Path(sections.working_dir).expanduser()
        return sections.model_copy(update={"working_dir": os.path.normpath(folder)})

    def preflight(self, sections: BaseModel) -> list[Problem]:
        assert isinstance(sections, CommandSections)
        try:
            arguments = parse(sections.command)
        except ValueError as error:
            return [Problem("command", f"command cannot be split into words ({error})", "Write it as a list.")]
        if not arguments:
            return [Problem("command", "command is empty", "Write the program and its arguments.")]
        problems = [
            *_unsupplied(sections, arguments),
            *_unused_values(sections, arguments),
            *_resuming(sections, arguments),
            *_place_of_ours(sections),
            *_fallback_problems(sections, arguments),
        ]
        return problems or [*_program_problems(sections, arguments[0])]

    def command(self, sections: BaseModel) -> list[str]:
        """Nothing: the whole command line is that of :meth:`program`."""
        return []

    def program(self, sections: BaseModel, facts: AttemptFacts) -> Program:
        assert isinstance(sections, CommandSections)
        arguments = parse(sections.command)
        values = _values(sections, facts)
        used = {name for argument in arguments for name in argument.names}
        if "output_dir" in used:
            _output_dir(facts).mkdir(exist_ok=True)
        return Program(expand(arguments, values), _folder(sections))

    def own_checkpoints(self, sections: BaseModel, facts: AttemptFacts) -> list[OwnCheckpoint]:
        assert isinstance(sections, CommandSections)
        kept = sections.checkpoints
        if kept is None:
            return []
        place = _folder(sections) / Path(fill(kept.dir, _values(sections, facts))).expanduser()
        return find_checkpoints(place, kept.pattern, kept.marker)


def _folder(sections: CommandSections) -> Path:
    return Path(sections.working_dir or Path.cwd())


def _output_dir(facts: AttemptFacts) -> Path:
    return facts.run_dir / ("output" if facts.lineage == 1 else f"output-{facts.lineage}")


def _values(sections: CommandSections, facts: AttemptFacts) -> dict[str, str]:
    supplied = {
        "resume_from": str(facts.resume_from or ""),
        "output_dir": str(_output_dir(facts)),
        "run_dir": str(facts.run_dir),
        "attempt": str(facts.attempt),
        "lineage": str(facts.lineage),
        "save_steps": str(facts.save_steps),
        "keep": str(facts.keep),
        "python": facts.python,
    }
    return {**{name: _shown(value) for name, value in sections.values.items()}, **supplied}


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unsupplied(sections: CommandSections, arguments: list[Argument]) -> Iterator[Problem]:
    known = {*sections.values, *SUPPLIED}
    places = [(argument.key, name) for argument in arguments for name in argument.names]
    if sections.checkpoints is not None:
        places += [("checkpoints.dir", name) for name in placeholders(sections.checkpoints.dir)]
    for key, name in places:
        if key == "checkpoints.dir" and name in ("resume_from", "attempt"):
            yield Problem(key, f"checkpoints.dir cannot depend on {{{name}}}", "Checkpoints outlive an attempt.")
        elif name not in known:
            message = f"{key}: nothing supplies {{{name}}}"
            supplied = ", ".join(f"{{{each}}}" for each in SUPPLIED)
            remedy = f"Declare values.{name}, use one of {supplied}, or write {{{{{name}}}}} for the text itself."
            yield Problem(key, message, remedy)
    for name in sections.values:
        if name in SUPPLIED:
            yield Problem(f"values.{name}", f"values.{name}: the supervisor itself supplies {{{name}}}", "Rename it.")


def _unused_values(sections: CommandSections, arguments: list[Argument]) -> Iterator[Problem]:
    used = {name for argument in arguments for name in argument.names}
    if sections.checkpoints is not None:
        used.update(placeholders(sections.checkpoints.dir))
    for name in sections.values:
        if name not in used and name not in SUPPLIED:
            message = f"values.{name} is not used: there is no {{{name}}} in the command"
            yield Problem(f"values.{name}", message, "Use it there, or remove it.")


def _resuming(sections: CommandSections, arguments: list[Argument]) -> Iterator[Problem]:
    """{resume_from} is empty in the first attempt; its flag must not stay behind alone."""
    before: Argument | None = None
    for argument in arguments:
        if "resume_from" in argument.names:
            if sections.checkpoints is None:
                message = f"{argument.key}: nothing supplies {{resume_from}} without checkpoints"
                yield Problem(argument.key, message, "Say where the program's checkpoints are: checkpoints.dir.")
            elif _is_lone_flag(before) and argument.words == ("{resume_from}",):
                assert before is not None
                flag = before.words[0]
                message = f"{argument.key}: {{resume_from}} is empty in the first attempt, and {flag} would stay alone"
                remedy = f'Write ["{flag}", "{{resume_from}}"] as a list in the list, or {flag}={{resume_from}}.'
                yield Problem(argument.key, message, remedy)
        before = argument


def _place_of_ours(sections: CommandSections) -> Iterator[Problem]:
    parts = Path(sections.checkpoints.dir).parts if sections.checkpoints else ()
    if parts[:1] == ("{run_dir}",) and parts[1:] and parts[1].split("-")[0] == "checkpoints":
        message = f"checkpoints.dir: {parts[0]}/{parts[1]} is the supervisor's own"
        yield Problem("checkpoints.dir", message, "Take {output_dir}, or another folder.")


def _is_lone_flag(argument: Argument | None) -> bool:
    return (
        argument is not None
        and len(argument.words) == 1
        and argument.words[0].startswith("-")
        and "=" not in argument.words[0]
    )


def _fallback_problems(sections: CommandSections, arguments: list[Argument]) -> Iterator[Problem]:
    model = named(sections.values, MODEL)
    for name in sections.fallback:
        if name not in (*LENGTH, *MODEL):
            understood = ", ".join((*LENGTH, *MODEL))
            message = f"fallback.{name}: relief does not understand {name}"
            yield Problem(f"fallback.{name}", message, f"It replaces one of {understood}.")
        elif name not in sections.values:
            yield Problem(f"fallback.{name}", f"fallback.{name}: there is no values.{name}", "Declare it.")
    for found in (named(sections.values, names) for names in (MICRO_BATCH, ACCUMULATION)):
        if found and (isinstance(sections.values[found], bool) or not isinstance(sections.values[found], int)):
            yield Problem(f"values.{found}", f"values.{found} must be a whole number: relief halves or doubles it")
    if model and sections.fallback.get(model):
        used = {name for argument in arguments for name in argument.names}
        where = set(placeholders(sections.checkpoints.dir)) if sections.checkpoints else used
        if not where & {*PER_LINEAGE, model}:
            key = "checkpoints.dir" if sections.checkpoints else "command"
            message = f"{key}: another model must not find the checkpoints of the one before"
            yield Problem(key, message, f"With fallback.{model}, let the place depend on {{output_dir}}.")


def _program_problems(sections: CommandSections, first: Argument) -> Iterator[Problem]:
    folder = _folder(sections)
    if not folder.is_dir():
        yield Problem("working_dir", f"working_dir: {folder} is no folder", "Correct it.")
        return
    program = first.words[0]
    if placeholders(program):
        return
    if shutil.which(folder / program if os.sep in program else program) is None:
        message = f"{first.key}: {program} is no program that can be run"
        yield Problem(first.key, message, "Install it, or give its path (relative to working_dir).")


COMMAND = CommandKind()
