"""Pages as files, with the samples that they show read from where they were judged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evalsuite.compare import Comparison
from evalsuite.gate_result import GateResult
from evalsuite.metrics import metrics_of, task_scores
from evalsuite.report.answers import answers
from evalsuite.report.page import SHOWN_TASKS, comparison_page, gate_page, scores_page, task_changes, worth_showing
from evalsuite.scores import Scores
from evalsuite.statistics.intervals import Interval, score_interval
from supervisor.html.markup import Html
from supervisor.problems import InputError
from supervisor.protocol.atomic import write_atomic

PAGE_NAME = "scores.html"
"""Beside ``scores.json``; ``report.html`` is the run's own."""


def intervals_of(scores: Scores) -> list[tuple[str, Interval]]:
    """Each metric of the bench with its interval, and pass@K for the samples that there are; empty without a task."""
    names = metrics_of(scores)
    samples = min((task.samples for task in scores.tasks), default=0)
    names += [f"pass@{samples}"] if samples > 1 else []
    clusters = [task.cluster for task in scores.tasks]
    return [(name, score_interval(task_scores(scores.tasks, name), clusters)) for name in names]


def write_scores_page(path: Path, folder: Path, scores: Scores, intervals: Sequence[tuple[str, Interval]]) -> None:
    """Of the evaluation in ``folder``. Raises InputError."""
    asked = answers(folder, [task.task for task in scores.tasks[:SHOWN_TASKS]])
    _write(path, scores_page(scores, intervals, asked, {}))


def write_comparison_page(
    path: Path, folders: tuple[Path, Path], first: Scores, second: Scores, found: Comparison
) -> None:
    """Of two evaluations and where they lie. Raises InputError."""
    names = worth_showing(task_changes(first, second))
    one, other = (answers(folder if folder.is_dir() else folder.parent, names) for folder in folders)
    _write(path, comparison_page(first, second, found, (one, other)))


def write_gate_page(path: Path, result: GateResult) -> None:
    """Raises InputError."""
    _write(path, gate_page(result))


def _write(path: Path, page: Html) -> None:
    try:
        write_atomic(path, page.encode())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}. Name a file that can.") from None
