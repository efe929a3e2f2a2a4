"""A conversation: what every reader produces and the renderer takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec


class ToolCall(msgspec.Struct, frozen=True):
    name: str
    arguments: dict[str, Any]
    id: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One turn. ``role`` is system, user, assistant or tool; a turn with tool calls may have no content.

    ``tool_call_id`` and ``name`` say which call a tool turn answers; they are checked against the calls,
    so a template that relies on the order loses nothing.
    """

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class Row(msgspec.Struct, frozen=True):
    """One training example and where it stands. ``extra`` holds its metadata fields."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    file: str
    line: int
    extra: dict[str, Any] = {}

    @property
    def response(self) -> str:
        """All assistant turns, tool calls included, as one text: what rows are grouped by."""
        return "\n".join(_answer_text(message) for message in self.messages if message.role == "assistant")


class BadRow(msgspec.Struct, frozen=True):
    """A row that cannot be used: ``reason`` in a few words for counting, ``problem`` in a sentence."""

    file: str
    line: int
    reason: str
    problem: str


class RowError(Exception):
    """Why a row cannot be used; becomes a :class:`BadRow` where file and line are known."""

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(problem)
        self.reason = reason
        self.problem = problem


def _answer_text(message: Message) -> str:
    calls = [json.dumps([call.name, call.arguments], sort_keys=True) for call in message.tool_calls]
    return "\n".join([message.content, *calls])


def check_conversation(messages: Sequence[Message]) -> None:
    """The rules that hold for every shape. Raises RowError."""
    if not messages:
        raise RowError("no messages", "the conversation is empty")
    for index, message in enumerate(messages):
        if message.role == "system" and index > 0:
            raise RowError("late system prompt", f"turn {index + 1} is a system prompt; it may only come first")
        if message.role in ("user", "assistant") and not message.content.strip() and not message.tool_calls:
            what = "answer" if message.role == "assistant" else "user turn"
            raise RowError(f"empty {what}", f"turn {index + 1} of {len(messages)} is an empty {what}")
    if not any(message.role == "assistant" for message in messages):
        raise RowError("no assistant turn", "the conversation has no assistant turn, so there is nothing to learn")
    if messages[-1].role != "assistant":
        raise RowError(
            "last turn not the assistant's",
            f"the last turn is of role {messages[-1].role}; it would be dropped, the last turn must be the assistant's",
        )
    _check_tool_turns(messages)


def _check_tool_turns(messages: Sequence[Message]) -> None:
    """Tool turns must follow calls, at most one per call, in their order, with matching ids and names."""
    calls: Sequence[ToolCall] = ()
    answered = 0
    for index, message in enumerate(messages):
        if message.role != "tool":
            calls, answered = message.tool_calls, 0
            continue
        if not calls:
            # A call written by hand into an answer's text (older ShareGPT data) has nothing to match.
            before = messages[index - 1].role if index else None
            if before not in ("assistant", "tool") or message.tool_call_id or message.name:
                raise RowError("stray tool turn", f"turn {index + 1} is a tool's, but no call comes before it")
            continue
        if answered == len(calls):
            problem = f"turn {index + 1} is a tool's answer too many, there were {len(calls)} calls"
            raise RowError("stray tool turn", problem)
        call = calls[answered]
        answered += 1
        if message.tool_call_id and call.id and message.tool_call_id != call.id:
            raise RowError(
                "tool turns out of order",
                f"turn {index + 1} answers call {message.tool_call_id!r} where {call.id!r} comes next; templates "
                "match calls and results by their order",
            )
        if message.name and message.name != call.name:
            raise RowError(
                "tool turns out of order",
                f"turn {index + 1} is of tool {message.name!r}, the call was to {call.name!r}",
            )
