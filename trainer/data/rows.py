"""Rows of a JSONL file: one JSON object per line in one of four shapes, read without loss.

- instruction: ``instruction``, optional ``input`` and ``system``, and ``output`` or ``response``
- completion: ``prompt`` and ``completion``, both strings or both lists of messages; optional ``system``, ``tools``
- messages: ``messages`` in OpenAI's form, optional ``tools``
- ShareGPT: ``conversations`` of ``{"from", "value"}``, optional ``system`` and ``tools``

The shape is found row by row. Whatever would not reach the model makes the row bad, unless its field is
listed as metadata. A ``null`` carries nothing and counts as absent. Only the standard library and msgspec
are used: the supervisor reads the data with this before it launches anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from trainer.data.messages import BadRow, Message, Row, RowError, ToolCall, check_conversation

MAX_LINE_BYTES = 10_000_000

SHAPES: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "instruction": (frozenset({"instruction"}), frozenset({"instruction", "input", "system", "output", "response"})),
    "completion": (frozenset({"prompt", "completion"}), frozenset({"prompt", "completion", "system", "tools"})),
    "messages": (frozenset({"messages"}), frozenset({"messages", "tools"})),
    "sharegpt": (frozenset({"conversations"}), frozenset({"conversations", "system", "tools"})),
}
"""Per shape: the fields that give it away, and all fields that it understands."""

SHAREGPT_ROLES: Mapping[str, str] = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
}


def read_jsonl(path: Path, *, metadata_fields: frozenset[str] = frozenset()) -> Iterator[Row | BadRow]:
    """All rows of ``path`` in order, good ones and bad ones; blank lines are passed over.

    ``metadata_fields`` are kept in :attr:`Row.extra` and never shown to the model. Streams: one line is
    in memory at a time. Raises OSError when the file cannot be read.
    """
    for found in read_objects(path, str(path)):
        if isinstance(found, BadRow):
            yield found
            continue
        number, fields = found
        try:
            yield row_of(fields, file=str(path), line=number, metadata_fields=metadata_fields)
        except RowError as error:
            yield BadRow(str(path), number, error.reason, error.problem)


def read_objects(path: Path, file: str) -> Iterator[tuple[int, dict[str, Any]] | BadRow]:
    """``(line, object)`` of every line of ``path`` that is not blank, or what is wrong with it.

    ``file`` names it in problems. Streams. Raises OSError when the file cannot be read.
    """
    return objects_of(numbered_lines(path), file)


def objects_of(lines: Iterable[tuple[int, bytes | None]], file: str) -> Iterator[tuple[int, dict[str, Any]] | BadRow]:
    """:func:`read_objects` of lines from :func:`numbered_lines`."""
    for number, line in lines:
        try:
            if line is None:
                raise RowError("line too long", f"the line is longer than {MAX_LINE_BYTES // 1_000_000} MB")
            yield number, _object(line)
        except RowError as error:
            yield BadRow(file, number, error.reason, error.problem)


def row_of(
    fields: dict[str, Any], *, file: str, line: int, metadata_fields: frozenset[str] = frozenset()
) -> Row:
    """One row from the fields of its object, which is used up. Raises RowError."""
    extra = {name: fields.pop(name) for name in sorted(metadata_fields) if name in fields}
    fields = {name: value for name, value in fields.items() if value is not None}
    shape = _shape(fields)
    for name in fields:
        if name not in SHAPES[shape][1]:
            raise RowError(
                "unknown field",
                f"the field {name!r} would be dropped: a row of shape {shape} has only "
                f"{', '.join(sorted(SHAPES[shape][1]))}; remove it or list it under data.metadata_fields",
            )
    messages = _READERS[shape](fields)
    check_conversation(messages)
    return Row(tuple(messages), tools_of(fields.get("tools")), file, line, extra)


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Lines that are not blank, None for one over the limit, whose rest is skipped without keeping it."""
    with open(path, "rb") as file:
        number = 0
        while chunk := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(chunk) > MAX_LINE_BYTES:
                while chunk and not chunk.endswith(b"\n"):
                    chunk = file.readline(MAX_LINE_BYTES)
                yield number, None
                continue
            line = chunk.removeprefix(b"\xef\xbb\xbf") if number == 1 else chunk
            if line.strip():
                yield number, line


def _object(text: bytes) -> dict[str, Any]:
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RowError("invalid UTF-8", f"byte {error.start} of the line is not UTF-8; convert the file") from None
    if "\0" in decoded:
        raise RowError("NUL character", "the line holds a NUL byte; the file is damaged or not JSONL")
    value = _json(decoded, "the line")
    if not isinstance(value, dict):
        raise RowError("not an object", f"a row is a JSON object, this line is {_kind(value)}")
    return value


def _json(text: str, what: str) -> Any:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise RowError("malformed JSON", f"{what} is not JSON: {error.msg} at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:
        raise RowError("malformed JSON", f"{what} is not usable JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {double!r} stands twice in one object, so one of them would be dropped")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def _kind(value: Any) -> str:
    names = {str: "a string", list: "a list", dict: "an object", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _shape(fields: Mapping[str, Any]) -> str:
    found = [name for name, (marks, _) in SHAPES.items() if not marks.isdisjoint(fields)]
    if len(found) == 1:
        return found[0]
    if found:
        marks = sorted(mark for name in found for mark in SHAPES[name][0] if mark in fields)
        raise RowError(
            "two shapes",
            f"the row has the fields {' and '.join(marks)}, so it is of several shapes at once "
            f"({', '.join(found)}); keep one, or list the other under data.metadata_fields",
        )
    raise RowError(
        "no known shape",
        f"the row has the fields {', '.join(sorted(fields)) or '(none)'}, but none of instruction, prompt, "
        "messages, conversations",
    )


def text_of(value: Any, what: str) -> str:
    """A string that is usable text. Raises RowError."""
    if not isinstance(value, str):
        raise RowError("not a string", f"{what} must be a string, it is {_kind(value)}")
    if "\0" in value:
        raise RowError("NUL character", f"{what} holds a NUL character")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise RowError("invalid UTF-8", f"{what} holds half of a surrogate pair (\\ud8xx)") from None
    return value


def _required(fields: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in fields:
        raise RowError("missing field", f"{what} has no {name!r}")
    return fields[name]


def _leading_system(fields: Mapping[str, Any], messages: list[Message]) -> list[Message]:
    system = text_of(fields.get("system", ""), "'system'")
    if not system:
        return messages
    if messages and messages[0].role == "system":
        raise RowError("two system prompts", "the row has a 'system' field and a system message; keep one")
    return [Message("system", system), *messages]


def _instruction(fields: Mapping[str, Any]) -> list[Message]:
    if ("output" in fields) == ("response" in fields):
        both = "output" in fields
        raise RowError(
            "two answers" if both else "missing field",
            f"an instruction row has 'output' or 'response', this one has {'both' if both else 'neither'}",
        )
    answer = "output" if "output" in fields else "response"
    question = text_of(_required(fields, "instruction", "the row"), "'instruction'")
    if addition := text_of(fields.get("input", ""), "'input'"):
        question = f"{question}\n\n{addition}"
    pair = [Message("user", question), Message("assistant", text_of(fields[answer], f"{answer!r}"))]
    return _leading_system(fields, pair)


def _completion(fields: Mapping[str, Any]) -> list[Message]:
    prompt = _required(fields, "prompt", "the row")
    completion = _required(fields, "completion", "the row")
    if isinstance(prompt, list) and isinstance(completion, list):
        if not completion or messages_of(completion, "completion")[0].role != "assistant":
            raise RowError("no assistant turn", "'completion' must begin with an assistant message")
        return _leading_system(fields, [*messages_of(prompt, "prompt"), *messages_of(completion, "completion")])
    if isinstance(prompt, list) or isinstance(completion, list):
        raise RowError("mixed forms", "'prompt' and 'completion' must both be strings or both be lists of messages")
    pair = [Message("user", text_of(prompt, "'prompt'")), Message("assistant", text_of(completion, "'completion'"))]
    return _leading_system(fields, pair)


def _openai(fields: Mapping[str, Any]) -> list[Message]:
    return messages_of(fields["messages"], "messages")


def _turns(value: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(value, list):
        raise RowError("not a list", f"{where!r} must be a list of messages, it is {_kind(value)}")
    for index, turn in enumerate(value):
        what = f"{where}[{index}]"
        if not isinstance(turn, dict):
            raise RowError("not an object", f"{what} must be an object, it is {_kind(turn)}")
        yield what, {name: item for name, item in turn.items() if item is not None}


def _only(turn: Mapping[str, Any], known: frozenset[str], what: str) -> None:
    for name in turn:
        if name not in known:
            raise RowError(
                "unknown field",
                f"{what} has the field {name!r}, which would be dropped; known: {', '.join(sorted(known))}",
            )


_FIELDS_OF_ROLE: Mapping[str, frozenset[str]] = {
    "system": frozenset({"role", "content"}),
    "user": frozenset({"role", "content"}),
    "assistant": frozenset({"role", "content", "tool_calls"}),
    "tool": frozenset({"role", "content", "tool_call_id", "name"}),
}


def messages_of(value: Any, where: str) -> list[Message]:
    """A list of messages in OpenAI's form; ``where`` names it in problems. Raises RowError."""
    messages = []
    for what, turn in _turns(value, where):
        role = text_of(_required(turn, "role", what), f"{what}.role")
        if role not in _FIELDS_OF_ROLE:
            raise RowError("unknown role", f"{what} has the role {role!r}; known: {', '.join(_FIELDS_OF_ROLE)}")
        _only(turn, _FIELDS_OF_ROLE[role], what)
        calls = _tool_calls(turn.get("tool_calls", []), what)
        content = turn.get("content", "") if calls else _required(turn, "content", what)
        identifier, name = turn.get("tool_call_id"), turn.get("name")
        messages.append(
            Message(
                role,
                text_of(content, f"{what}.content"),
                calls,
                None if identifier is None else text_of(identifier, f"{what}.tool_call_id"),
                None if name is None else text_of(name, f"{what}.name"),
            )
        )
    return messages


def _sharegpt(fields: Mapping[str, Any]) -> list[Message]:
    messages = []
    for what, turn in _turns(fields["conversations"], "conversations"):
        _only(turn, frozenset({"from", "value"}), what)
        speaker = text_of(_required(turn, "from", what), f"{what}.from")
        if speaker not in SHAREGPT_ROLES:
            raise RowError("unknown role", f"{what} is from {speaker!r}; known: {', '.join(SHAREGPT_ROLES)}")
        value = text_of(_required(turn, "value", what), f"{what}.value")
        if speaker == "function_call":
            calls = _json(value, f"{what}.value")
            messages.append(Message("assistant", "", _tool_calls(calls if isinstance(calls, list) else [calls], what)))
        else:
            messages.append(Message(SHAREGPT_ROLES[speaker], value))
    return _leading_system(fields, messages)


def _tool_calls(value: Any, what: str) -> tuple[ToolCall, ...]:
    """Calls as ``{"id", "type", "function": {"name", "arguments"}}`` or bare ``{"name", "arguments"}``."""
    calls = []
    for place, call in _turns(value, f"{what}.tool_calls"):
        identifier = call.get("id")
        if "function" in call:
            _only(call, frozenset({"id", "type", "function"}), place)
            if call.get("type", "function") != "function":
                raise RowError("unknown tool type", f"{place} has the type {call['type']!r}; only 'function' is known")
            function = call["function"]
            if not isinstance(function, dict):
                raise RowError("not an object", f"{place}.function must be an object, it is {_kind(function)}")
            _only(function, frozenset({"name", "arguments"}), f"{place}.function")
        else:
            function = call
            _only(call, frozenset({"id", "name", "arguments"}), place)
        name = text_of(_required(function, "name", place), f"{place}.name")
        arguments = _required(function, "arguments", place)
        if isinstance(arguments, str):
            arguments = _json(arguments, f"{place}.arguments")
        if not isinstance(arguments, dict):
            raise RowError("not an object", f"{place}.arguments must be an object, it is {_kind(arguments)}")
        check_json(arguments, f"{place}.arguments")
        calls.append(ToolCall(name, arguments, None if identifier is None else text_of(identifier, f"{place}.id")))
    return tuple(calls)


def tools_of(value: Any) -> tuple[dict[str, Any], ...]:
    """Tool definitions, given as a list or as the JSON text of one. Raises RowError."""
    if value is None:
        return ()
    found = _json(value, "'tools'") if isinstance(value, str) and value.strip() else value
    if isinstance(found, str):
        return ()
    tools = []
    for what, tool in _turns(found, "tools"):
        function = tool.get("function", tool)
        if not isinstance(function, dict):
            raise RowError("not an object", f"{what}.function must be an object, it is {_kind(function)}")
        text_of(_required(function, "name", what), f"{what}.name")
        check_json(tool, what)
        tools.append(tool)
    return tuple(tools)


def check_json(value: Any, what: str) -> None:
    """Every string inside a JSON value must be usable text, every number finite. Raises RowError."""
    waiting = [(value, what)]
    while waiting:
        found, place = waiting.pop()
        if isinstance(found, str):
            text_of(found, place)
        elif isinstance(found, float) and not math.isfinite(found):
            raise RowError("not a JSON number", f"{place} is not finite, and JSON has no such number")
        elif isinstance(found, dict):
            for name, item in found.items():
                text_of(name, f"a key of {place}")
                waiting.append((item, f"{place}.{name}"))
        elif isinstance(found, list):
            waiting += [(item, f"{place}[{index}]") for index, item in enumerate(found)]


_READERS = {"instruction": _instruction, "completion": _completion, "messages": _openai, "sharegpt": _sharegpt}


def encode_row(row: Row) -> bytes:
    """A row as one JSON line (without the newline), for caches."""
    return msgspec.json.encode(row)


def decode_row(line: bytes) -> Row:
    """The inverse of :func:`encode_row`. Raises msgspec.DecodeError."""
    return msgspec.json.decode(line, type=Row)
