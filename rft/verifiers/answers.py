"""What of a completion is judged: the whole text, a code block in it, or the prompt's code continued."""

from __future__ import annotations

from typing import Literal

from trainer.data.code_block import first_code_block

Take = Literal["answer", "code_block", "continuation"]
"""answer: the text as it is; code_block: its first fenced block; continuation: the task's ``prefix`` and the text."""

EMPTY_ANSWERS = ("", "```\n```\n")
"""What says nothing, with and without a block of code around it; a verifier has others as ``empty_answers``."""

MAX_COMPLETION = 1_000_000
"""Characters; nobody's answer is longer, and judging it would cost more than sampling it did."""


def taken(completion: str, take: Take, prefix: str = "") -> str | None:
    """What is judged; None when there is no code block, or one that is never closed."""
    if take == "answer":
        return completion
    if take == "continuation":
        return prefix + completion
    return first_code_block(completion)
