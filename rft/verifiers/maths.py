"""The verifier ``maths``: the final answer of a worked solution has the value of the right one.

Check.data: ``{"answer": "3/4"}``. The text is read, never run (see :mod:`.maths_expression`).
"""

from __future__ import annotations

import time
from typing import Annotated, Literal

from pydantic import Field

from rft.config import JudgeSection
from rft.tasks.task import Task
from rft.verifiers.maths_answer import final_answer
from rft.verifiers.maths_equal import readable, same_answer
from rft.verifiers.registry import Kind
from rft.verifiers.verdict import Isolation, Verdict
from rft.verifiers.verdicts import Judgement, version_of
from trainer.config import Section

CODE_VERSION = 1
Rule = Literal["boxed", "tagged", "marked", "said", "last_number"]


class MathsSettings(Section):
    extract: Annotated[list[Rule], Field(min_length=1)] = ["boxed", "tagged", "marked", "said", "last_number"]
    r"""Where the final answer stands: the first of these that finds one. boxed: the last \boxed{}; tagged: the last
    <answer>; marked: after ####; said: after the last "answer is"; last_number: the last number."""
    relative_tolerance: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    """How far off a number may be, relative to the right one; 0 for exactly, so that 0.33 is not 1/3."""


class Maths:
    name = "maths"
    isolation = Isolation.NOT_RUN

    def __init__(self, settings: MathsSettings, judge: JudgeSection) -> None:
        self._settings = settings
        self.version = version_of(CODE_VERSION, settings.model_dump())
        self._say = Judgement(self.name, self.version, Isolation.NOT_RUN)

    def open(self) -> None:
        """There is nothing to start."""

    def close(self) -> None:
        """There is nothing to end."""

    def problem(self, task: Task) -> str | None:
        answer = task.check.data.get("answer")
        if not isinstance(answer, str) or not answer.strip():
            return 'check.data.answer is missing: it must be the right answer as text, such as "3/4"'
        if not readable(answer):
            return f"check.data.answer {answer[:80]!r} is neither an expression nor a text that could be compared"
        return None

    def judge(self, task: Task, completion: str) -> Verdict:
        began = time.monotonic()
        right = str(task.check.data["answer"])
        found = final_answer(completion, self._settings.extract)
        if found is None:
            return self._say.rejected("no final answer", seconds=time.monotonic() - began)
        rule, given = found
        same = same_answer(given, right, self._settings.relative_tolerance)
        seconds = time.monotonic() - began
        if same:
            return self._say.accepted(seconds=seconds)
        return self._say.rejected("wrong answer", f"{given!r} ({rule}) is not {right!r}", seconds=seconds)


KIND = Kind(MathsSettings, Maths)
