"""Python judged by a task's tests. What stands in a task's ``check.data`` is written down in docs/verifiers.md."""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StrictBool, StrictInt, StrictStr

from rft.config import JudgeSection
from rft.sandbox import pair
from rft.sandbox.inside import candidate, confine, peer, seccomp, tests, values, zygote
from rft.sandbox.judges import Judges
from rft.sandbox.pair import Finding, ProgramLimits
from rft.sandbox.probe import SandboxUnusableError, probe
from rft.sandbox.run import SandboxError
from rft.tasks.task import Task
from rft.verifiers.answers import MAX_COMPLETION
from rft.verifiers.folder_digest import folder_digest
from rft.verifiers.registry import Kind
from rft.verifiers.verdict import MAX_DIAGNOSTIC, Isolation, Outcome, Verdict
from rft.verifiers.verdicts import version_of
from rft.verifiers.verifier import VerifierUnusableError
from supervisor.redact import hide_secrets
from trainer.config import Section

NAME = "python_tests"
CODE_VERSION = 1
_MIB = 1 << 20
_MOST = 1 << 20
_KEYS = frozenset({"tests", "examples", "entry_point", "prefix", "setup", "format", "unimportable"})
_FENCED = re.compile(r"^[ \t]*```([^\n]*)\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_LANGUAGE = re.compile(r"[ \t]*([\w+-]*)")
_PYTHON = frozenset({"", "python", "py", "python3"})
_SELF_TEST = json.dumps({"tests": ["assert double(2) == 4"], "entry_point": "double"}, sort_keys=True)
_SELF_PROGRAM = "def double(x):\n    return 2 * x\n"
_OUTCOMES = {"accepted": Outcome.ACCEPTED, "rejected": Outcome.REJECTED, "timeout": Outcome.TIMEOUT}


class PythonTestsSettings(Section):
    seconds: Annotated[float, Field(gt=0, le=_MOST)] = 10.0
    """Wall time for all tests of a completion."""
    cpu_seconds: Annotated[StrictInt, Field(gt=0, le=_MOST)] = 4
    """Processor time of each of its processes."""
    memory_mib: Annotated[StrictInt, Field(gt=0, le=_MOST)] = 1024
    """Address space of each process; with control groups also the memory of all, files included."""
    tmp_mib: Annotated[StrictInt, Field(gt=0, le=_MOST)] = 64
    """What its only writable folder may hold."""
    files: Annotated[StrictInt, Field(gt=0, le=_MOST)] = 1000
    """How many files and folders that may be."""
    processes: Annotated[StrictInt, Field(gt=0, le=_MOST)] = 32
    """Processes and threads."""
    packages: list[StrictStr] = []
    """Folders with Python packages that completions and tests may import; else the standard library alone."""
    partial_credit: StrictBool = False
    """The score is the share of tests passed; accepted still needs all."""


def _located(settings: PythonTestsSettings, base: Path) -> PythonTestsSettings:
    packages = [str(base / Path(folder).expanduser()) for folder in settings.packages]
    return settings.model_copy(update={"packages": packages}) if packages else settings


def _problems_here(settings: PythonTestsSettings) -> list[str]:
    return [f"packages: {folder} is no folder" for folder in settings.packages if not Path(folder).is_dir()]


class PythonTests:
    """Runs a completion in one sandbox and the task's tests in another, which talk in values only."""

    name = NAME

    def __init__(self, settings: PythonTestsSettings, judge: JudgeSection) -> None:
        self._settings = settings
        self.isolation = Isolation(judge.isolation)
        limits = ProgramLimits(
            seconds=settings.seconds,
            cpu_seconds=settings.cpu_seconds,
            memory_bytes=settings.memory_mib * _MIB,
            processes=settings.processes,
            tmp_bytes=settings.tmp_mib * _MIB,
            files=settings.files,
        )
        workers = judge.workers or len(os.sched_getaffinity(0))
        packages = [os.path.abspath(folder) for folder in settings.packages]  # noqa: PTH100
        self._judges = Judges(workers, limits, self.isolation, packages)
        given = settings.model_dump(exclude={"packages"})
        self.version = version_of(CODE_VERSION, given, code_digest(), *map(folder_digest, packages))

    def open(self) -> None:
        """Raises VerifierUnusableError."""
        try:
            if self.isolation is Isolation.BUBBLEWRAP:
                probe()
            self._judges.open()
            finding = self._judges.judge(_SELF_TEST, _SELF_PROGRAM)
        except (SandboxUnusableError, SandboxError) as error:
            self.close()
            raise VerifierUnusableError(str(error)) from error
        if finding.outcome != "accepted":
            self.close()
            raise VerifierUnusableError(f"{NAME} rejects a right program: {finding.reason}. {finding.diagnostic}")

    def close(self) -> None:
        self._judges.close()

    def problem(self, task: Task) -> str | None:
        return data_problem(task.check.data)

    def judge(self, task: Task, completion: str) -> Verdict:
        begun = time.monotonic()
        data = task.check.data
        check = json.dumps({key: data[key] for key in data if key != "format"}, sort_keys=True)
        problem = _problem(check, data.get("format"))
        if problem is not None:
            return self._verdict(Finding("machine", "the tests cannot be run", problem), begun, ran=False)
        if len(completion) > MAX_COMPLETION:
            return self._verdict(Finding("rejected", "answer too long", f"{len(completion)} characters"), begun)
        source = program(completion, data)
        if source is None:
            return self._verdict(Finding("rejected", "has no code"), begun, ran=False)
        if "\0" in source or not _encodable(source):
            finding = Finding("rejected", "does not compile", "it has characters that no source can have")
            return self._verdict(finding, begun, ran=False)
        return self._verdict(self._found(check, source), begun)

    def _found(self, check: str, source: str) -> Finding:
        """A lost judge is tried again; one that is lost again by this completion, and not by a harmless one, was ended
        by it."""
        try:
            finding = self._judges.judge(check, source)
            if finding.outcome != "machine":
                return finding
        except SandboxError:
            pass  # the second attempt says what is wrong
        try:
            return self._judges.judge(check, source)
        except SandboxError as error:
            words = str(error)
        try:
            if self._judges.judge(_SELF_TEST, _SELF_PROGRAM).outcome == "accepted":
                return Finding("rejected", "ends its judge", words)
        except SandboxError as error:
            words = str(error)
        return Finding("machine", "the judge was lost", words)

    def _verdict(self, finding: Finding, begun: float, ran: bool = True) -> Verdict:
        outcome = _OUTCOMES.get(finding.outcome, Outcome.ERROR)
        score = None
        if self._settings.partial_credit and outcome is not Outcome.ERROR and finding.expected:
            score = (finding.passed or 0) / finding.expected
        return Verdict(
            outcome=outcome,
            reason=finding.reason,
            verifier=NAME,
            version=self.version,
            isolation=Isolation.NOT_RUN if finding.reason == "has no code" else self.isolation,
            diagnostic=_bounded(str(hide_secrets(finding.diagnostic))),
            passed=finding.passed,
            expected=finding.expected,
            score=score,
            seconds=time.monotonic() - begun,
        )


KIND = Kind(PythonTestsSettings, PythonTests, _located, _problems_here)


@functools.lru_cache(1024)
def _problem(check: str, form: str | None) -> str | None:
    """As :func:`data_problem`, which parses all tests; a task has many completions."""
    return data_problem(json.loads(check) | ({} if form is None else {"format": form}))


def data_problem(data: Mapping[str, Any]) -> str | None:
    """Why tests of this shape cannot be run; None when they can."""
    unknown = sorted(data.keys() - _KEYS)
    if unknown:
        return f"its check has no use for {', '.join(unknown)}; python_tests knows {', '.join(sorted(_KEYS))}."
    tests_, examples = data.get("tests") or [], data.get("examples") or []
    if not tests_ and not examples:
        return "its check has neither tests nor examples."
    if data.get("format", "answer") not in ("answer", "continuation"):
        return f"format must be answer or continuation, not {data['format']!r}."
    for key in ("entry_point", "prefix", "setup"):
        if data.get(key) is not None and not isinstance(data[key], str):
            return f"{key} must be a text."
    if data.get("entry_point") is not None and not str(data["entry_point"]).isidentifier():
        return f"entry_point {data['entry_point']!r} is no name."
    if isinstance(tests_, str):
        if examples:
            return "examples go with a list of tests, not with code that defines check()."
        if not data.get("entry_point"):
            return "tests that define check() need an entry_point."
    elif not isinstance(tests_, list) or not all(isinstance(test, str) for test in tests_):
        return "tests must be code that defines check(), or a list of statements."
    if not isinstance(examples, list) or not all(
        isinstance(example, dict) and example.keys() == {"call", "expected"} and all(map(_is_text, example.values()))
        for example in examples
    ):
        return 'examples must be a list of {"call": text, "expected": text}.'
    unimportable = data.get("unimportable", [])
    if not isinstance(unimportable, list) or not all(map(_is_text, unimportable)):
        return "unimportable must be a list of modules."
    if examples and not tests_ and not any(example["expected"].strip() for example in examples):
        return "none of its examples expects anything."
    try:
        parts = [tests_] if isinstance(tests_, str) else [*tests_, *(example["call"] for example in examples)]
        trees = [ast.parse(part) for part in [*parts, data.get("setup") or ""]]
    except (SyntaxError, ValueError, RecursionError) as error:
        return f"its tests do not compile: {error}."
    if isinstance(tests_, str) and not _asserts(trees[0]):
        return "its tests assert nothing."
    for test, tree in zip(tests_, trees, strict=False) if isinstance(tests_, list) else ():
        if not _asserts(tree):
            return f"this test asserts nothing: {test[:100]}"
    return None


def program(completion: str, data: Mapping[str, Any]) -> str | None:
    """The program that a completion makes; None when it has no code."""
    prefix = str(data.get("prefix") or "")
    if data.get("format", "answer") == "continuation":
        return prefix + completion
    entry_point = data.get("entry_point")
    blocks = [block for words, block in _FENCED.findall(completion) if _language(words) in _PYTHON]
    if blocks:
        defining = [number for number, block in enumerate(blocks) if _defines(block, entry_point)]
        if defining:  # what comes after is mostly how to use it
            return "\n".join(blocks[: defining[-1] + 1])
        return _joined(prefix, blocks[0])
    if not completion.strip():
        return None
    return completion if _defines(completion, entry_point) else _joined(prefix, completion)


def _joined(prefix: str, code: str) -> str:
    return f"{prefix}\n{code}" if prefix and not prefix[-1].isspace() else prefix + code


def _language(words: str) -> str:
    found = _LANGUAGE.match(words)
    return found[1].lower() if found else ""


def _defines(code: str, entry_point: str | None) -> bool:
    """Whether this is a program that defines it; any program when no name is asked for."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # Broken code that means to be the whole program is judged as such.
        return entry_point is not None and bool(re.search(rf"^(?:def|class) {re.escape(entry_point)}\b", code, re.M))
    if entry_point is None:
        return bool(tree.body)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == entry_point:
            return True
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == entry_point for target in node.targets
        ):
            return True
    return False


@functools.cache
def code_digest() -> str:
    """Of the modules that verdicts depend on, and of the Python that runs them."""
    digest = hashlib.sha256()
    for module in (candidate, confine, peer, seccomp, tests, values, zygote):
        digest.update(Path(str(module.__file__)).read_bytes())
    for file in (__file__, pair.__file__):
        digest.update(Path(file).read_bytes())
    digest.update(sys.version.encode())
    return digest.hexdigest()


def _asserts(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.Assert | ast.Raise) for node in ast.walk(tree))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bounded(text: str) -> str:
    half = MAX_DIAGNOSTIC // 2 - 3
    return text if len(text) <= MAX_DIAGNOSTIC else f"{text[:half]}\n...\n{text[-half:]}"
