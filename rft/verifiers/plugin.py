"""The verifier ``python``: a class in a file of the user's, run in a sandbox.

``Class(settings)`` has ``judge(task, completion)``, which returns true or false, a score from 0 to 1 (accepted from 1),
or an object with ``accepted`` and perhaps ``score``, ``reason`` and ``diagnostic``; and perhaps ``problem(task)``, a
sentence when a task cannot be judged. A task is an object with id, messages, tools, data and metadata. Each judgement
happens in a process of its own, so nothing that it changes lasts.
"""

from __future__ import annotations

import ast
import hashlib
import time
from pathlib import Path
from typing import Any

import msgspec
from pydantic import StrictStr

from rft.config import JudgeSection
from rft.sandbox.probe import SandboxUnusableError
from rft.sandbox.run import Sandbox
from rft.tasks.task import Task
from rft.verifiers.answers import MAX_COMPLETION
from rft.verifiers.judge_in_sandbox import sandboxed
from rft.verifiers.judge_process import (
    JudgeDiedError,
    JudgeLostError,
    JudgeProcesses,
    JudgeRaisedError,
    JudgeTimeoutError,
)
from rft.verifiers.limits import isolation_of, judges_at_a_time
from rft.verifiers.registry import Kind
from rft.verifiers.verdict import Verdict
from rft.verifiers.verdicts import Judgement, timed, version_of
from rft.verifiers.verifier import VerifierUnusableError
from trainer.config import Count, Positive, Section

CODE_VERSION = 1
_WRAPPER = Path(__file__).parent / "inside" / "plugin_judge.py"
_FILE = "verifier_plugin.py"


class PluginSettings(Section):
    file: StrictStr
    """Python file with the class; it may import what is installed beside this program."""
    name: StrictStr
    """Name of the class."""
    settings: dict[StrictStr, Any] = {}
    """What the class is made with."""
    timeout_seconds: Positive = 10.0
    """For one judgement."""
    memory_mib: Count = 1024
    """Of one judgement."""


class Plugin:
    name = "python"

    def __init__(self, settings: PluginSettings, judge: JudgeSection) -> None:
        self._settings = settings
        self.isolation = isolation_of(judge)
        self._sandbox = Sandbox(self.isolation)
        source = Path(settings.file).read_bytes()
        argument = {"file": _FILE, "name": settings.name, "settings": settings.settings}
        files = {"plugin_judge.py": _WRAPPER.read_bytes(), _FILE: source}
        self._memory = settings.memory_mib << 20
        start = sandboxed(self._sandbox, "plugin_judge.py", "make", argument, files, 2 * self._memory)
        self._judges = JudgeProcesses(start, judges_at_a_time(judge))
        self.version = version_of(
            CODE_VERSION, settings.model_dump(exclude={"file"}), hashlib.sha256(source).hexdigest()
        )
        self._say = Judgement(self.name, self.version, self.isolation)

    def open(self) -> None:
        try:
            self._sandbox.open()
            self._judges.open()
        except SandboxUnusableError as error:
            raise VerifierUnusableError(str(error)) from None
        except VerifierUnusableError as error:
            raise VerifierUnusableError(f"The verifier {self._settings.file}: {error}") from None

    def close(self) -> None:
        self._judges.close()
        self._sandbox.close()

    def problem(self, task: Task) -> str | None:
        try:
            found = self._ask({"task": _plain(task)})
        except JudgeRaisedError as error:
            return f"problem() of {self._settings.name} raised: {_last_line(str(error))}"
        except (JudgeTimeoutError, JudgeDiedError, JudgeLostError):
            return None  # says nothing of the task; judging it will tell
        return None if found is None else str(found)

    def judge(self, task: Task, completion: str) -> Verdict:
        began = time.monotonic()
        return timed(self._judged(task, completion), began)

    def _judged(self, task: Task, completion: str) -> Verdict:
        if len(completion) > MAX_COMPLETION:
            return self._say.rejected("answer too long", f"{len(completion)} characters")
        try:
            found = self._ask({"task": _plain(task), "completion": completion})
        except JudgeTimeoutError:
            return self._say.timeout()
        except JudgeDiedError as error:
            return self._say.error(f"{self._settings.name} was ended by {error}")
        except JudgeRaisedError as error:
            return self._say.error(f"{self._settings.name} raised: {error}")
        except JudgeLostError as error:
            return self._say.error(str(error))
        score = found.get("score")
        if found["accepted"]:
            return self._say.accepted(score=score)
        return self._say.rejected(found.get("reason") or "rejected", found.get("diagnostic", ""), score=score)

    def _ask(self, request: dict[str, Any]) -> Any:
        return self._judges.ask(request, self._settings.timeout_seconds, self._memory)


def _plain(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "messages": msgspec.to_builtins(task.messages),
        "tools": list(task.tools),
        "data": task.check.data,
        "metadata": task.metadata,
    }


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else text


def _located(settings: PluginSettings, base: Path) -> PluginSettings:
    return settings.model_copy(update={"file": str(base / Path(settings.file).expanduser())})


def _problems(settings: PluginSettings) -> list[str]:
    try:
        tree = ast.parse(Path(settings.file).read_bytes())
    except OSError as error:
        return [f"file: {settings.file} cannot be read: {error.strerror}"]
    except (SyntaxError, ValueError) as error:
        return [f"file: {settings.file} is no Python: {error}"]
    names = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    if settings.name not in names:
        return [f"name: {settings.file} defines no {settings.name}; it has {', '.join(names) or 'nothing'}"]
    return []


KIND = Kind(PluginSettings, Plugin, _located, _problems)
