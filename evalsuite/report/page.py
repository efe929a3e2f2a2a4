"""Pages about evaluations, comparisons and gates. Pure: whoever calls has read the scores and the samples."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evalsuite.compare import Comparison
from evalsuite.gate_result import GateResult, GateVerdict
from evalsuite.report.answers import ACCEPTED, Answer, Asked, telling
from evalsuite.report.wording import judged_name, model_name, percent, rule, score, signed
from evalsuite.scores import Scores, TaskScores, scores_digest
from evalsuite.statistics.intervals import Interval
from supervisor.html import charts
from supervisor.html.markup import Content, Html, element, joined, link
from supervisor.html.page import badge, facts, folded, page, preformatted, section, table
from supervisor.html.scale import Axis
from trainer.data.messages import Message

SHOWN_TASKS = 40
"""Of which a page shows samples, half of them better and half of them worse where there are two sides."""
_ANSWERS = 3
_MOST_TEXT = 6000
_BUCKETS = 10
_KINDS = {
    GateVerdict.PASS: "good",
    GateVerdict.FAIL: "bad",
    GateVerdict.INCONCLUSIVE: "unsure",
    GateVerdict.UNJUDGED: "bad",
}
_OUTCOMES = {ACCEPTED: "good", "rejected": "bad", "timeout": "bad"}


def scores_page(
    scores: Scores, intervals: Sequence[tuple[str, Interval]], asked: Mapping[str, Asked], reasons: Mapping[str, str]
) -> Html:
    """Of one evaluation. ``asked``: what to show of some tasks; ``reasons``: why each missing task is missing."""
    rows = [
        (name, score(each.estimate), f"{score(each.low)} to {score(each.high)}", percent(each.confidence), each.method)
        for name, each in intervals
    ]
    shown = [charts.Interval(name, each.low, each.estimate, each.high) for name, each in intervals]
    whole: Content = "whole" if scores.whole else badge(f"NOT WHOLE: {len(scores.missing)} tasks have no score", "bad")
    places = {name: place for place, name in enumerate(asked)}
    missing = [(name, reasons.get(name, "unknown")) for name in scores.missing]
    return page(
        f"Evaluation {scores.bench.name}",
        facts([*_identity(scores), ("whole", whole)]),
        section("Scores", charts.intervals("Scores with intervals", shown, Axis(low=0, high=1)),
                table(("metric", "score", "interval", "confidence", "method"), rows)),
        section("Tasks", _solved(scores.tasks), folded("All tasks", _tasks(scores.tasks, places))),
        section("Missing", table(("task", "why"), missing, left=(0, 1))) if missing else "",
        section("Samples", *(_samples(each, at) for at, each in enumerate(asked.values()))) if asked else "",
    )  # fmt: skip


def comparison_page(
    first: Scores, second: Scores, found: Comparison, asked: tuple[Mapping[str, Asked], Mapping[str, Asked]]
) -> Html:
    """Of two evaluations of one bench; ``asked`` of both: what to show side by side."""
    scores = [
        charts.Interval(f"{each.metric}, {side}", low, at, high, kind)
        for each in found.metrics
        for side, low, at, high, kind in (
            ("first", each.first_low, each.first, each.first_high, "c5"),
            ("second", each.second_low, each.second, each.second_high, "c0"),
        )
    ]
    differences = [
        charts.Interval(each.metric, each.low, each.difference, each.high, _kind(each.low, each.high))
        for each in found.metrics
    ]
    heads = ("metric", "first", "second", "difference", f"{percent(found.confidence)} interval", "p",
             "p for all metrics", "better", "worse", "same", "easily missed below", "method")  # fmt: skip
    rows = [
        (
            each.metric, score(each.first), score(each.second), signed(each.difference),
            f"{signed(each.low)} to {signed(each.high)}", f"{each.p_value:.2g}", f"{each.p_corrected:.2g}",
            each.better, each.worse, each.same, score(each.detectable), each.method,
        )
        for each in found.metrics
    ]  # fmt: skip
    changes = task_changes(first, second)
    both = {name: (one, asked[1][name]) for name, one in asked[0].items() if name in asked[1]}
    beside = [
        _beside(each, *both[each.task], place)
        for place, each in enumerate(change for change in changes if change.task in both)
    ]
    places = {each.task: place for place, each in enumerate(change for change in changes if change.task in both)}
    return page(
        f"Two evaluations of {found.bench}",
        facts([
            ("first", model_name(found.models[0])), ("second", model_name(found.models[1])),
            ("bench", f"{found.tasks} tasks, {found.samples_per_task} samples each, digest {found.bench_digest[:16]}"),
            ("scores", f"{found.digests[0][:16]} and {found.digests[1][:16]}"),
        ]),
        section("Scores", charts.intervals("Scores with intervals", scores, Axis(low=0, high=1))),
        section("Differences, second less first",
                charts.intervals("Paired differences with intervals", differences, Axis(), reference=0.0),
                table(heads, rows)),
        section("Tasks", _changes_chart(changes), folded("Tasks that changed", _changes_table(changes, places))),
        section("Samples side by side", *beside) if beside else "",
    )  # fmt: skip


def gate_page(result: GateResult) -> Html:
    """What was asked of a candidate, what was found, and the digests of all that was read."""
    shown = [
        charts.Interval(f"{check.bench} {check.metric} against {check.against}", check.lower, check.difference,
                        check.upper, _KINDS[check.verdict])
        for check in result.checks
    ]  # fmt: skip
    heads = ("bench", "metric", "against", "asks for", "verdict", "candidate", "reference", "difference", "above",
             "below", "tasks", "drop it finds", "unchanged passes", "method")  # fmt: skip
    rows = [
        (
            check.bench, check.metric, check.against, rule(check),
            badge(judged_name(check.verdict), _KINDS[check.verdict]), score(check.candidate), score(check.reference),
            signed(check.difference), signed(check.lower), signed(check.upper),
            check.tasks if check.asked == check.tasks else f"{check.asked} of {check.tasks}",
            score(check.detectable_drop), percent(check.unchanged_passes), check.method,
        )
        for check in result.checks
    ]  # fmt: skip
    inputs = [
        (each.role, each.bench, each.path, element("code", each.sha256),
         "" if each.model is None else model_name(each.model))
        for each in result.inputs
    ]  # fmt: skip
    checks = section(
        "Checks",
        charts.intervals("Difference to the reference, candidate less reference", shown, Axis(), reference=0.0),
        table(heads, rows, left=(0, 1, 2, 3)),
    )
    return page(
        f"Gate {result.name}",
        element("p", badge(judged_name(result.verdict), _KINDS[result.verdict])),
        element("ul", *(element("li", reason) for reason in result.reasons)),
        facts([("confidence", percent(result.confidence)), ("power", percent(result.power)),
               ("bootstrap", f"{result.draws} draws, seed {result.seed}")]),
        checks if result.checks else "",
        section("What was read", table(("role", "bench", "path", "SHA-256", "model"), inputs, left=(0, 1, 2, 3, 4))),
    )  # fmt: skip


@dataclass(frozen=True)
class TaskChange:
    """A task's share of accepted samples on either side."""

    task: str
    cluster: str
    first: float
    second: float

    @property
    def difference(self) -> float:
        return self.second - self.first


def task_changes(first: Scores, second: Scores) -> list[TaskChange]:
    """Tasks that both have, the worst loss first."""
    ours = {task.task: task for task in second.tasks}
    found = [
        TaskChange(task.task, task.cluster, _share(task), _share(ours[task.task]))
        for task in first.tasks
        if task.task in ours
    ]
    return sorted(found, key=lambda each: (each.difference, each.task))


def worth_showing(changes: Sequence[TaskChange], most: int = SHOWN_TASKS) -> list[str]:
    """The tasks with the largest losses and gains."""
    lost = [each.task for each in changes if each.difference < 0]
    gained = [each.task for each in reversed(changes) if each.difference > 0]
    losses = min(len(lost), max(most // 2, most - len(gained)))
    return lost[:losses] + gained[: most - losses]


# --- pieces ---------------------------------------------------------------------------------------


def _identity(scores: Scores) -> list[tuple[str, Content]]:
    model, sampling = scores.model, scores.sampling
    found: list[tuple[str, Content]] = [("model", model_name(model))]
    if model.adapter is not None:
        effect = model.adapter_effect_nats
        moved = f"moves log-probabilities by {effect:.3g} nats" if effect is not None else ""
        found.append(("adapter", moved or badge("effect not measured", "bad")))
    found += [
        ("bench", f"{scores.bench.tasks} tasks, digest {scores.bench.digest[:16]}"),
        ("sampling", f"{sampling.samples_per_task} samples each, temperature {sampling.temperature:g}, top-p "
                     f"{sampling.top_p:g}, at most {sampling.max_new_tokens} tokens, seed {sampling.seed}"),
        ("chat template", "unknown" if model.template_hash is None else model.template_hash[:16]),
        ("scores", element("code", scores_digest(scores))),
    ]  # fmt: skip
    return found


def _solved(tasks: Sequence[TaskScores]) -> Html:
    counts = [0] * (_BUCKETS + 1)
    for task in tasks:
        counts[round(_BUCKETS * _share(task))] += 1
    shown = [
        charts.Bar(f"{place / _BUCKETS:.0%}", count, title=f"about {place / _BUCKETS:.0%} accepted: {count} tasks")
        for place, count in enumerate(counts)
    ]
    return charts.bars("Tasks by the share of their samples that is accepted", shown, Axis("tasks"), width=440)


def _tasks(tasks: Iterable[TaskScores], places: Mapping[str, int]) -> Html:
    rows = [
        (_linked(task.task, places), "" if task.cluster == task.task else task.cluster,
         f"{task.accepted} of {task.samples}")
        for task in tasks
    ]  # fmt: skip
    return table(("task", "cluster", "accepted"), rows, left=(0, 1))


def _changes_chart(changes: Sequence[TaskChange]) -> Html:
    shown = [
        charts.Bar(each.task, each.difference, "good" if each.difference > 0 else "bad",
                   f"{each.task}: {score(each.first)} to {score(each.second)}")
        for each in changes
        if each.difference
    ]  # fmt: skip
    same = len(changes) - len(shown)
    caption = f"Change of each task's share of accepted samples ({same} tasks the same)"
    return charts.bars(caption, shown, Axis(), height=200) if shown else element("p", f"No task changed, of {same}.")


def _changes_table(changes: Sequence[TaskChange], places: Mapping[str, int]) -> Html:
    rows = [
        (_linked(each.task, places), "" if each.cluster == each.task else each.cluster, score(each.first),
         score(each.second), signed(each.difference))
        for each in changes
        if each.difference
    ]  # fmt: skip
    return table(("task", "cluster", "first", "second", "difference"), rows, left=(0, 1))


def _linked(task: str, places: Mapping[str, int]) -> Content:
    return link(f"#{_place(places[task])}", task) if task in places else task


def _place(number: int) -> str:
    return f"task-{number}"


def _samples(asked: Asked, place: int) -> Html:
    shown = [_answer(each) for each in telling(asked, _ANSWERS)]
    return joined(element("h3", asked.task, id=_place(place)), _prompt(asked), *shown)


def _beside(change: TaskChange, first: Asked, second: Asked, place: int) -> Html:
    better = change.difference > 0
    title = f"{change.task}: {score(change.first)} to {score(change.second)}"
    columns = [
        element("div", element("h4", name), *(_answer(each) for each in telling(asked, _ANSWERS, accepted)))
        for name, asked, accepted in (("first", first, not better), ("second", second, better))
    ]
    return joined(element("h3", title, id=_place(place)), _prompt(first), element("div", *columns, class_="beside"))


def _prompt(asked: Asked) -> Html:
    return folded("prompt", *(_turn(message) for message in asked.messages))


def _turn(message: Message) -> Html:
    calls = [f"{call.name}({json.dumps(call.arguments, ensure_ascii=False)})" for call in message.tool_calls]
    return joined(element("b", message.role), preformatted("\n".join([message.content, *calls]), _MOST_TEXT))


def _answer(answer: Answer) -> Html:
    said = f"sample {answer.index + 1} {answer.reason}{', cut off at the token limit' if answer.cut else ''}"
    more = folded("what the judge says", preformatted(answer.diagnostic, _MOST_TEXT)) if answer.diagnostic else ""
    return element(
        "div",
        element("p", badge(answer.outcome, _OUTCOMES.get(answer.outcome, "unsure")), " ", said),
        preformatted(answer.text, _MOST_TEXT),
        more,
    )


def _kind(low: float, high: float) -> str:
    return "good" if low > 0 else "bad" if high < 0 else "unsure"


def _share(task: TaskScores) -> float:
    return task.accepted / task.samples
