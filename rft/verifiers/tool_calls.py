"""Tool calls in an answer's text: Hermes blocks, or plain or fenced JSON. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import msgspec

from trainer.data.code_block import first_code_block

Format = Literal["hermes", "json", "any"]
"""hermes: <tool_call> blocks; json: the whole answer, or its first fenced block, is one call or a list of calls."""

MAX_CALLS = 64
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class CallError(Exception):
    """The text holds no well-formed calls. ``reason`` in a few words for counting, the text says what is wrong."""

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(problem)
        self.reason = reason


class Call(msgspec.Struct, frozen=True):
    name: str
    arguments: dict[str, Any]


def calls_in(text: str, form: Format) -> list[Call]:
    """The calls of an answer in their order; empty when it makes none. Raises CallError for one that is malformed."""
    if form != "json" and (_OPEN in text or _CLOSE in text):
        return [_call(json_value(block)) for block in _blocks(text)]
    if form == "hermes":
        return []
    value = _whole(text)
    if value is None:
        return []
    if form == "any" and not _looks_like_calls(value):
        return []
    values = value if isinstance(value, list) else [value]
    if len(values) > MAX_CALLS:
        raise CallError("too many tool calls", f"{len(values)} calls")
    return [_call(value) for value in values]


def json_answer(text: str) -> Any:
    """The JSON value that the whole text is, or its first fenced block. Raises CallError."""
    stripped = text.strip()
    block = None if stripped[:1] in ("{", "[") else first_code_block(text)
    return json_value(stripped if block is None else block)


def json_value(text: str) -> Any:
    """One JSON value, strictly: no key twice, no NaN, no number that is too large. Raises CallError."""
    try:
        value = _DECODER.decode(text.strip())
    except json.JSONDecodeError as error:
        raise CallError("malformed JSON", f"{error.msg} at character {error.pos + 1}: {text.strip()[:200]}") from None
    except (ValueError, RecursionError) as error:
        raise CallError("malformed JSON", f"{error or 'nested too deeply'}") from None
    return value


def same_json(a: Any, b: Any) -> bool:
    """Equality of JSON values: 1 is 1.0 but not true."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a == b
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_json(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same_json, a, b))
    return bool(a == b)


def text_outside(text: str) -> str:
    """What stands beside the Hermes blocks."""
    parts = []
    while _OPEN in text:
        before, _, rest = text.partition(_OPEN)
        parts.append(before)
        text = rest.partition(_CLOSE)[2]
    return "".join([*parts, text]).strip()


def tool_schemas(tools: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Name -> schema of the arguments, of tools as OpenAI's interface writes them, with or without ``function`` around.

    Raises ValueError with a sentence.
    """
    found: dict[str, dict[str, Any]] = {}
    for number, tool in enumerate(tools, 1):
        inner = tool.get("function", tool)
        name = inner.get("name") if isinstance(inner, Mapping) else None
        if not isinstance(name, str) or not name:
            raise ValueError(f"tool {number} has no name")
        if name in found:
            raise ValueError(f"the tool {name!r} stands twice")
        schema = inner.get("parameters", {"type": "object", "properties": {}})
        if not isinstance(schema, dict):
            raise ValueError(f"parameters of the tool {name!r} must be a JSON Schema, an object")
        found[name] = schema
    return found


def _blocks(text: str) -> list[str]:
    blocks = []
    rest = text
    while _OPEN in rest:
        before, _, rest = rest.partition(_OPEN)
        block, closed, rest = rest.partition(_CLOSE)
        if _CLOSE in before or not closed or _OPEN in block:
            raise CallError("unbalanced tool call", f"{_OPEN} and {_CLOSE} do not match")
        blocks.append(block)
        if len(blocks) > MAX_CALLS:
            raise CallError("too many tool calls", f"more than {MAX_CALLS}")
    if _CLOSE in rest:
        raise CallError("unbalanced tool call", f"{_OPEN} and {_CLOSE} do not match")
    return blocks


def _whole(text: str) -> Any:
    """The JSON value that an answer is, None when it is prose."""
    stripped = text.strip()
    if stripped[:1] in ("{", "["):
        return json_value(stripped)
    block = first_code_block(text)
    if block is None or block.strip()[:1] not in ("{", "["):
        return None
    return json_value(block)


def _looks_like_calls(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return bool(values) and any(isinstance(one, dict) and "name" in one for one in values)


def _call(value: Any) -> Call:
    if not isinstance(value, dict):
        raise CallError("malformed tool call", f"a call must be an object with name and arguments: {value!r}"[:300])
    unknown = sorted(value.keys() - {"name", "arguments", "id"})
    if unknown or not isinstance(value.get("name"), str) or not isinstance(value.get("arguments"), dict):
        problem = (
            f"a call has name (text) and arguments (an object), this one has {', '.join(sorted(value)) or 'nothing'}"
        )
        raise CallError("malformed tool call", problem[:300])
    return Call(value["name"], value["arguments"])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_number)
