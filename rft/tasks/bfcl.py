"""Tasks with tools to call: the Berkeley leaderboard's files, in the wheel that carries them and is never imported.

Taken are the categories of one question each whose right calls are written down as values; those about Java and
JavaScript, several turns, memory and the web are not.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rft.tasks.files import objects
from rft.tasks.task import Check, Task
from rft.verifiers.call_values import compared
from rft.verifiers.tool_calls import Call, tool_schemas
from supervisor.jobs import Problem
from supervisor.problems import InputError
from trainer.data.messages import Message, RowError, check_conversation
from trainer.data.rows import messages_of

PACKAGE = "bfcl_eval"
INSTALL = "pip install --no-deps bfcl-eval"
VERIFIER = "function_calls"
VERSION = "BFCL_v4"
CATEGORIES = (
    "simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance", "live_simple", "live_multiple",
    "live_parallel", "live_parallel_multiple",
)  # fmt: skip
DEFAULT = CATEGORIES[:5]
NOTHING_RIGHT = frozenset({"irrelevance"})
CATEGORIES_KEY, TOOLS_KEY = "categories", "tools"
SHOWN_BY = ("template", "system")
"""template: the chat template shows the tools; system: a system turn does, for templates that cannot."""
_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


def bfcl_folder() -> Path | None:
    """Where the files are, or None."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "data"
    return folder if folder.is_dir() else None


def bfcl_problems(params: Mapping[str, Any], at: str) -> Iterator[Problem]:
    """What is wrong with ``params`` of a source; ``at`` is its key."""
    if bfcl_folder() is None:
        yield Problem(f"{at}.type", "the package bfcl-eval, which carries the tasks, is not installed", INSTALL)
    for key, value in params.items():
        if key == CATEGORIES_KEY:
            names = value if isinstance(value, list) else [value]
            if not names:
                yield Problem(f"{at}.params.{key}", f"{at}.params.{key} is empty", "Leave it out for the usual five.")
            for name in names:
                if name not in CATEGORIES:
                    yield Problem(f"{at}.params.{key}", f"{name!r} is no category", _meant(str(name), CATEGORIES))
        elif key == TOOLS_KEY:
            if value not in SHOWN_BY:
                message = f"{at}.params.{key} must be one of {', '.join(SHOWN_BY)}"
                yield Problem(f"{at}.params.{key}", message, _meant(str(value), SHOWN_BY))
        else:
            message = f"{at}.params.{key} is not a known key"
            yield Problem(f"{at}.params.{key}", message, _meant(key, (CATEGORIES_KEY, TOOLS_KEY)))


def bfcl_tasks(
    source: str,
    params: Mapping[str, Any] | None = None,
    verifier: str | None = None,
    max_tasks: int | None = None,
    seed: int = 0,
) -> Iterator[Task]:
    """The tasks of the categories one after another; of more than ``max_tasks`` a sample by ``seed``. InputError."""
    params = params or {}
    folder = bfcl_folder()
    if folder is None:
        raise InputError(f"The package bfcl-eval, which carries the tool-call tasks, is not installed; {INSTALL}")
    tasks = [
        task
        for category in params.get(CATEGORIES_KEY, DEFAULT)
        for task in _category(folder, category, source, params.get(TOOLS_KEY, SHOWN_BY[0]), verifier or VERIFIER)
    ]
    if max_tasks is not None and len(tasks) > max_tasks:
        chosen = random.Random(f"{seed}\0{source}").sample(range(len(tasks)), max_tasks)
        tasks = [tasks[index] for index in sorted(chosen)]
    yield from tasks


def _category(folder: Path, category: str, source: str, shown_by: str, verifier: str) -> Iterator[Task]:
    path = folder / f"{VERSION}_{category}.json"
    if not path.is_file():
        raise InputError(f"{path} does not exist: this bfcl-eval is another version. Install one with {VERSION} files.")
    right = {} if category in NOTHING_RIGHT else _answers(folder / "possible_answer" / path.name)
    for line, row in objects(path):
        where = f"{path}:{line}"
        try:
            if len(row["question"]) != 1:
                raise RowError("several turns", "it has several turns")
            messages = messages_of(row["question"][0], "question")
            check_conversation([*messages, Message("assistant", "-")])
            tools = [_tool(function) for function in row["function"]]
            calls = [] if category in NOTHING_RIGHT else [_call(call) for call in right[row["id"]]]
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise InputError(f"{where}: the task is not of the shape known here ({error!r}).") from None
        except RowError as error:
            raise InputError(f"{where}: {error.problem}.") from None
        data: dict[str, Any] = {"calls": calls}
        if shown_by == "system":
            data["tools"] = tools
            messages = [Message("system", _in_words(tools, messages)), *(m for m in messages if m.role != "system")]
        yield Task(
            id=f"{source}/{row['id']}",
            source=source,
            messages=tuple(messages),
            check=Check(verifier, data),
            tools=() if shown_by == "system" else tuple(tools),
            gold=_gold(calls, tools),
            metadata={"category": category, "task_id": row["id"]},
            file=str(path),
            line=line,
        )


def _answers(path: Path) -> dict[str, list[dict[str, Any]]]:
    try:
        return {row["id"]: row["ground_truth"] for _, row in objects(path)}
    except KeyError as error:
        raise InputError(f"{path}: a right answer has no {error}.") from None


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    (name, arguments), *others = call.items()
    if others:
        raise RowError("several tools", "a right call names several tools")
    return {"name": name, "arguments": arguments}


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    """As OpenAI's interface writes it, the parameters a JSON Schema."""
    parameters = _schema(function["parameters"])
    described = {"name": function["name"], "description": function.get("description", ""), "parameters": parameters}
    return {"type": "function", "function": described}


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The leaderboard's types are Python's; ``any`` stands for no type at all."""
    found = {key: value for key, value in schema.items() if key not in ("type", "optional")}
    kind = schema.get("type")
    if kind is not None and kind != "any":
        found["type"] = _JSON_TYPES.get(kind, kind)
    if isinstance(schema.get("properties"), dict):
        found["properties"] = {name: _schema(each) for name, each in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found[key] = _schema(schema[key])
    return found


def _gold(calls: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str | None:
    """A right answer: of every argument the first value, those that may be left out left out. None where none is right,
    and where the right values contradict each other, so that nobody's answer is."""
    if not calls:
        return None
    required = {tool["function"]["name"]: tool["function"]["parameters"].get("required", []) for tool in tools}
    found = []
    for call in calls:
        arguments = {
            name: _first([value for value in values if value != ""] or values)
            for name, values in call["arguments"].items()
            if "" not in values or name in required.get(call["name"], [])
        }
        found.append(Call(call["name"], arguments))
    if compared(found, calls, tool_schemas(tools)) != (True, True):
        return None
    return "\n".join(f"<tool_call>\n{json.dumps(msgspec.to_builtins(call))}\n</tool_call>" for call in found)


def _first(values: list[Any]) -> Any:
    value = values[0] if values else []
    if isinstance(value, dict):
        return _one_of_each(value)
    if isinstance(value, list):
        return [_one_of_each(each) if isinstance(each, dict) else each for each in value]
    return value


def _one_of_each(value: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _first(choices) if isinstance(choices, list) else choices
        for key, choices in value.items()
        if not isinstance(choices, list) or "" not in choices
    }


def _in_words(tools: list[dict[str, Any]], messages: list[Message]) -> str:
    own = "".join(f"{message.content}\n\n" for message in messages if message.role == "system")
    definitions = "\n".join(json.dumps(tool["function"]) for tool in tools)
    return (
        f"{own}You can call these functions, one JSON definition per line:\n{definitions}\n\nTo call one, answer with "
        '{"name": "...", "arguments": {...}} between <tool_call> and </tool_call>, several calls one after another. '
        "When none of them fits what is asked, say so in words."
    )


def _meant(name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"Did you mean {close[0]}?" if close else f"Known: {', '.join(known)}."
