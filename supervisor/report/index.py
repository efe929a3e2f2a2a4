"""The page of all runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from supervisor.html.markup import Content, Html, element, link
from supervisor.html.page import badge, page, table
from supervisor.redact import hide_secrets
from supervisor.report.summary import RunSummary, Summaries
from supervisor.report.wording import day, outcome_kind, short, whole
from supervisor.view.text import clean, count, duration

MOST_ROWS = 2000
_EXPLANATION = 160


def beside(run: RunSummary) -> str:
    """The address of a run's page for an index that lies in the folder of the run directories."""
    return f"{quote(run.directory.name, safe='')}/report.html"


def index_page(runs: Sequence[Path | RunSummary], *, address: Callable[[RunSummary], str | None] = beside) -> bytes:
    """All runs, the running ones first, then the newest; UTF-8. ``address``: of a run's page, None for none."""
    directories = [run for run in runs if isinstance(run, Path)]
    found = [*Summaries().of(directories), *(run for run in runs if isinstance(run, RunSummary))]
    found.sort(key=lambda run: (run.running, run.state.started if run.state else 0.0, run.name), reverse=True)
    standing = Counter(run.standing for run in found)
    said = ", ".join(f"{number} {what}" for what, number in standing.most_common())
    shown = [_row(run, address(run)) for run in found[:MOST_ROWS]]
    left_out = len(found) - len(shown)
    heads = ("run", "kind", "outcome", "step", "attempts", "loss", "evaluation", "time used", "started", "why")
    body: list[Content] = [element("p", f"{len(found)} runs: {said}." if found else "There are no runs yet.")]
    if shown:
        body.append(table(heads, shown, left=(0, 1, 2, 9)))
    if left_out:
        body.append(element("p", f"{left_out} older runs are not shown.", class_="soft"))
    body.append(element("p", f"As of {day(time.time())}.", class_="soft"))
    return page("Runs", *body).encode()


def _row(run: RunSummary, target: str | None) -> tuple[Content, ...]:
    name: Content = link(target, run.name) if target is not None else run.name
    state = run.state
    if state is None:
        return (name, "", badge("damaged", "bad"), *[""] * 6, run.problem)
    planned = count(state.planned_steps) if state.planned_steps else "?"
    failed = f" ({len(state.failures)} failed)" if state.failures else ""
    return (
        name,
        state.kind,
        whole(badge(run.standing, outcome_kind(run.standing))),
        whole(f"{count(run.step)} / {planned}"),
        whole(f"{state.attempt}{failed}"),
        _loss(state.loss),
        _loss(state.eval_loss),
        whole(duration(state.seconds_used)) if state.seconds_used else "",
        whole(day(state.started)),
        _why(state.explanation),
    )


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _why(explanation: str) -> Html:
    text = clean(str(hide_secrets(explanation)))
    return element("span", short(text, _EXPLANATION), title=text if len(text) > _EXPLANATION else None)
