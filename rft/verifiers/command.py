"""The verifier ``command``: any command on a file that holds the answer, in a sandbox of its own for each judgement.

Exit code 0 alone is never a pass; ``proof`` says what is (see :mod:`.command_settings`). Check.data: ``files``, path ->
text, of this task, which the answer cannot change; ``prefix`` for take continuation; ``must_contain``; for proof output
``cases``: ``[{"input", "output"}, ...]``. Diagnostics are those of the command itself.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rft.config import JudgeSection
from rft.sandbox.probe import SandboxUnusableError
from rft.sandbox.run import CannotStartError, Ran, Sandbox, SandboxError
from rft.tasks.task import Task
from rft.verifiers import compiler_messages, output_cases, pytest_proof
from rft.verifiers.answers import EMPTY_ANSWERS, MAX_COMPLETION, taken
from rft.verifiers.command_settings import FILE, CommandSettings, inner_path_problem, located, problems, project_files
from rft.verifiers.folder_digest import folder_digest
from rft.verifiers.limits import isolation_of
from rft.verifiers.registry import Kind
from rft.verifiers.tell_tales import tell_tale
from rft.verifiers.toolchain import NoProgramError, Program, find_program
from rft.verifiers.verdict import Outcome, Verdict
from rft.verifiers.verdicts import Judgement, timed, version_of
from rft.verifiers.verifier import VerifierUnusableError

CODE_VERSION = 1
_NOT_FOUND = (126, 127)
"""Exit codes by which a shell says that it could not start something: nothing was judged."""


class Command:
    name = "command"

    def __init__(self, settings: CommandSettings, judge: JudgeSection) -> None:
        self._settings = settings
        self.isolation = isolation_of(judge)
        self._sandbox = Sandbox(self.isolation)
        self._project = {} if settings.project is None else project_files(Path(settings.project), settings.file)
        self._programs = _programs(settings)
        digests = [f"{name} {_digest(content)}" for name, content in sorted(self._project.items())]
        digests += [program.digest for program in self._programs.values()]
        digests += map(folder_digest, settings.readable)
        self.version = version_of(CODE_VERSION, _judging(settings), *digests)
        self._say = Judgement(self.name, self.version, self.isolation)
        fenced = settings.take == "code_block"
        wrong = [f"```\n{text}\n```\n" if fenced else text for text in settings.must_reject]
        self.empty_answers = (*EMPTY_ANSWERS, *wrong)
        """What must not be accepted of any task; judged before sampling."""

    def open(self) -> None:
        try:
            self._sandbox.open()
        except SandboxUnusableError as error:
            raise VerifierUnusableError(str(error)) from None
        shown = " ".join(self._settings.command)
        if self._settings.proof == "static":
            self._check_that_nothing_runs(shown)
        for text in self._settings.must_accept:
            verdict = self._checked(text, {})
            if verdict.outcome is not Outcome.ACCEPTED:
                raise VerifierUnusableError(
                    f"The command {shown!r} does not accept what must_accept says is right ({verdict.reason}): "
                    f"{verdict.diagnostic or 'it says nothing'}"
                )
        for text in [*self._settings.must_reject, *([""] if self._settings.proof == "static" else [])]:
            verdict = self._checked(text, {})
            if verdict.outcome is Outcome.ACCEPTED and (text or not self._per_task):
                what = f"accepts {text[:80]!r}, which must_reject says is wrong" if text else "accepts an empty file"
                raise VerifierUnusableError(
                    f"The command {shown!r} {what}. What it accepts proves nothing: let must_contain or the project's "
                    "files ask for what an answer has to define."
                )
            if verdict.outcome is Outcome.ERROR:
                raise VerifierUnusableError(f"The command {shown!r} cannot judge: {verdict.diagnostic}")

    def _check_that_nothing_runs(self, shown: str) -> None:
        """Raises VerifierUnusableError when the command runs what it is to judge, whatever it is called."""
        mark = secrets.token_hex(16)
        program = tell_tale(self._settings.file, mark)
        if program is None:
            return
        try:
            files = {**self._project, self._settings.file: program.encode()}
            ran = self._run(self._argv(self._settings.command), files)
        except SandboxError as error:
            raise VerifierUnusableError(f"The command {shown!r} cannot judge: {error}.") from None
        if mark.encode() in ran.stdout + ran.stderr:
            raise VerifierUnusableError(
                f"The command {shown!r} runs the answer, whose exit code then proves nothing: it can end with 0 before "
                "any test. Use proof output with the task's cases, or proof pytest."
            )

    @property
    def _per_task(self) -> bool:
        """Whether only a task's own files make an empty answer wrong; each task is asked then."""
        return self._settings.proof == "static" and not self._settings.must_contain

    def close(self) -> None:
        self._sandbox.close()

    def problem(self, task: Task) -> str | None:
        data = task.check.data
        known = {"files", "prefix", "must_contain", "cases"}
        if unknown := sorted(data.keys() - known):
            return f"check.data has {', '.join(unknown)}; the verifier command has {', '.join(sorted(known))}"
        files = data.get("files", {})
        if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
            return "check.data.files must be an object of paths and texts"
        for path in files:
            if problem := inner_path_problem(path):
                return f"check.data.files: {problem}"
            if path == self._settings.file:
                return f"check.data.files has {path}, the file that holds the answer"
        if self._settings.take == "continuation" and not isinstance(data.get("prefix"), str):
            return "check.data.prefix is missing: take continuation puts the answer after it"
        if self._settings.proof == "output":
            return output_cases.problem(data.get("cases"))
        if "cases" in data:
            return "check.data.cases belongs to proof output"
        if self._settings.proof == "pytest":
            return pytest_proof.problem({**self._project, **_encoded(files)}, self._settings.file)
        return None

    def judge(self, task: Task, completion: str) -> Verdict:
        began = time.monotonic()
        return timed(self._judged(task.check.data, completion), began)

    def _judged(self, data: Mapping[str, Any], completion: str) -> Verdict:
        if len(completion) > MAX_COMPLETION:
            return self._say.rejected("answer too long", f"{len(completion)} characters")
        text = taken(completion, self._settings.take, str(data.get("prefix", "")))
        if text is None:
            return self._say.rejected("no code block")
        return self._checked(text, data)

    def _checked(self, text: str, data: Mapping[str, Any]) -> Verdict:
        for needed in [*self._settings.must_contain, *data.get("must_contain", [])]:
            if needed not in text:
                return self._say.rejected("lacks what it must contain", f"there is no {needed!r}")
        try:
            source = text.encode()
        except UnicodeEncodeError:
            return self._say.rejected("no valid text", "half of a surrogate pair")
        files = {**self._project, **_encoded(data.get("files", {}))}
        try:
            if self._settings.proof == "pytest":
                return self._tested(files, source)
            files[self._settings.file] = source
            if self._settings.proof == "output":
                return self._compared(files, data.get("cases") or [])
            return self._verdict(self._run(self._argv(self._settings.command), files))
        except CannotStartError as error:
            return self._say.error(f"{self._settings.command[0]}: {error}")
        except SandboxError as error:
            return self._say.error(str(error))

    def _verdict(self, ran: Ran) -> Verdict:
        """Of a command that does not run the answer."""
        if stopped := self._stopped(ran):
            return stopped
        diagnostic, code = compiler_messages.diagnostics(ran.stdout, ran.stderr)
        if ran.exit_code == 0:
            return self._say.accepted()
        if ran.exit_code in _NOT_FOUND:
            return self._say.error(f"exit code {ran.exit_code}: {diagnostic}")
        if ran.signal is not None:
            return self._say.rejected("the command crashed", f"signal {ran.signal}\n{diagnostic}")
        return self._say.rejected(f"error {code}" if code else f"exit code {ran.exit_code}", diagnostic)

    def _compared(self, files: dict[str, bytes], cases: Sequence[Mapping[str, str]]) -> Verdict:
        nonce = secrets.token_hex(16)
        script, inputs = output_cases.script(
            self._argv(self._settings.build), self._argv(self._settings.command), cases, nonce
        )
        ran = self._run(["/bin/sh", output_cases.SCRIPT], {**files, **inputs, output_cases.SCRIPT: script})
        passed, reason, diagnostic = output_cases.compare(ran.stdout, ran.stderr, cases, nonce)
        if stopped := self._stopped(ran, passed=passed, expected=len(cases)):
            return stopped
        if reason is None:
            return self._say.accepted(passed=passed, expected=len(cases))
        return self._say.rejected(reason, diagnostic, passed=passed, expected=len(cases))

    def _tested(self, files: dict[str, bytes], source: bytes) -> Verdict:
        program = self._programs[self._settings.command[0]]
        found = pytest_proof.run(
            self._sandbox,
            pytest_proof.python_of(program.path),
            self._settings.command[1:],
            Path(self._settings.file).stem,
            source,
            files,
            self._settings.limits.limits(),
            self._folders(),
            self._settings.environment,
        )
        counts = {"passed": found.passed, "expected": found.expected}
        if found.outcome is Outcome.ACCEPTED:
            return self._say.accepted(**counts)
        if found.outcome is Outcome.TIMEOUT:
            return self._say.timeout(found.diagnostic, **counts)
        if found.outcome is Outcome.ERROR:
            return self._say.error(found.diagnostic)
        return self._say.rejected(found.reason, found.diagnostic, **counts)

    def _stopped(self, ran: Ran, **more: Any) -> Verdict | None:
        said = (ran.stderr or ran.stdout).decode(errors="replace")
        if ran.timed_out:
            return self._say.timeout(said, **more)
        if ran.killed_for is not None:
            return self._say.rejected(f"used too much {ran.killed_for}", said, **more)
        return None

    def _run(self, argv: Sequence[str], files: Mapping[str, bytes]) -> Ran:
        return self._sandbox.run(
            argv, files, self._settings.limits.limits(), self._folders(), self._settings.environment
        )

    def _argv(self, command: Sequence[str]) -> list[str]:
        """The command with its program's real place and the file's name."""
        found = [part.replace(FILE, self._settings.file) for part in command]
        if command and command[0] in self._programs:
            found[0] = self._programs[command[0]].path
        return found

    def _folders(self) -> list[Path]:
        own = [folder for program in self._programs.values() for folder in program.folders]
        return list(dict.fromkeys([*own, *(Path(folder) for folder in self._settings.readable)]))


def _programs(settings: CommandSettings) -> dict[str, Program]:
    """Programs of this machine by the words that name them; what a build makes in the sandbox is none."""
    found = {}
    for word in [*settings.command[:1], *settings.build[:1], *settings.tools]:
        try:
            found[word] = find_program(word)
        except NoProgramError:
            continue  # such as ./prog; settings_problems told what should have been there
    return found


def _judging(settings: CommandSettings) -> dict[str, Any]:
    """What of the settings shapes verdicts on any machine: where things lie does not."""
    plain = settings.model_dump()
    plain["command"] = [Path(settings.command[0]).name, *settings.command[1:]]
    return {name: value for name, value in plain.items() if name not in ("project", "tools", "must_accept")}


def _encoded(files: Mapping[str, str]) -> dict[str, bytes]:
    return {path: text.encode("utf-8", "surrogatepass") for path, text in files.items()}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


KIND = Kind(CommandSettings, Command, located, problems)
