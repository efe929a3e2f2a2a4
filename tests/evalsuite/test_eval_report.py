"""Pages and tables of evaluations: what they say, and that all of it stays text."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from gates import CANDIDATE, chances, drawn, gate_of, inputs_of, scores_of

sys.path.insert(0, str(Path(__file__).parents[1] / "rft"))
from test_collect import run
from toy_job import ToySampler, parts, toy_tasks

from evalsuite.compare import compare
from evalsuite.gate import judge
from evalsuite.gate_result import GateInput, GateResult
from evalsuite.report.answers import Answer, Asked, answers, telling
from evalsuite.report.page import comparison_page, gate_page, scores_page, task_changes, worth_showing
from evalsuite.report.tables import as_text, comparison_table, gate_lines, gate_table, scores_table
from evalsuite.scores import Scores, read_scores
from evalsuite.statistics.intervals import Interval
from supervisor.html.markup import Html
from trainer.data.messages import Message, ToolCall

HOSTILE = "</pre></td><script>alert(1)</script><img src=x onerror=y>[red]\x1b[31m\u202e&\ud800"
STORED = HOSTILE.replace("\ud800", "")
"""What a file of scores can hold."""
CHANCES = chances(40, 3)


def evaluation(seed: int, drop: float = 0.0, hostile: bool = False, **changed: object) -> Scores:
    scores = scores_of(drawn(CHANCES, seed, drop=drop), **changed)
    if not hostile:
        return scores
    named = [(f"{STORED} {task.task}", task) for task in scores.tasks]
    tasks = tuple(msgspec.structs.replace(task, task=name, cluster=name) for name, task in named)
    model = msgspec.structs.replace(scores.model, base=STORED)
    return msgspec.structs.replace(
        scores, tasks=tasks, model=model, bench=msgspec.structs.replace(scores.bench, name=STORED)
    )


def asked(scores: Scores, text: str) -> Mapping[str, Asked]:
    names = worth_showing(task_changes(scores, scores), 4) or [task.task for task in scores.tasks[:4]]
    turns = (Message("user", text), Message(text, "", (ToolCall(text, {text: text}),)))
    return {name: Asked(name, turns, (Answer(0, text, text, text, text, True),)) for name in names}


def pages(hostile: bool) -> list[Html]:
    text, name = (HOSTILE, STORED) if hostile else ("plain", "plain")
    first, second = evaluation(1, hostile=hostile), evaluation(2, hostile=hostile, model=CANDIDATE)
    intervals = [(text, Interval(0.5, 0.4, 0.6, 0.95, text))]
    shown = (asked(first, text), asked(second, text))
    return [
        scores_page(msgspec.structs.replace(first, missing=(name,), whole=False), intervals, shown[0], {name: text}),
        comparison_page(first, second, compare(first, second, draws=200), shown),
        gate_page(gate(text)),
    ]


def gate(text: str) -> GateResult:
    wanted = gate_of()
    found = judge(wanted, (), [inputs_of(wanted, evaluation(2, model=CANDIDATE), base=evaluation(1))])
    checks = tuple(msgspec.structs.replace(check, bench=text, metric=text, method=text) for check in found.checks)
    read = (GateInput(text, text, text, text, msgspec.structs.replace(CANDIDATE, base=text)),)
    return msgspec.structs.replace(found, name=text, reasons=(text,), checks=checks, inputs=read)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(sorted(name for name, _ in attrs))))


def tags(page: Html) -> list[tuple[str, tuple[str, ...]]]:
    parser = Tags()
    parser.feed(page.encode().decode())
    return parser.found


# proves EVL-2: no completion, prompt, name or reason becomes markup, on any page
def test_everything_on_a_page_is_text() -> None:
    for hostile, plain in zip(pages(True), pages(False), strict=True):
        assert tags(hostile) == tags(plain)
        assert "\x1b" not in hostile and "\u202e" not in hostile and "onerror=y&gt;" in hostile


def test_nothing_in_a_table_reaches_the_terminal() -> None:
    first, second = evaluation(1, hostile=True), evaluation(2, hostile=True, model=CANDIDATE)
    shown = as_text(
        scores_table(first, [(HOSTILE, Interval(0.5, 0.4, 0.6, 0.95, HOSTILE))]),
        comparison_table(compare(first, second, draws=200)),
        gate_table(gate(HOSTILE)),
        gate_lines(gate(HOSTILE)),
    )
    assert "\x1b" not in shown and "\u202e" not in shown
    assert "[red]" in shown.replace("\n", "")


# proves EVL-2: the numbers on the page and in the table are those of the comparison
def test_a_comparison_shows_its_numbers() -> None:
    first, second = evaluation(1), evaluation(2, drop=0.2, model=CANDIDATE)
    found = compare(first, second, ["accepted", "pass@4"], draws=500)
    page = comparison_page(first, second, found, (asked(first, "one"), asked(second, "two")))
    table = as_text(comparison_table(found))
    for each in found.metrics:
        for text in (f"{each.first:.4f}", f"{each.difference:+.4f}", f"{each.low:+.4f} to {each.high:+.4f}"):
            assert text in page and text in table
    changed = [each for each in task_changes(first, second) if each.difference]
    drawing = page[page.index("Change of each task") :]
    assert len(re.findall(r'<rect [^>]*class="(?:good|bad)"', drawing)) == len(changed)
    assert f"({len(first.tasks) - len(changed)} tasks the same)" in page


def test_a_gate_shows_its_verdict_and_what_it_read() -> None:
    result = gate("plain")
    shown = as_text(gate_table(result), gate_lines(result))
    assert result.verdict.value.upper() in shown and "plain" in shown
    assert result.verdict.value.upper() in gate_page(result)


def test_a_part_is_never_shown_as_a_whole() -> None:
    scores = evaluation(1, missing=("bench/3",))
    assert not scores.whole
    page = scores_page(scores, [], {}, {"bench/3": "a sample is not judged yet"})
    assert "NOT WHOLE: 1 tasks have no score" in page and "a sample is not judged yet" in page
    assert "NOT WHOLE: 1 tasks have no score" in as_text(scores_table(scores, []))


@pytest.mark.parametrize(
    ("lost", "gained", "expected"), [(30, 30, (5, 5)), (2, 30, (2, 8)), (30, 1, (9, 1)), (1, 2, (1, 2))]
)
def test_losses_and_gains_share_the_room(lost: int, gained: int, expected: tuple[int, int]) -> None:
    first = scores_of([4] * lost + [0] * gained + [2])
    second = scores_of([0] * lost + [4] * gained + [2])
    changes = {each.task: each.difference for each in task_changes(first, second)}
    shown = [changes[name] for name in worth_showing(task_changes(first, second), 10)]
    assert (sum(each < 0 for each in shown), sum(each > 0 for each in shown)) == expected
    assert len(shown) == sum(expected)


# proves EVL-2: samples come out of the evaluation's own store, with what the judge said
def test_answers_of_a_stored_evaluation(tmp_path: Path) -> None:
    run(tmp_path / "e", parts(toy_tasks(4), ToySampler()))
    scores = read_scores(tmp_path / "e")
    found = answers(tmp_path / "e", [task.task for task in scores.tasks] + ["sums/none"])
    assert list(found) == [task.task for task in scores.tasks]
    for task in scores.tasks:
        of_task = found[task.task].answers
        assert [answer.outcome == "accepted" for answer in of_task] == [value == 1 for value in task.values["accepted"]]
        assert found[task.task].messages and all(answer.text for answer in of_task)
    assert answers(tmp_path, ["sums/0"]) == {}


def test_telling_samples_come_first() -> None:
    made = tuple(Answer(n, "", outcome, "", "", False) for n, outcome in enumerate(("rejected", "timeout", "accepted")))
    of = Asked("t", (), made)
    assert [answer.index for answer in telling(of, 2, True)] == [2, 0]
    assert [answer.index for answer in telling(of, 2, False)] == [0, 1]
    assert [answer.index for answer in telling(of, 3)] == [2, 0, 1]
