"""The verifier ``json_schema``: tool calls, or a JSON answer, against JSON Schemas.

Check.data, one of: ``{"calls": [{"name", "arguments"}, ...]}`` the right calls to the task's tools, an empty list when
none is right; ``{"calls": "any"}`` one or more calls that fit the tools' schemas; ``{"schema": {...}}`` the answer is
one JSON value that fits, and equals ``"answer"`` when that is there as well.

Schemas are the author's, values the model's: a pattern or a comparison in a schema may take for ever on some value, so
validation happens in a process of its own with a limit.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

from rft.config import JudgeSection
from rft.tasks.task import Task
from rft.verifiers.answers import EMPTY_ANSWERS
from rft.verifiers.judge_process import (
    JudgeDiedError,
    JudgeLostError,
    JudgeProcesses,
    JudgeRaisedError,
    JudgeTimeoutError,
    beside,
)
from rft.verifiers.limits import judges_at_a_time
from rft.verifiers.registry import Kind
from rft.verifiers.tool_calls import (
    Call,
    CallError,
    Format,
    calls_in,
    json_answer,
    same_json,
    text_outside,
    tool_schemas,
)
from rft.verifiers.verdict import Isolation, Verdict
from rft.verifiers.verdicts import Judgement, timed, version_of
from rft.verifiers.verifier import VerifierUnusableError
from trainer.config import Positive, Section

CODE_VERSION = 1
MAX_ANSWER = 200_000
"""Characters: what is longer is no tool call, and some validations take the square of the length."""
MEMORY = 1 << 30


class JsonSchemaSettings(Section):
    format: Format = "any"
    """hermes: <tool_call> blocks; json: the whole answer or its first fenced block; any: whichever is there."""
    arguments: Literal["exact", "schema"] = "exact"
    """exact: the arguments of the right calls; schema: the right tools, with arguments that fit their schemas."""
    order: Literal["any", "same"] = "any"
    """Whether several calls must come in the order of the right ones."""
    unknown_arguments: Literal["reject", "schema"] = "reject"
    """reject: an argument that the tool doesn't list is wrong even where its schema would let it pass."""
    other_text: Literal["allow", "reject"] = "allow"
    """Whether anything may stand beside the calls."""
    timeout_seconds: Positive = 5.0
    """For one answer."""


class JsonSchema:
    name = "json_schema"
    isolation = Isolation.NOT_RUN
    empty_answers = (*EMPTY_ANSWERS, "null", "{}", "[]", '""', "<tool_call>\n{}\n</tool_call>")

    def __init__(self, settings: JsonSchemaSettings, judge: JudgeSection) -> None:
        self._settings = settings
        self.version = version_of(CODE_VERSION, settings.model_dump())
        self._say = Judgement(self.name, self.version, Isolation.NOT_RUN)
        program = Path(__file__).parent / "inside" / "schema_judge.py"
        self._judges = JudgeProcesses(beside(program, "make", None), judges_at_a_time(judge))

    def open(self) -> None:
        try:
            import jsonschema  # noqa: F401
        except ImportError:
            raise VerifierUnusableError(
                "The verifier json_schema needs the library jsonschema; pip install 'mens-supervisor[rft]'."
            ) from None
        self._judges.open()

    def close(self) -> None:
        self._judges.close()

    def problem(self, task: Task) -> str | None:
        data = task.check.data
        if "schema" in data:
            return schema_problem(data["schema"], "check.data.schema")
        calls = data.get("calls")
        if calls is None:
            return 'check.data has neither calls (the right tool calls, or "any") nor schema'
        if not task.tools:
            return "the task has no tools, so there is nothing to call"
        try:
            schemas = tool_schemas(task.tools)
        except ValueError as error:
            return str(error)
        for name, schema in schemas.items():
            if found := schema_problem(schema, f"the schema of the tool {name!r}"):
                return found
        return None if calls == "any" else self._calls_problem(calls, schemas)

    def _calls_problem(self, calls: Any, schemas: dict[str, dict[str, Any]]) -> str | None:
        if not isinstance(calls, list):
            return 'check.data.calls must be a list of calls, or "any"'
        for call in calls:
            if not isinstance(call, dict) or call.get("name") not in schemas:
                return f"check.data.calls names a tool that the task does not have: {call!r}"[:300]
            if not isinstance(call.get("arguments", {}), dict):
                return f"arguments of {call['name']!r} in check.data.calls must be an object"
            if self._settings.arguments == "exact" and "arguments" not in call:
                return f"the call of {call['name']!r} in check.data.calls has no arguments to compare with"
        return None

    def judge(self, task: Task, completion: str) -> Verdict:
        began = time.monotonic()
        try:
            verdict = self._judged(task, completion)
        except CallError as error:
            verdict = self._say.rejected(error.reason, str(error))
        except JudgeTimeoutError:
            verdict = self._say.timeout()
        except JudgeDiedError as error:
            verdict = self._say.rejected("used too much memory", f"validating it ended with {error}")
        except (JudgeLostError, JudgeRaisedError) as error:
            verdict = self._say.error(str(error))
        return timed(verdict, began)

    def _judged(self, task: Task, completion: str) -> Verdict:
        if len(completion) > MAX_ANSWER:
            return self._say.rejected("answer too long", f"{len(completion)} characters")
        data = task.check.data
        if "schema" in data:
            value = json_answer(completion)
            if errors := self._errors([(value, data["schema"])])[0]:
                return self._say.rejected("does not fit the schema", "\n".join(errors))
            if "answer" in data and not same_json(value, data["answer"]):
                return self._say.rejected("wrong value")
            return self._say.accepted()
        return self._judged_calls(task, calls_in(completion, self._settings.format), completion)

    def _judged_calls(self, task: Task, calls: list[Call], completion: str) -> Verdict:
        wanted = task.check.data["calls"]
        if not completion.strip():
            return self._say.rejected("empty answer")
        if not calls:
            return self._say.accepted() if wanted == [] else self._say.rejected("no tool call")
        if wanted == []:
            return self._say.rejected("a tool call where none is right", f"called {_names(calls)}")
        schemas = tool_schemas(task.tools)
        for call in calls:
            if call.name not in schemas:
                return self._say.rejected("unknown tool", f"{call.name!r}; there are {', '.join(schemas)}")
        if self._settings.other_text == "reject" and text_outside(completion) and "<tool_call>" in completion:
            return self._say.rejected("text beside the calls", text_outside(completion)[:300])
        if self._settings.unknown_arguments == "reject":
            for call in calls:
                if extra := _unlisted(call, schemas[call.name]):
                    return self._say.rejected("unknown argument", f"{call.name} has no argument {', '.join(extra)}")
        if wanted != "any" and (reason := self._names_wrong(calls, wanted)):
            return self._say.rejected(
                reason, f"called {_names(calls)}, not {', '.join(c['name'] for c in wanted) or 'none'}"
            )
        errors = self._errors([(call.arguments, schemas[call.name]) for call in calls])
        for call, found in zip(calls, errors, strict=True):
            if found:
                return self._say.rejected(
                    "arguments do not fit the schema", "\n".join(f"{call.name}: {e}" for e in found)
                )
        if wanted != "any" and self._settings.arguments == "exact" and not self._same_calls(calls, wanted):
            return self._say.rejected("wrong arguments", "\n".join(f"{c.name}({c.arguments})" for c in calls))
        return self._say.accepted()

    def _names_wrong(self, calls: list[Call], wanted: list[dict[str, Any]]) -> str | None:
        found, right = [call.name for call in calls], [call["name"] for call in wanted]
        if self._settings.order == "any":
            found, right = sorted(found), sorted(right)
        if found == right:
            return None
        if sorted(found) == sorted(right):
            return "tools in another order"
        return "wrong number of calls" if set(found) == set(right) else "wrong tool"

    def _same_calls(self, calls: list[Call], wanted: list[dict[str, Any]]) -> bool:
        if self._settings.order == "same":
            return all(_same_call(a, b) for a, b in zip(calls, wanted, strict=True))
        left = list(wanted)
        for call in calls:
            match = next((i for i, other in enumerate(left) if _same_call(call, other)), None)
            if match is None:
                return False
            del left[match]
        return not left

    def _errors(self, values: list[tuple[Any, Any]]) -> list[list[str]]:
        found = self._judges.ask({"values": values}, self._settings.timeout_seconds, MEMORY)
        return [[f"{place}: {text}" if place else text for place, text in errors] for errors in found]


def schema_problem(schema: Any, what: str) -> str | None:
    """Why a JSON Schema cannot be used, in a sentence."""
    from jsonschema import validators
    from jsonschema.exceptions import SchemaError
    from referencing import Registry, Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    if not isinstance(schema, dict):
        return f"{what} must be a JSON Schema, an object"
    kind = validators.validator_for(schema, default=validators.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        place = ".".join(str(part) for part in error.absolute_path)
        return f"{what} is not a valid JSON Schema: {place + ': ' if place else ''}{error.message[:200]}"
    resource = Resource.from_contents(schema, default_specification=DRAFT202012)
    registry: Any = Registry()
    resolver = registry.resolver_with_root(resource)
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            return f"{what} refers to {reference!r}, which is not in it; nothing is fetched"
    return None


def _references(schema: Any) -> list[str]:
    found: list[str] = []
    left = [schema]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                found.append(node["$ref"])
            left.extend(node.values())
        elif isinstance(node, list):
            left.extend(node)
    return found


def _unlisted(call: Call, schema: dict[str, Any]) -> list[str]:
    decided = {"additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf", "unevaluatedProperties"}
    if decided & schema.keys():
        return []
    return sorted(call.arguments.keys() - dict(schema.get("properties", {})).keys())


def _same_call(call: Call, wanted: dict[str, Any]) -> bool:
    return call.name == wanted["name"] and same_json(call.arguments, wanted["arguments"])


def _names(calls: list[Call]) -> str:
    return ", ".join(call.name for call in calls)


KIND = Kind(JsonSchemaSettings, JsonSchema)
