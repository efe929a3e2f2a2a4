"""Whether tool calls are the right ones when each argument has several right values. Pure.

Values are compared as the Berkeley leaderboard does it: texts without case, blanks and some punctuation, an integer for
a number, objects key by key; but numbers inside of lists as JSON numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rft.verifiers.tool_calls import Call

OPTIONAL = ""
"""Among an argument's values: it may be left out."""
_IGNORED = re.compile(r"[ \,\.\/\-\_\*\^]")


def compared(
    calls: Sequence[Call], wanted: Sequence[dict[str, Any]], schemas: Mapping[str, dict[str, Any]]
) -> tuple[bool, bool]:
    """Whether the right tools were called, each as often as it is wanted, and with right arguments. Pure."""
    if sorted(call.name for call in calls) != sorted(call["name"] for call in wanted):
        return False, False
    # every call can be one of the wanted, each a different one
    fitting = [
        [number for number, right in enumerate(wanted) if _right(call, right, schemas[call.name])] for call in calls
    ]
    taken: dict[int, int] = {}
    return True, all(_placed(index, fitting, taken, set()) for index in range(len(calls)))


def _placed(index: int, fitting: Sequence[Sequence[int]], taken: dict[int, int], tried: set[int]) -> bool:
    """Give call ``index`` a wanted one, moving others to another of theirs where need be."""
    for number in fitting[index]:
        if number not in tried:
            tried.add(number)
            if number not in taken or _placed(taken[number], fitting, taken, tried):
                taken[number] = index
                return True
    return False


def _right(call: Call, wanted: dict[str, Any], schema: Mapping[str, Any]) -> bool:
    values: dict[str, list[Any]] = wanted["arguments"]
    if call.name != wanted["name"]:
        return False
    missing = [name for name in schema.get("required", ()) if name not in call.arguments]
    missing += [name for name, each in values.items() if name not in call.arguments and OPTIONAL not in each]
    if missing or call.arguments.keys() - values.keys():
        return False
    kinds = schema.get("properties", {})
    return all(
        any(_same(value, each, kinds.get(name, {}).get("type")) for each in values[name])
        for name, value in call.arguments.items()
    )


def _same(value: Any, right: Any, kind: Any) -> bool:
    """Whether ``value`` is what is meant by ``right``, an argument of the JSON Schema type ``kind``."""
    if isinstance(value, bool) or isinstance(right, bool):
        return value is right
    if isinstance(value, float) and isinstance(right, int) and kind == "integer":
        return False
    if isinstance(value, int | float) and isinstance(right, int | float):
        return value == right
    if isinstance(value, str) and isinstance(right, str):
        return _plain(value) == _plain(right)
    if isinstance(value, dict) and isinstance(right, dict):
        return _same_object(value, right)
    if isinstance(value, list) and isinstance(right, list):
        return len(value) == len(right) and all(_same(a, b, None) for a, b in zip(value, right, strict=True))
    return value is None and right is None


def _same_object(value: dict[str, Any], right: dict[str, Any]) -> bool:
    """Of an object the right one has a list of values for each key."""
    if value.keys() - right.keys():
        return False
    for key, values in right.items():
        choices = values if isinstance(values, list) else [values]
        if key not in value:
            if OPTIONAL not in choices:
                return False
        elif not any(_same(value[key], each, None) for each in choices) and not _same(value[key], values, None):
            return False
    return True


def _plain(text: str) -> str:
    return _IGNORED.sub("", text).lower().replace("'", '"')
