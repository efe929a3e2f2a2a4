"""The verifier ``function_calls``: calls whose arguments may each be one of several values, as tool-call benches have.

Check.data: ``{"calls": [{"name", "arguments": {name: [value, ...]}}, ...], "tools": [...]}``. ``calls`` in any order,
an empty list when none is right; an argument may be left out when ``""`` is among its values; ``tools`` for tasks whose
prompt names the tools in words. Accepted are the right tools with right arguments. Every verdict has the metrics
``schema_valid`` (every call is well-formed, to a tool that there is, and fits its schema), ``right_tool`` (the tools of
the right calls, each as often) and ``right_arguments`` (a right value for every argument, and no other argument).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rft.config import JudgeSection
from rft.tasks.task import Task
from rft.verifiers.call_values import compared
from rft.verifiers.json_schema import MAX_ANSWER, JsonSchema, JsonSchemaSettings, schema_problem
from rft.verifiers.registry import Kind
from rft.verifiers.tool_calls import Call, CallError, Format, calls_in, json_answer, tool_schemas
from rft.verifiers.verdict import Isolation, Outcome, Verdict
from rft.verifiers.verdicts import Judgement, version_of
from trainer.config import Positive, Section

NAME = "function_calls"
CODE_VERSION = 1
SCHEMA_VALID, RIGHT_TOOL, RIGHT_ARGUMENTS = "schema_valid", "right_tool", "right_arguments"


class FunctionCallsSettings(Section):
    format: Format = "any"
    """hermes: <tool_call> blocks; json: the whole answer or its first fenced block; any: whichever is there."""
    timeout_seconds: Positive = 5.0
    """For one answer."""


class FunctionCalls(JsonSchema):
    name = NAME

    def __init__(self, settings: FunctionCallsSettings, judge: JudgeSection) -> None:
        super().__init__(JsonSchemaSettings(format=settings.format, timeout_seconds=settings.timeout_seconds), judge)
        self.version = version_of(CODE_VERSION, settings.model_dump())
        self._say = Judgement(self.name, self.version, Isolation.NOT_RUN)

    def problem(self, task: Task) -> str | None:
        try:
            schemas = tool_schemas(_tools(task))
        except ValueError as error:
            return str(error)
        for name, schema in schemas.items():
            if found := schema_problem(schema, f"the schema of the tool {name!r}"):
                return found
        calls = task.check.data.get("calls")
        if not isinstance(calls, list):
            return "check.data.calls must be a list of the right calls, an empty one when none is right"
        for call in calls:
            if not isinstance(call, dict) or call.get("name") not in schemas:
                return f"check.data.calls names a tool that the task does not have: {call!r}"[:300]
            arguments = call.get("arguments")
            if not isinstance(arguments, dict) or not all(isinstance(each, list) for each in arguments.values()):
                return f"arguments of {call['name']!r} must be an object with a list of right values for each"
        return None

    def judge(self, task: Task, completion: str) -> Verdict:
        verdict = super().judge(task, completion)
        if verdict.outcome is Outcome.ERROR or verdict.metrics:
            return verdict
        return msgspec.structs.replace(verdict, metrics=_metrics(False, False, False))

    def _judged(self, task: Task, completion: str) -> Verdict:
        if len(completion) > MAX_ANSWER:
            return self._say.rejected("answer too long", f"{len(completion)} characters")
        if not completion.strip():
            return self._say.rejected("empty answer")
        wanted: list[dict[str, Any]] = task.check.data["calls"]
        calls = calls_in(completion, self._settings.format)
        if not calls and (wanted or not _says_something(completion)):
            return self._say.rejected("no tool call" if wanted else "no answer in words")
        if not calls:
            return self._say.accepted(metrics=_metrics(True, True, True))
        schemas = tool_schemas(_tools(task))
        fits, diagnostic = self._fits(calls, schemas)
        right_tool, right_arguments = compared(calls, wanted, schemas)
        if not right_tool:
            reason = "wrong tool" if wanted else "a tool call where none is right"
            names = ", ".join(call.name for call in calls)
            shown = f"called {names}, not {', '.join(call['name'] for call in wanted) or 'anything'}"
            return self._say.rejected(reason, shown, metrics=_metrics(fits, False, False))
        if right_arguments:
            return self._say.accepted(metrics=_metrics(fits, True, True))
        shown = diagnostic or "\n".join(f"{call.name}({call.arguments})" for call in calls)
        reason = "wrong arguments" if fits else "arguments do not fit the schema"
        return self._say.rejected(reason, shown, metrics=_metrics(fits, True, False))

    def _fits(self, calls: Sequence[Call], schemas: Mapping[str, dict[str, Any]]) -> tuple[bool, str]:
        unknown = [call.name for call in calls if call.name not in schemas]
        if unknown:
            return False, f"there is no tool {', '.join(unknown)}"
        errors = self._errors([(call.arguments, schemas[call.name]) for call in calls])
        lines = [f"{call.name}: {error}" for call, found in zip(calls, errors, strict=True) for error in found]
        lines += [
            f"{call.name}: there is no argument {name}"
            for call in calls
            for name in sorted(call.arguments.keys() - schemas[call.name].get("properties", {}).keys())
        ]
        return not lines, "\n".join(lines)


def _metrics(schema_valid: bool, right_tool: bool, right_arguments: bool) -> dict[str, float]:
    return {
        SCHEMA_VALID: float(schema_valid),
        RIGHT_TOOL: float(right_tool),
        RIGHT_ARGUMENTS: float(right_arguments),
    }


def _tools(task: Task) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = task.check.data.get("tools") or task.tools
    return found


def _says_something(completion: str) -> bool:
    """Whether it is an answer in words: ``null`` and ``[]`` call nothing either, but tell nobody so."""
    try:
        json_answer(completion)
    except CallError:
        return any(character.isalpha() for character in completion)
    return False


KIND = Kind(FunctionCallsSettings, FunctionCalls)
