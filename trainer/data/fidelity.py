"""Whether a chat template has written all of a conversation: templates drop what they don't know in silence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer.data.messages import Message, RowError

_REMEDY = "for ChatML models configs/templates/chatml-tools.jinja"


class RenderError(RowError):
    """This row cannot be rendered without loss by this template."""


def check_shown(
    full: str, cuts: Sequence[tuple[int, int]], messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> int:
    """Compare a rendered text with the conversation that it was made of.

    ``cuts`` are the character spans of the assistant turns in ``full``. Returns how many earlier turns lost
    their reasoning (``<think>``), as some templates intend. Raises RenderError for any other loss.
    """
    answers = iter(cuts)
    last = max((index for index, message in enumerate(messages) if message.role == "assistant"), default=-1)
    dropped = 0
    for index, message in enumerate(messages):
        where, reasoning, answer = full, "", message.content
        if message.role == "assistant":
            start, end = next(answers)
            where = full[start:end]
            reasoning, _, answer = message.content.rpartition("</think>")
            reasoning = reasoning.strip().removeprefix("<think>")
        if not _shown(answer, where) or (index == last and not _shown(reasoning, where)):
            raise RenderError(
                f"{message.role} turn not rendered",
                f"the chat template drops or alters the content of turn {index + 1} ({message.role})",
            )
        dropped += message.role == "assistant" and not _shown(reasoning, where)
        for call in message.tool_calls:
            for leaf in [call.name, *_leaves(call.arguments)]:
                if not _shown(leaf, where):
                    raise RenderError(
                        "tool call not rendered",
                        f"the chat template does not render the tool call {call.name!r} of turn {index + 1} "
                        f"({leaf!r} is missing); set a template that knows tool_calls, {_REMEDY}",
                    )
    for tool in tools:
        function = tool.get("function", tool)
        for leaf in filter(None, [function["name"], function.get("description")]):
            if not _shown(str(leaf), full[: cuts[0][0]] if cuts else full):
                raise RenderError(
                    "tools not rendered",
                    f"the chat template does not render the definition of the tool {function['name']!r}; "
                    f"set a template that knows tools, {_REMEDY}",
                )
    return dropped


def _leaves(value: Any) -> Iterator[str | tuple[str, ...]]:
    """Every key and scalar in a JSON value; scalars that have several spellings as all of them."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, str):
        yield value
    else:
        yield (json.dumps(value), str(value))


def _shown(text: str | tuple[str, ...], where: str) -> bool:
    """Whether ``text`` stands in ``where``, as it is or escaped as in JSON; outer whitespace may be trimmed."""
    if isinstance(text, tuple):
        return any(spelling in where for spelling in text)
    bare = text.strip()
    return bare in where or any(json.dumps(bare, ensure_ascii=ascii)[1:-1] in where for ascii in (False, True))
