"""Tables for a terminal or a log. What they show is text: nothing in it is taken for markup or reaches the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import StringIO
from typing import IO

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from evalsuite.compare import Comparison
from evalsuite.gate_result import CheckResult, GateResult, GateVerdict
from evalsuite.report.wording import judged_name, model_name, percent, score, signed
from evalsuite.scores import Scores
from evalsuite.statistics.intervals import Interval
from supervisor.html.markup import visible

_PLAIN_WIDTH = 120
"""Columns where there is no terminal to ask."""
_STYLES = {
    GateVerdict.PASS: "bold green",
    GateVerdict.FAIL: "bold red",
    GateVerdict.INCONCLUSIVE: "bold yellow",
    GateVerdict.UNJUDGED: "bold red",
}


def show(*parts: RenderableType, stream: IO[str] | None = None) -> None:
    """Print; in colour only to a terminal, and not with NO_COLOR. Lines of text stay whole."""
    out = sys.stdout if stream is None else stream
    terminal = out.isatty()
    console = Console(file=out, width=None if terminal else _PLAIN_WIDTH, highlight=False, markup=False, emoji=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))


def as_text(*parts: RenderableType) -> str:
    """As it would be printed into a file."""
    stream = StringIO()
    show(*parts, stream=stream)
    return stream.getvalue()


def scores_table(scores: Scores, intervals: Sequence[tuple[str, Interval]]) -> Table:
    """Of ``eval run``: each metric with its interval."""
    bench = scores.bench
    title = f"{bench.name}: {len(scores.tasks)} of {bench.tasks} tasks, {model_name(scores.model)}"
    table = _table(title, ("metric", "score", "interval", "method"))
    for name, found in intervals:
        limits = f"{score(found.low)} to {score(found.high)} ({percent(found.confidence)})"
        _row(table, name, score(found.estimate), limits, found.method)
    if not scores.whole:
        table.caption = _text(f"NOT WHOLE: {len(scores.missing)} tasks have no score", "bold red")
    return table


def comparison_table(found: Comparison) -> Table:
    """Of ``eval compare``: each metric of both with the paired difference."""
    title = f"{found.bench}: {found.tasks} tasks, {found.samples_per_task} samples each"
    heads = ("metric", "first", "second", "difference", f"{percent(found.confidence)} interval", "p", "p of all",
             "tasks better/\nworse/same", "easily\nmissed")  # fmt: skip
    table = _table(title, heads)
    for each in found.metrics:
        style = "" if each.low <= 0 <= each.high else "green" if each.low > 0 else "red"
        _row(
            table,
            each.metric,
            score(each.first),
            score(each.second),
            _text(signed(each.difference), style),
            f"{signed(each.low)} to {signed(each.high)}",
            f"{each.p_value:.2g}",
            f"{each.p_corrected:.2g}",
            f"{each.better}/{each.worse}/{each.same}",
            score(each.detectable),
        )
    units = max((each.units for each in found.metrics), default=found.tasks)
    clustered = "" if units == found.tasks else f"\n{units} clusters of tasks"
    table.caption = _text(f"first: {model_name(found.models[0])}; second: {model_name(found.models[1])}{clustered}")
    return table


def gate_table(result: GateResult) -> Table:
    """Of ``eval gate``: each check with its margin, or that it asks for better."""
    heads = ("check", "against", "margin", "candidate", "reference", "difference", "above", "below", "drop it\nfinds",
             "verdict")  # fmt: skip
    table = _table(f"gate {result.name}", heads)
    for check in result.checks:
        _row(
            table,
            f"{check.bench} {check.metric}",
            check.against,
            "better" if check.margin is None else f"{check.margin:g}",
            score(check.candidate),
            score(check.reference),
            signed(check.difference),
            signed(check.lower),
            signed(check.upper),
            score(check.detectable_drop),
            _text(judged_name(check.verdict), _STYLES[check.verdict]),
        )
    return table


def gate_lines(result: GateResult) -> Text:
    """What the checks stand on, then the verdict and its reasons, where one looks."""
    lines = Text()
    for check in result.checks:
        lines.append(visible(f"{check.bench} {check.metric} against {check.against}: {_ground(check, result.power)}\n"))
    lines.append(f"{visible(result.name)}: ").append(judged_name(result.verdict), _STYLES[result.verdict])
    for reason in result.reasons:
        lines.append(visible(f"\n  {reason}"))
    return lines


def _ground(check: CheckResult, power: float) -> str:
    """What a check stands on."""
    asked = f"{check.tasks} tasks" if check.asked == check.tasks else f"{check.asked} of {check.tasks} tasks"
    units = "" if check.units == check.asked else f" in {check.units} clusters"
    passes = "" if check.margin is None else f"; an unchanged model passes {check.unchanged_passes:.0%} of the time"
    drop = f"smallest drop that it finds with {power:.0%} power: {score(check.detectable_drop)}"
    return f"{asked}{units}, {check.samples_per_task} samples each, {check.method}; {drop}{passes}"


def _table(title: str, heads: Sequence[str]) -> Table:
    table = Table(
        title=_text(title, "bold"), title_justify="left", caption_justify="left", header_style="bold", box=SIMPLE_HEAD,
        pad_edge=False, collapse_padding=True,
    )  # fmt: skip
    for place, head in enumerate(heads):
        first = place == 0
        table.add_column(_text(head), justify="left" if first else "right", overflow="fold", no_wrap=not first,
                         min_width=12 if first else None)  # fmt: skip
    return table


def _row(table: Table, *cells: str | Text) -> None:
    table.add_row(*(cell if isinstance(cell, Text) else _text(cell) for cell in cells))


def _text(text: str, style: str = "") -> Text:
    return Text(visible(text), style=style)
