"""The verifier ``reasoning_gym``: the package's own scorers, on entries that it generated.

Check.data: ``{"dataset": "chain_sum", "params": {...}, "entry": {"question", "answer", "metadata"}}``. Some scorers
read the answer in ways that would run it: they work in a sandbox, and with readers that run nothing (see
inside/gym_judge.py).
"""

from __future__ import annotations

import importlib.metadata
import re
import threading
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rft.config import JudgeSection
from rft.sandbox.probe import SandboxUnusableError
from rft.sandbox.run import Sandbox
from rft.tasks import gym_package
from rft.tasks.task import Task
from rft.verifiers.judge_in_sandbox import sandboxed
from rft.verifiers.judge_process import (
    JudgeDiedError,
    JudgeLostError,
    JudgeProcesses,
    JudgeRaisedError,
    JudgeTimeoutError,
)
from rft.verifiers.limits import isolation_of, judges_at_a_time
from rft.verifiers.maths_answer import RULES
from rft.verifiers.registry import Kind
from rft.verifiers.verdict import Verdict
from rft.verifiers.verdicts import Judgement, timed, version_of
from rft.verifiers.verifier import VerifierUnusableError
from trainer.config import Positive, Section

CODE_VERSION = 1
MAX_ANSWER = 20_000
"""Characters of an extracted answer; scorers parse boards and lists, none needs so many."""
MEMORY = 1 << 30
_JUDGE = Path(__file__).parent / "inside" / "gym_judge.py"
_NO_NUMBER = re.compile(r"[\s\d.,+\-*/()ij]*(?:nan|inf(?:inity)?)(?:nan|inf|inity|[\s\d.,+\-*/()ij])*", re.IGNORECASE)
"""Not a number, or none that is finite: scorers compare it with a tolerance, which it can pass."""
Rule = Literal["tagged", "boxed", "last_line", "last_number", "whole"]


class ReasoningGymSettings(Section):
    extract: Annotated[list[Rule], Field(min_length=1)] = ["tagged", "last_line"]
    r"""Where the answer stands: the first of these that finds one. tagged: the last <answer>; boxed: the last \boxed{};
    last_line: the last line that is not blank, or as many lines as the right answer has; last_number: the last number
    of the text, where answers are numbers; whole: the text."""
    threshold: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    """Score from which an answer is accepted. Scorers give a little for answers that are wrong."""
    timeout_seconds: Positive = 10.0
    """For one answer."""


class ReasoningGym:
    name = "reasoning_gym"

    def __init__(self, settings: ReasoningGymSettings, judge: JudgeSection) -> None:
        self._settings = settings
        self.isolation = isolation_of(judge)
        self._sandbox = Sandbox(self.isolation)
        files = {"gym_judge.py": _JUDGE.read_bytes(), "gym_package.py": Path(gym_package.__file__).read_bytes()}
        start = sandboxed(self._sandbox, "gym_judge.py", "make", {"gym_package": "gym_package.py"}, files, 2 * MEMORY)
        self._judges = JudgeProcesses(start, judges_at_a_time(judge))
        self.version = version_of(CODE_VERSION, settings.model_dump(), _package_version())
        # Answers are only read; where matters when a reader can be fooled.
        self._say = Judgement(self.name, self.version, self.isolation)
        self._known: dict[str, str | None] = {}
        self._lock = threading.Lock()

    def open(self) -> None:
        if not _package_version():
            raise VerifierUnusableError(
                f"The verifier reasoning_gym needs the package reasoning-gym; {gym_package.INSTALL}."
            )
        try:
            self._sandbox.open()
        except SandboxUnusableError as error:
            raise VerifierUnusableError(str(error)) from None
        self._judges.open()

    def close(self) -> None:
        self._judges.close()
        self._sandbox.close()

    def problem(self, task: Task) -> str | None:
        data = task.check.data
        entry = data.get("entry")
        if not isinstance(entry, dict) or not isinstance(entry.get("question"), str):
            return (
                "check.data.entry is missing: it must be an entry of reasoning-gym with question, answer and metadata"
            )
        if not entry.get("answer") and not entry.get("metadata"):
            return "check.data.entry has neither answer nor metadata, so there is nothing to compare with"
        name = _dataset(data)
        if name is None:
            return "check.data.dataset, the name of the generator, is missing"
        key = repr((name, data.get("params") or {}))
        with self._lock:
            if key not in self._known:
                self._known[key] = self._generator_problem(name, data.get("params") or {})
            return self._known[key]

    def _generator_problem(self, name: str, params: dict[str, Any]) -> str | None:
        try:
            self._judges.ask({"dataset": name, "params": params}, self._settings.timeout_seconds)
        except JudgeRaisedError as error:
            return f"reasoning-gym has no such generator: {_last_line(str(error))}"
        except (JudgeLostError, JudgeTimeoutError, JudgeDiedError):
            return None  # says nothing of the task; judging it will tell
        return None

    def judge(self, task: Task, completion: str) -> Verdict:
        began = time.monotonic()
        return timed(self._judged(task, completion), began)

    def _judged(self, task: Task, completion: str) -> Verdict:
        data = task.check.data
        right = data["entry"].get("answer")
        lines = right.strip().count("\n") + 1 if isinstance(right, str) else 1
        answer = extracted(completion, self._settings.extract, lines)
        if answer is None:
            return self._say.rejected("no answer", score=0.0)
        if len(answer) > MAX_ANSWER:
            return self._say.rejected("answer too long", f"{len(answer)} characters", score=0.0)
        if _NO_NUMBER.fullmatch(answer) and not _NO_NUMBER.fullmatch(str(right)):
            return self._say.rejected("no number", answer[:100], score=0.0)
        request = {
            "dataset": _dataset(data),
            "params": data.get("params") or {},
            "entry": data["entry"],
            "answer": answer,
        }
        try:
            score = float(self._judges.ask(request, self._settings.timeout_seconds, MEMORY))
        except JudgeTimeoutError:
            return self._say.timeout()
        except JudgeDiedError as error:
            return self._say.rejected("used too much memory", f"scoring it ended with {error}", score=0.0)
        except JudgeRaisedError as error:
            # Scorers are meant to take any text; what they cannot read is not right.
            return self._say.rejected("unreadable answer", _last_line(str(error)), score=0.0)
        except JudgeLostError as error:
            return self._say.error(str(error))
        if score >= self._settings.threshold - 1e-9:
            return self._say.accepted(score=score)
        return self._say.rejected("wrong answer", f"{answer[:500]!r} scores {score:g}; right is {right!r}", score=score)


def extracted(completion: str, rules: list[Rule], lines: int = 1) -> str | None:
    """The answer by the first rule that finds one; ``lines``: how many the right answer has, such as a board."""
    for rule in rules:
        if rule == "whole":
            found: str | None = completion
        elif rule == "last_line":
            found = "\n".join(completion.rstrip().split("\n")[-lines:])
        else:
            found = RULES[rule](completion)
        if found is not None and found.strip():
            return found.strip()
    return None


def _dataset(data: dict[str, Any]) -> str | None:
    entry = data.get("entry")
    metadata = entry.get("metadata") if isinstance(entry, dict) else None
    name = data.get("dataset") or (metadata.get("source_dataset") if isinstance(metadata, dict) else None)
    return name if isinstance(name, str) else None


def _package_version() -> str:
    try:
        return importlib.metadata.version("reasoning-gym")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else text


KIND = Kind(ReasoningGymSettings, ReasoningGym)
