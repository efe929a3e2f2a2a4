"""Tool calls judged by several right values of each argument, and the leaderboard's own checker. # proves EVL-4"""

from __future__ import annotations

import collections
import copy
import json
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from judged import opened, task_of

from rft.gold import State, check_task
from rft.tasks.bfcl import CATEGORIES, bfcl_folder, bfcl_tasks
from rft.tasks.files import objects
from rft.tasks.task import Task
from rft.verifiers.call_values import compared
from rft.verifiers.tool_calls import Call, calls_in, tool_schemas
from rft.verifiers.verdict import Outcome
from rft.verifiers.verifier import Verifier

AREA = {
    "type": "function",
    "function": {
        "name": "area",
        "parameters": {
            "type": "object",
            "properties": {"base": {"type": "integer"}, "unit": {"type": "string"}, "height": {"type": "number"}},
            "required": ["base"],
        },
    },
}
CLOCK = {"name": "clock", "parameters": {"type": "object", "properties": {}}}
RIGHT = {"name": "area", "arguments": {"base": [10], "unit": ["square metres", ""], "height": [5, 5.5]}}


def said(*calls: dict[str, Any]) -> str:
    return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


def area(**arguments: Any) -> dict[str, Any]:
    return {"name": "area", "arguments": arguments}


def asking(*calls: Any) -> Task:
    return task_of("function_calls", {"calls": list(calls)}, tools=(AREA, CLOCK))


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with opened("function_calls", {"timeout_seconds": 300.0}) as found:
        yield found


@pytest.mark.parametrize(
    ("wanted", "answer", "accepted", "metrics"),
    [
        ((RIGHT,), said(area(base=10, height=5.5, unit="Square-Metres.")), True, (1, 1, 1)),
        ((RIGHT,), said(area(base=10, height=5)), True, (1, 1, 1)),
        ((RIGHT,), said(area(base=10, height=6)), False, (1, 1, 0)),
        ((RIGHT,), said(area(base="10", height=5)), False, (0, 1, 0)),
        ((RIGHT,), said(area(base=10, height=5, extra=1)), False, (0, 1, 0)),
        ((RIGHT,), said(area(base=10, unit="")), False, (1, 1, 0)),
        ((RIGHT,), said({"name": "clock", "arguments": {}}), False, (1, 0, 0)),
        ((RIGHT,), said({"name": "volume", "arguments": {}}), False, (0, 0, 0)),
        ((RIGHT,), said(area(base=10, height=5), area(base=10, height=5)), False, (1, 0, 0)),
        ((RIGHT, RIGHT), said(area(base=10, height=5), area(base=10, height=5.5)), True, (1, 1, 1)),
        ((RIGHT,), "<tool_call>\n{not json}\n</tool_call>", False, (0, 0, 0)),
        ((RIGHT,), "Let me see.", False, (0, 0, 0)),
        ((), "None of these functions helps.", True, (1, 1, 1)),
        ((), said(area(base=10)), False, (1, 0, 0)),
        ((), "null", False, (0, 0, 0)),
        ((), "  \n", False, (0, 0, 0)),
    ],
)
def test_an_answer_is_judged_by_schema_tool_and_arguments(
    verifier: Verifier, wanted: tuple[Any, ...], answer: str, accepted: bool, metrics: tuple[int, ...]
) -> None:
    found = verifier.judge(asking(*wanted), answer)
    assert (found.outcome is Outcome.ACCEPTED) == accepted, found
    assert tuple(found.metrics[name] for name in ("schema_valid", "right_tool", "right_arguments")) == metrics


def test_calls_in_another_order_find_their_own() -> None:
    """The first call fits both of the wanted, the second only the first of them."""
    loose, strict = {"name": "f", "arguments": {"x": [1, 2]}}, {"name": "f", "arguments": {"x": [1]}}
    schemas = {"f": {"properties": {"x": {"type": "integer"}}}}
    calls = [Call("f", {"x": 1}), Call("f", {"x": 2})]
    assert compared(calls, [loose, strict], schemas) == (True, True)
    assert compared([Call("f", {"x": 2}), Call("f", {"x": 2})], [loose, strict], schemas) == (True, False)


def test_objects_are_compared_key_by_key() -> None:
    wanted = [{"name": "f", "arguments": {"x": [{"a": [1, 2], "b": ["yes", ""]}]}}]
    schemas = {"f": {"properties": {"x": {"type": "object"}}}}
    cases = (({"a": 2}, True), ({"a": 1, "b": "Yes"}, True), ({"b": "yes"}, False), ({"a": 1, "c": 1}, False))
    for value, right in cases:
        assert compared([Call("f", {"x": value})], wanted, schemas) == (True, right)


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_leaderboards_tasks_can_be_judged(verifier: Verifier, category: str) -> None:
    tasks = list(bfcl_tasks("b", {"categories": [category]}, max_tasks=3))
    assert [check_task(task, verifier).state for task in tasks] == [
        State.UNCHECKED if category == "irrelevance" else State.VALID
    ] * 3


def changed(calls: list[dict[str, Any]], dice: random.Random) -> list[dict[str, Any]]:
    calls = copy.deepcopy(calls)
    call = dice.choice(calls)
    arguments = call["arguments"]
    kind = dice.choice(["drop", "extra", "name", "value", "type", "count", "case"])
    if kind == "extra":
        arguments["foo"] = 1
    elif kind == "name":
        call["name"] += "x"
    elif kind == "count":
        calls.append(call)
    elif arguments:
        name = dice.choice(list(arguments))
        value = arguments[name]
        if kind == "drop":
            del arguments[name]
        elif kind == "type":
            arguments[name] = 17 if isinstance(value, str) else str(value)
        elif kind == "case" and isinstance(value, str):
            arguments[name] = f"{value.upper()}."
        elif kind == "value":
            arguments[name] = {bool: lambda v: not v, int: lambda v: v + 1, float: lambda v: v + 1.5}.get(
                type(value), lambda v: v + v if isinstance(v, str | list) else {}
            )(value)
    return calls


def test_verdicts_are_those_of_the_leaderboards_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    """On right calls and on changed ones, of every task; the table of models that it imports would need many SDKs."""
    table = types.ModuleType("bfcl_eval.constants.model_config")
    table.MODEL_CONFIG_MAPPING = collections.defaultdict(lambda: types.SimpleNamespace(underscore_to_dot=False))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, table.__name__, table)
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker

    folder = bfcl_folder()
    assert folder is not None
    files = [folder / f"BFCL_v4_{category}.json" for category in CATEGORIES if category != "irrelevance"]
    rows = {row["id"]: row for file in files for _, row in objects(file)}
    answers = [folder / "possible_answer" / file.name for file in files]
    right = {row["id"]: row["ground_truth"] for file in answers for _, row in objects(file)}
    dice = random.Random(3)
    verdicts: collections.Counter[bool] = collections.Counter()
    differ, nobody = set(), set()
    for task in bfcl_tasks("b", {"categories": [each for each in CATEGORIES if each != "irrelevance"]}):
        name, category = task.metadata["task_id"], task.metadata["category"]
        if task.gold is None:
            nobody.add(name)
            continue
        gold = [{"name": call.name, "arguments": call.arguments} for call in calls_in(str(task.gold), "any")]
        for calls in (gold, changed(gold, dice)):
            mine = compared(
                [Call(call["name"], call["arguments"]) for call in calls], task.check.data["calls"],
                tool_schemas(task.tools),
            )[1]  # fmt: skip
            given = [{call["name"]: call["arguments"]} for call in calls]
            theirs = ast_checker(rows[name]["function"], given, right[name], Language.PYTHON, category, "any")["valid"]
            verdicts[mine] += 1
            if mine != theirs:
                differ.add(name)
    assert len(nobody) == 3, "whose right values contradict each other"
    assert verdicts[True] > 2000 and verdicts[False] > 1000
    assert differ <= {"live_multiple_862-181-3"}, "an integer in place of a number in a list, and nothing else"
