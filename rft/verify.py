"""Judging completions that somebody has made: ``mens-sup rft verify``."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec
from pydantic import ValidationError

from rft.config import JudgeSection, VerifierSection
from rft.gold import State, check_task, patient
from rft.tasks.task import Check, Task
from rft.verifiers.cache import CachedVerifier
from rft.verifiers.in_order import in_order
from rft.verifiers.limits import judges_at_a_time
from rft.verifiers.registry import build, located_settings
from rft.verifiers.verdict import Isolation, Outcome, Verdict
from rft.verifiers.verifier import Verifier, VerifierUnusableError
from supervisor.config_errors import problems_of
from supervisor.jobs import Problem
from supervisor.problems import ConfigError, InputError
from supervisor.protocol.atomic import STAGING_PREFIX
from supervisor.yaml_source import read_yaml
from trainer.cache import cache_root
from trainer.data.messages import BadRow
from trainer.data.rows import read_objects

SHOWN = 10
"""Bad rows that one refusal names."""


@dataclass(frozen=True)
class Request:
    """What is asked for. ``tasks``: a bench's name or a file; ``verifier``: a YAML file."""

    tasks: str
    candidates: Path
    verifier: Path | None = None
    out: Path | None = None
    as_json: bool = False
    workers: int | None = None
    isolation: str = "bubblewrap"
    cache: bool = False


@dataclass(frozen=True)
class Candidate:
    line: int
    task: Task
    completion: str


@dataclass
class Summary:
    """Counts of verdicts; ``reasons`` of the rejected ones; ``unprotected``: of completions run without isolation."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    unprotected: int = 0

    def add(self, verdict: Verdict) -> None:
        self.outcomes[verdict.outcome] += 1
        self.unprotected += verdict.isolation is Isolation.NONE
        if verdict.outcome is Outcome.REJECTED:
            self.reasons[verdict.reason] += 1

    def lines(self, seconds: float) -> Iterator[str]:
        total = self.outcomes.total()
        counts = [
            f"{self.outcomes[outcome]} {word}"
            for outcome, word in (
                (Outcome.ACCEPTED, "accepted"),
                (Outcome.REJECTED, "rejected"),
                (Outcome.TIMEOUT, "out of time"),
                (Outcome.ERROR, "without a verdict, because the judge failed"),
            )
            if self.outcomes[outcome] or outcome in (Outcome.ACCEPTED, Outcome.REJECTED)
        ]
        yield f"{total} rows in {seconds:.1f} s ({total / max(seconds, 1e-9):.1f}/s): {', '.join(counts)}"
        for reason, count in self.reasons.most_common():
            yield f"  rejected {count}x: {reason}"
        if self.unprotected:
            yield f"  {self.unprotected} of them ran without isolation, as you"


def verify(request: Request) -> bool:
    """Judge every row and say each verdict, in the rows' order; whether all have one. Raises InputError."""
    _check_out(request)
    section = None if request.verifier is None else read_verifier(request.verifier)
    tasks = _tasks(request.tasks, section)
    with ExitStack() as stack:
        judged = judged_rows(request, tasks, stack, section)
        write = _writer(request, stack)
        summary, began = Summary(), time.monotonic()
        for candidate, verdict in judged:
            summary.add(verdict)
            write(candidate, verdict)
        out = sys.stderr if request.as_json else sys.stdout
        for line in summary.lines(time.monotonic() - began):
            out.write(f"{line}\n")
    return not summary.outcomes[Outcome.ERROR]


def judged_rows(
    request: Request, tasks: Mapping[str, Task], stack: ExitStack, section: VerifierSection | None = None
) -> Iterator[tuple[Candidate, Verdict]]:
    """Every row of ``request.candidates`` with its verdict, in their order; all is read and checked before the first.

    ``tasks`` as of :func:`tasks_by_id`; ``stack`` ends the verifiers. Raises InputError.
    """
    _check_rows(request.candidates, tasks)
    judge = JudgeSection(isolation="none" if request.isolation == "none" else "bubblewrap", workers=request.workers)
    verifiers = _open(request, tasks, section, judge, stack)
    _check_judged(request.candidates, tasks, verifiers)
    return in_order(
        _candidates(request.candidates, tasks),
        lambda one: patient(verifiers[one.task.check.verifier], one.task, one.completion),
        judges_at_a_time(judge),
    )


def read_verifier(path: Path) -> VerifierSection:
    """The verifier of a YAML file, paths absolute. Raises InputError."""
    document, lines = read_yaml(path)
    try:
        section = VerifierSection.model_validate(document)
    except ValidationError as error:
        problems = problems_of(error, VerifierSection, document)
        raise ConfigError([_placed(problem, path, lines) for problem in problems]) from None
    section = section.model_copy(
        update={"settings": dict(located_settings(section.name, section.settings, path.absolute().parent))}
    )
    try:
        build(section.name, section.settings, JudgeSection())
    except ConfigError as error:
        raise ConfigError([_placed(problem, path, lines) for problem in error.problems]) from None
    return section


def _placed(problem: Problem, path: Path, lines: Mapping[str, int]) -> Problem:
    line = lines.get(problem.key) or lines.get("settings")
    return Problem(problem.key, problem.message, problem.remedy, str(path), line)


def _tasks(name: str, section: VerifierSection | None) -> dict[str, Task]:
    from rft.tasks.bench import bench_tasks

    tasks: Iterable[Task] = bench_tasks(name)
    if section is not None:
        tasks = (msgspec.structs.replace(task, check=Check(section.name, task.check.data)) for task in tasks)
    return tasks_by_id(tasks, name)


def tasks_by_id(tasks: Iterable[Task], name: str) -> dict[str, Task]:
    """Tasks by id; also by their id in the bench alone, as those who made the completions know it. ``name``: the
    bench's. Raises InputError."""
    found: dict[str, Task] = {}
    short: dict[str, Task] = {}
    for task in tasks:
        if task.id in found:
            raise InputError(f"{task.file}:{task.line}: the task {task.id} stands twice. Give each task its own id.")
        found[task.id] = short[task.id.partition("/")[2]] = task
    if not found:
        raise InputError(f"{name} has no tasks, so nothing can be judged by it.")
    return short | found


def _check_rows(path: Path, tasks: Mapping[str, Task]) -> None:
    """Read all rows once before the first is judged. Raises InputError that names the bad ones."""
    problems: list[str] = []
    bad = rows = 0
    for line, found in _rows(path, tasks):
        rows += 1
        if isinstance(found, str):
            bad += 1
            if len(problems) < SHOWN:
                problems.append(f"{path}:{line}: {found}")
    if bad:
        more = f"\nand {bad - SHOWN} more rows" if bad > SHOWN else ""
        raise InputError("\n".join(problems) + more)
    if not rows:
        raise InputError(f"{path} has no rows. Each line is an object with task_id and completion.")


def _candidates(path: Path, tasks: Mapping[str, Task]) -> Iterator[Candidate]:
    for line, found in _rows(path, tasks):
        if isinstance(found, str):
            raise InputError(f"{path}:{line}: {found} The file was changed while it was read.")
        yield found


def _rows(path: Path, tasks: Mapping[str, Task]) -> Iterator[tuple[int, Candidate | str]]:
    try:
        for row in read_objects(path, str(path)):
            if isinstance(row, BadRow):
                yield row.line, f"{row.problem}. Correct the line or remove it."
            else:
                yield row[0], _candidate(row[0], row[1], tasks)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}. Name a JSONL file of completions."
        ) from None


def _candidate(line: int, fields: Mapping[str, Any], tasks: Mapping[str, Task]) -> Candidate | str:
    for name in ("task_id", "completion"):
        if name not in fields:
            return f"the row has no {name!r}. Each row is an object with task_id and completion."
        if not isinstance(fields[name], str):
            return f"{name!r} must be text, not {type(fields[name]).__name__}."
    task = tasks.get(fields["task_id"])
    if task is None:
        known = next(iter(tasks.values())).id.partition("/")[2]
        given = fields["task_id"][:100]
        return f"there is no task {given!r}; ids look like {known!r}. Correct the id or name the right --tasks."
    return Candidate(line, task, fields["completion"])


def _open(
    request: Request, tasks: Mapping[str, Task], section: VerifierSection | None, judge: JudgeSection, stack: ExitStack
) -> dict[str, Verifier]:
    opened: dict[str, Verifier] = {}
    for name in sorted({task.check.verifier for task in tasks.values()}):
        settings = section.settings if section is not None and section.name == name else {}
        verifier = build(name, settings, judge)
        if request.cache:
            verifier = CachedVerifier(verifier, cache_root() / "verdicts.sqlite", says=_say)
        stack.callback(verifier.close)
        try:
            verifier.open()
        except VerifierUnusableError as error:
            raise InputError(str(error)) from None
        opened[name] = verifier
    return opened


def _check_judged(path: Path, tasks: Mapping[str, Task], verifiers: Mapping[str, Verifier]) -> None:
    """Refuse tasks that cannot be judged, and verifiers that accept an answer that says nothing. Raises InputError."""
    asked: dict[str, Task] = {}
    for _, found in _rows(path, tasks):
        if isinstance(found, Candidate):
            asked.setdefault(found.task.id, found.task)
    tried: set[str] = set()
    for task in asked.values():
        verifier = verifiers[task.check.verifier]
        problem = verifier.problem(task)
        if problem is None and verifier.name not in tried:
            tried.add(verifier.name)
            check = check_task(msgspec.structs.replace(task, gold=None), verifier)
            if check.state is State.INVALID:
                problem = f"{check.problem}, so what it accepts proves nothing"
        if problem:
            place = f"{task.file}:{task.line}: " if task.file else ""
            raise InputError(f"{place}task {task.id}: {problem.rstrip('.')}.")


def _check_out(request: Request) -> None:
    """Raises InputError when --out is one of the files that are read."""
    if request.out is None or not request.out.exists():
        return
    inputs = {"the candidates": request.candidates, "the verifier": request.verifier, "the tasks": Path(request.tasks)}
    for what, path in inputs.items():
        if path is not None and path.exists() and request.out.samefile(path):
            raise InputError(f"--out names the file with {what} ({path}). Name another one.")


@contextmanager
def _whole_or_not(path: Path) -> Iterator[IO[str]]:
    """A file that takes its name when everything is in it. Raises OSError."""
    staged = path.with_name(f"{STAGING_PREFIX}{path.name}")
    try:
        with staged.open("w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def _writer(request: Request, stack: ExitStack) -> Callable[[Candidate, Verdict], None]:
    file: IO[str] | None = None
    if request.out is not None:
        try:
            file = stack.enter_context(_whole_or_not(request.out))
        except OSError as error:
            raise InputError(f"{request.out} cannot be written: {error.strerror}. Name another --out.") from None

    def write(candidate: Candidate, verdict: Verdict) -> None:
        row = json.dumps(verdict_row(candidate, verdict))
        if file is not None:
            file.write(f"{row}\n")
        if request.as_json:
            sys.stdout.write(f"{row}\n")
        else:
            sys.stdout.write(f"{_line(candidate, verdict)}\n")
        sys.stdout.flush()

    return write


def verdict_row(candidate: Candidate, verdict: Verdict) -> dict[str, Any]:
    return {
        "task_id": candidate.task.id.partition("/")[2],
        "line": candidate.line,
        **msgspec.to_builtins(verdict),
        "reward": verdict.reward,
    }


def _line(candidate: Candidate, verdict: Verdict) -> str:
    text = f"{candidate.task.id.partition('/')[2]}\t{verdict.outcome.value}"
    if verdict.outcome is not Outcome.ACCEPTED:
        text += f"\t{verdict.reason}"
        if lines := verdict.diagnostic.strip().splitlines():
            last = "".join(character if character.isprintable() else " " for character in lines[-1])
            text += f" ({last.strip()[:160]})"
    return text


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
