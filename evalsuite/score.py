"""Scores of completions that anybody made: pass@k with an interval, as a bench's own evaluator would count them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from evalsuite.metrics import task_scores
from evalsuite.scores import ACCEPTED, TaskScores
from evalsuite.statistics.intervals import score_interval
from rft.tasks.task import Task
from rft.verifiers.python_tests import NAME as PYTHON_TESTS
from rft.verifiers.verdict import Outcome, Verdict
from rft.verify import Request, judged_rows, tasks_by_id
from supervisor.problems import InputError

SHOWN = 5
USUAL_KS = (1, 10, 100)


class Metric(msgspec.Struct, frozen=True):
    """A mean over tasks, between ``low`` and ``high`` with the confidence asked for (two-sided), by ``method``."""

    name: str
    mean: float
    low: float
    high: float
    method: str


class Scored(msgspec.Struct, frozen=True):
    """``tasks`` attempted, of ``bench_tasks``; ``fewest`` and ``most`` samples of one; ``unattempted``: their ids."""

    bench: str
    tasks: int
    bench_tasks: int
    samples: int
    fewest: int
    most: int
    accepted: int
    confidence: float
    metrics: tuple[Metric, ...]
    unattempted: tuple[str, ...]

    @property
    def whole(self) -> bool:
        return not self.unattempted


@dataclass(frozen=True)
class Wanted:
    """``ks``: of pass@k; None for the usual ones that there are enough samples for. ``continuation``: completions go on
    where the prompt's code ends, to the letter. ``partial``: tasks without a completion are left out and said, where
    otherwise they are an error."""

    ks: tuple[int, ...] | None
    confidence: float = 0.95
    continuation: bool = False
    partial: bool = False


def score(bench: str, tasks: Iterable[Task], request: Request, wanted: Wanted) -> Scored:
    """Judge every row of ``request.candidates`` and count. Raises InputError."""
    known = list(tasks)
    if wanted.continuation:
        known = [_continued(task) for task in known]
    with ExitStack() as stack:
        rows: dict[str, list[Verdict]] = defaultdict(list)
        for candidate, verdict in judged_rows(request, tasks_by_id(known, bench), stack):
            rows[candidate.task.id].append(verdict)
    _check_judged(rows)
    unattempted = tuple(task.id.partition("/")[2] for task in known if task.id not in rows)
    if unattempted and not wanted.partial:
        shown = ", ".join(unattempted[:SHOWN])
        raise InputError(
            f"{request.candidates} has no completion of {len(unattempted)} of the {len(known)} tasks of {bench} "
            f"({shown}{', ...' if len(unattempted) > SHOWN else ''}), so it is no score of the bench. Add them, or "
            "score the part that is there with --partial."
        )
    found = [_task_scores(task, rows[task.id]) for task in known if task.id in rows]
    return _scored(bench, found, len(known), unattempted, wanted)


def _continued(task: Task) -> Task:
    if task.check.verifier != PYTHON_TESTS or "prefix" not in task.check.data:
        return task
    data = {**task.check.data, "format": "continuation"}
    return msgspec.structs.replace(task, check=msgspec.structs.replace(task.check, data=data))


def _check_judged(rows: Mapping[str, Sequence[Verdict]]) -> None:
    failed = [verdict for verdicts in rows.values() for verdict in verdicts if verdict.outcome is Outcome.ERROR]
    if failed:
        raise InputError(
            f"the judge failed on {len(failed)} completions ({failed[0].reason}: {failed[0].diagnostic[:200]}), so "
            "there is no score. It says nothing of them; try again."
        )


def _task_scores(task: Task, verdicts: Sequence[Verdict]) -> TaskScores:
    values = {ACCEPTED: tuple(float(verdict.outcome is Outcome.ACCEPTED) for verdict in verdicts)}
    for name in frozenset.intersection(*(frozenset(verdict.metrics) for verdict in verdicts)):
        values[name] = tuple(verdict.metrics[name] for verdict in verdicts)
    return TaskScores(task.id, task.cluster or task.id, len(verdicts), int(sum(values[ACCEPTED])), values)


def _scored(
    bench: str, found: Sequence[TaskScores], bench_tasks: int, unattempted: tuple[str, ...], wanted: Wanted
) -> Scored:
    samples = [task.samples for task in found]
    names = frozenset.intersection(*(frozenset(task.values) for task in found)) - {ACCEPTED}
    metrics = [*(f"pass@{k}" for k in _ks(wanted, min(samples))), *sorted(names)]
    clusters = [task.cluster for task in found]
    measured = []
    for name in metrics:
        interval = score_interval(task_scores(found, name), clusters, wanted.confidence)
        measured.append(Metric(name, interval.estimate, interval.low, interval.high, interval.method))
    return Scored(
        bench, len(found), bench_tasks, sum(samples), min(samples), max(samples), sum(task.accepted for task in found),
        wanted.confidence, tuple(measured), unattempted,
    )  # fmt: skip


def _ks(wanted: Wanted, fewest: int) -> tuple[int, ...]:
    if wanted.ks is None:
        return tuple(k for k in USUAL_KS if k <= fewest)
    if (most := max(wanted.ks)) > fewest:
        raise InputError(
            f"pass@{most} needs {most} completions of each task, and some have {fewest}. Give a smaller --k, or more "
            "completions."
        )
    return wanted.ks


def scored_text(found: Scored, path: Path) -> str:
    each = f"{found.fewest} of each" if found.fewest == found.most else f"{found.fewest} to {found.most} of each"
    part = "" if found.whole else f"NOT WHOLE: only {found.tasks} of {found.bench_tasks} tasks are in {path}\n"
    lines = [f"{found.bench}: {found.tasks} tasks, {found.samples} completions ({each}), {found.accepted} accepted"]
    for metric in found.metrics:
        lines.append(
            f"  {metric.name:<16} {metric.mean:.4f}   {found.confidence:.0%} interval {metric.low:.4f} to "
            f"{metric.high:.4f} ({metric.method})"
        )
    return part + "\n".join(lines)
