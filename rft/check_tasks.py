"""``mens-sup rft check-tasks``: the gold and the empty answers of a job's tasks, judged before a token is spent."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rft.config import RftSections
from rft.gold import GoldReport, State, TaskCheck, task_checks
from rft.job_file import load_job
from rft.tasks.load import load_tasks
from rft.tasks.task import Task
from rft.verifiers.limits import judges_at_a_time
from rft.verifiers.registry import build
from rft.verifiers.verifier import Verifier, VerifierUnusableError
from supervisor.problems import InputError


def check_job(path: Path, sets: Sequence[str], as_json: bool) -> bool:
    """Say how every task that is not fit stands, then a summary; whether all are fit. Raises InputError."""
    sections = load_job(path, sets)
    report = GoldReport()
    with ExitStack() as stack:
        verifiers = _Verifiers(sections, stack)
        tasks = load_tasks(sections.tasks, sections.seed)
        for check in task_checks(tasks, verifiers.of, judges_at_a_time(sections.judge)):
            report.add(check)
            _say(check, as_json)
    if not report.counts.total():
        raise InputError(f"{path}: tasks.sources give no task at all.")
    counts = ", ".join(f"{report.counts[state]} {state.value}" for state in State if report.counts[state])
    (sys.stderr if as_json else sys.stdout).write(f"{report.counts.total()} tasks: {counts}\n")
    return report.good


class _Verifiers:
    """Opened when the first task needs them: which there are is known only from the tasks."""

    def __init__(self, sections: RftSections, stack: ExitStack) -> None:
        self._judge, self._stack = sections.judge, stack
        self._configured = {source.name: source.verifier for source in sections.tasks.sources}
        self._opened: dict[tuple[str, str], Verifier] = {}

    def of(self, task: Task) -> Verifier:
        key = (task.source, task.check.verifier)
        if key not in self._opened:
            section = self._configured.get(task.source)
            settings = section.settings if section is not None and section.name == task.check.verifier else {}
            verifier = build(task.check.verifier, settings, self._judge)
            self._stack.callback(verifier.close)
            try:
                verifier.open()
            except VerifierUnusableError as error:
                raise InputError(str(error)) from None
            self._opened[key] = verifier
        return self._opened[key]


def _say(check: TaskCheck, as_json: bool) -> None:
    if as_json:
        row = {
            "task_id": check.task.id,
            "state": check.state.value,
            "problem": check.problem,
            "diagnostic": check.diagnostic,
            "file": check.task.file,
            "line": check.task.line,
        }
        sys.stdout.write(json.dumps(row) + "\n")
    elif check.state not in (State.VALID, State.UNCHECKED):
        place = f" ({check.task.file}:{check.task.line})" if check.task.file else ""
        sys.stdout.write(f"{check.task.id}{place}\t{check.state.value}\t{check.problem}\n")
        if check.diagnostic:
            sys.stdout.write("".join(f"    {line}\n" for line in check.diagnostic.splitlines()[-6:]))
    sys.stdout.flush()
