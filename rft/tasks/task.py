"""A task: a prompt, how its completions are judged, and perhaps an answer known to be right. No torch."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from trainer.data.messages import Message


class Check(msgspec.Struct, frozen=True):
    """How completions of a task are judged.

    ``verifier`` is a name of :mod:`rft.verifiers.registry`, ``data`` is what it needs to know of this task, such as its
    tests or its right answer; JSON values only. What the model must not see stands here and never in the prompt.
    """

    verifier: str
    data: dict[str, Any]


class Task(msgspec.Struct, frozen=True):
    """One prompt to be sampled from.

    ``id`` is unique within a job and stays the same from run to run: ``SOURCE/KEY``. ``messages`` end with a user
    turn; ``tools`` are JSON Schemas for the chat template. ``gold`` is a completion that the verifier must accept,
    judged before a token is spent. ``cluster`` names what tasks have in common that are no independent evidence (the
    same file, the same generator and difficulty); by default the task itself. ``file``/``line`` say where it was read.
    """

    id: str
    source: str
    messages: tuple[Message, ...]
    check: Check
    tools: tuple[dict[str, Any], ...] = ()
    gold: str | None = None
    cluster: str | None = None
    metadata: dict[str, Any] = {}
    file: str = ""
    line: int = 0

    @property
    def digest(self) -> str:
        """SHA-256 over all that shapes samples and verdicts: prompt, tools and check; where it stands doesn't count."""
        return hashlib.sha256(msgspec.json.encode([self.messages, self.tools, self.check], order="sorted")).hexdigest()
