"""Tasks and verifiers for tests of verifiers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rft.config import JudgeSection
from rft.tasks.task import Check, Task
from rft.verifiers.registry import build
from rft.verifiers.verifier import Verifier
from trainer.data.messages import Message


def task_of(verifier: str, data: Mapping[str, Any], **more: Any) -> Task:
    return Task("made/1", "made", (Message("user", "?"),), Check(verifier, dict(data)), **more)


@contextmanager
def opened(name: str, settings: Mapping[str, Any] | None = None, **judge: Any) -> Iterator[Verifier]:
    verifier = build(name, settings or {}, JudgeSection(workers=1, **judge))
    try:
        verifier.open()
        yield verifier
    finally:
        verifier.close()


def fenced(code: str) -> str:
    return f"Here it is:\n```\n{code}\n```\n"
