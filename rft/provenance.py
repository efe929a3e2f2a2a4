"""Where an exported row comes from. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from rft.store import Origin, StoredSample
from rft.tasks.task import Task
from trainer.data.messages import Message

PROVENANCE_FIELD = "provenance"
"""The field of a row that training must list under data.metadata_fields."""


def row_of_sample(task: Task, sample: StoredSample, origin: Origin) -> dict[str, Any]:
    """An accepted sample as a row of shape ``messages``: the prompt, the answer to the letter, and where it is from."""
    row: dict[str, Any] = {"messages": [*map(_turn, task.messages), {"role": "assistant", "content": sample.text}]}
    if task.tools:
        row["tools"] = list(task.tools)
    row[PROVENANCE_FIELD] = provenance(task, sample, origin)
    return row


def provenance(task: Task, sample: StoredSample, origin: Origin) -> dict[str, Any]:
    verdict = sample.verdict
    assert verdict is not None
    return {
        "task": task.id,
        "task_digest": task.digest,
        "source": task.source,
        "cluster": task.cluster or task.id,
        "sample": sample.index,
        "seed": sample.seed,
        "finish": sample.finish,
        "completion_tokens": sample.completion_tokens,
        "sampler": msgspec.to_builtins(origin.sampler),
        "sampling": msgspec.to_builtins(origin.sampling),
        "verdict": {
            "outcome": verdict.outcome.value,
            "reason": verdict.reason,
            "verifier": verdict.verifier,
            "version": verdict.version,
            "isolation": verdict.isolation.value,
            "passed": verdict.passed,
            "expected": verdict.expected,
            "score": verdict.reward,
        },
    }


def _turn(message: Message) -> dict[str, Any]:
    """Only what the turn has: a reader of rows refuses fields that do not belong to its role."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {"name": call.name, "arguments": call.arguments, **({} if call.id is None else {"id": call.id})}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        turn["name"] = message.name
    return turn
