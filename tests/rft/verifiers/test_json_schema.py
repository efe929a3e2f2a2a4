"""Tool calls and JSON answers, judged by the tools' own schemas. # proves RFT-2"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from judged import opened, task_of

from rft.gold import State, check_task
from rft.tasks.task import Task
from rft.verifiers.json_schema import JsonSchema
from rft.verifiers.verdict import Isolation, Outcome
from rft.verifiers.verifier import Verifier

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "minLength": 1},
                "days": {"type": "integer", "minimum": 1, "maximum": 10},
                "unit": {"enum": ["c", "f"]},
            },
            "required": ["place"],
        },
    },
}
CLOCK = {"name": "clock", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
RIGHT = {"name": "weather", "arguments": {"place": "Bonn", "days": 2}}


def hermes(*calls: Any) -> str:
    return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


def asking(calls: Any = (RIGHT,)) -> Task:
    return task_of("json_schema", {"calls": list(calls) if isinstance(calls, tuple) else calls}, tools=(WEATHER, CLOCK))


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with opened("json_schema", {"timeout_seconds": 300.0}) as found:
        yield found


ACCEPTED = [
    hermes(RIGHT),
    "I will look it up.\n" + hermes({"name": "weather", "arguments": {"days": 2.0, "place": "Bonn"}}),
    json.dumps(RIGHT),
    json.dumps([RIGHT]),
    f"```json\n{json.dumps(RIGHT)}\n```",
    f"Sure:\n```json\n{json.dumps(RIGHT, indent=2)}\n```\nDone.",
]
REJECTED = [
    ("", "empty answer"),
    ("It is sunny in Bonn.", "no tool call"),
    ("{}", "no tool call"),
    ("[]", "no tool call"),
    ("<tool_call>\n</tool_call>", "malformed JSON"),
    (f"<tool_call>\n{json.dumps(RIGHT)}\n", "unbalanced tool call"),
    (f"{json.dumps(RIGHT)}</tool_call>", "unbalanced tool call"),
    (hermes({"name": "weather"}), "malformed tool call"),
    (hermes({"name": "weather", "arguments": json.dumps(RIGHT["arguments"])}), "malformed tool call"),
    (hermes({**RIGHT, "also": 1}), "malformed tool call"),
    (hermes({"name": "wether", "arguments": {}}), "unknown tool"),
    (hermes({"name": "clock", "arguments": {}}), "wrong tool"),
    (hermes(RIGHT, RIGHT), "wrong number of calls"),
    (hermes(RIGHT, {"name": "clock", "arguments": {}}), "wrong tool"),
    (hermes({"name": "weather", "arguments": {"days": 2}}), "arguments do not fit the schema"),
    (hermes({"name": "weather", "arguments": {"place": "Bonn", "days": "2"}}), "arguments do not fit the schema"),
    (hermes({"name": "weather", "arguments": {"place": "Bonn", "days": True}}), "arguments do not fit the schema"),
    (hermes({"name": "weather", "arguments": {"place": "Bonn", "days": 3}}), "wrong arguments"),
    (hermes({"name": "weather", "arguments": {"place": "Bonn", "days": 2, "town": 1}}), "unknown argument"),
    ('<tool_call>{"name": "weather", "arguments": {"place": "Ulm", "place": "Bonn", "days": 2}}</tool_call>',
     "malformed JSON"),
    ('<tool_call>{"name": "weather", "arguments": {"place": "Bonn", "days": NaN}}</tool_call>', "malformed JSON"),
    ('<tool_call>{"name": "weather", "arguments": {"place": "Bonn", "days": 1e999}}</tool_call>', "malformed JSON"),
    ("[" * 100_000, "malformed JSON"),
    (hermes(*[RIGHT] * 100), "too many tool calls"),
    ("x" * 300_000, "answer too long"),
]  # fmt: skip


@pytest.mark.parametrize("answer", ACCEPTED)
def test_the_right_call_is_accepted_in_every_writing(verifier: Verifier, answer: str) -> None:
    verdict = verifier.judge(asking(), answer)
    assert verdict.outcome is Outcome.ACCEPTED, verdict
    assert verdict.isolation is Isolation.NOT_RUN and verdict.reward == 1.0


@pytest.mark.parametrize(("answer", "reason"), REJECTED)
def test_any_other_call_is_rejected_with_its_reason(verifier: Verifier, answer: str, reason: str) -> None:
    verdict = verifier.judge(asking(), answer)
    assert (verdict.outcome, verdict.reason) == (Outcome.REJECTED, reason), verdict.diagnostic


def test_the_diagnostic_names_the_argument(verifier: Verifier) -> None:
    wrong = hermes({"name": "weather", "arguments": {"place": "Bonn", "days": 11}})
    assert "weather: days: 11 is greater than the maximum of 10" in verifier.judge(asking(), wrong).diagnostic


def test_a_question_that_no_tool_answers_wants_no_call(verifier: Verifier) -> None:
    assert verifier.judge(asking(()), "I cannot know that.").outcome is Outcome.ACCEPTED
    assert verifier.judge(asking(()), hermes(RIGHT)).reason == "a tool call where none is right"
    assert verifier.judge(asking(()), " ").reason == "empty answer"


def test_several_calls_may_come_in_any_order_unless_it_counts() -> None:
    clock = {"name": "clock", "arguments": {}}
    with opened("json_schema", {"order": "same"}) as strict, opened("json_schema") as loose:
        task = asking((RIGHT, clock))
        assert loose.judge(task, hermes(clock, RIGHT)).outcome is Outcome.ACCEPTED
        assert strict.judge(task, hermes(clock, RIGHT)).reason == "tools in another order"
        assert strict.judge(task, hermes(RIGHT, clock)).outcome is Outcome.ACCEPTED


def test_the_schema_alone_may_decide_about_arguments() -> None:
    with opened("json_schema", {"arguments": "schema"}) as verifier:
        other = hermes({"name": "weather", "arguments": {"place": "Ulm"}})
        assert verifier.judge(asking(), other).outcome is Outcome.ACCEPTED
        assert verifier.judge(asking("any"), other).outcome is Outcome.ACCEPTED
        assert verifier.judge(asking("any"), "Sunny.").reason == "no tool call"


def test_a_json_answer_fits_its_schema(verifier: Verifier) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    task = task_of("json_schema", {"schema": schema, "answer": {"n": 3}})
    assert verifier.judge(task, '```json\n{"n": 3}\n```').outcome is Outcome.ACCEPTED
    assert verifier.judge(task, '{"n": 4}').reason == "wrong value"
    assert verifier.judge(task, '{"n": "3"}').reason == "does not fit the schema"
    assert verifier.judge(task, "three").reason == "malformed JSON"


def test_a_pattern_that_takes_for_ever_times_out_and_the_next_answer_is_judged() -> None:
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}}
    task = task_of("json_schema", {"calls": "any"}, tools=(tool,))
    with opened("json_schema", {"timeout_seconds": 0.5}) as verifier:
        slow = hermes({"name": "f", "arguments": {"a": "a" * 40 + "!"}})
        assert verifier.judge(task, slow).outcome is Outcome.TIMEOUT
        quick = hermes({"name": "f", "arguments": {"a": "aaa"}})
        assert Outcome.ACCEPTED in (verifier.judge(task, quick).outcome for _ in range(30))


PROBLEMS: list[tuple[dict[str, Any], tuple[dict[str, Any], ...], str]] = [
    ({}, (WEATHER,), "neither calls"),
    ({"calls": [RIGHT]}, (), "the task has no tools"),
    ({"calls": [{"name": "nope", "arguments": {}}]}, (WEATHER,), "a tool that the task does not have"),
    ({"calls": [{"name": "weather"}]}, (WEATHER,), "no arguments to compare"),
    ({"calls": "any"}, ({"name": "f", "parameters": {"type": "objekt"}},), "not a valid JSON Schema"),
    ({"calls": "any"}, ({"name": "f", "parameters": {"properties": {"a": {"$ref": "#/$defs/b"}}}},), "not in it"),
    ({"calls": "any"}, ({"name": "f", "parameters": {"$ref": "http://127.0.0.1:9/x.json"}},), "nothing is fetched"),
    ({"calls": "any"}, (CLOCK, CLOCK), "stands twice"),
    ({"calls": "any"}, ({"description": "f"},), "has no name"),
    ({"schema": {"minimum": "3"}}, (), "not a valid JSON Schema"),
    ({"schema": True}, (), "must be a JSON Schema"),
]


@pytest.mark.parametrize(("data", "tools", "words"), PROBLEMS)
def test_a_task_that_cannot_be_judged_says_why(
    verifier: Verifier, data: dict[str, Any], tools: tuple[dict[str, Any], ...], words: str
) -> None:
    assert words in (verifier.problem(task_of("json_schema", data, tools=tools)) or "")


def test_a_task_that_can_be_judged_has_no_problem(verifier: Verifier) -> None:
    assert verifier.problem(asking()) is None and verifier.problem(asking("any")) is None
    recursive = {"$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}
    assert verifier.problem(task_of("json_schema", {"schema": recursive})) is None


def test_a_schema_that_lets_an_empty_answer_pass_is_found_before_sampling(verifier: Verifier) -> None:
    assert isinstance(verifier, JsonSchema)
    found = check_task(task_of("json_schema", {"schema": {"type": "object"}}), verifier)
    assert found.state is State.INVALID and "accepts the answer '{}', which must not pass" in found.problem
    assert check_task(asking(), verifier).state is State.UNCHECKED
