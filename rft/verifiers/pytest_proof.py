"""Judging a Python module by pytest, where the tests and the module are in two sandboxes.

pytest, the tests and what counts their passes run in one; the module that is judged runs in the other. They are joined
by one socket on which only values travel (see rft/sandbox/inside/values.py), so the module cannot reach the tests,
patch an assertion, skip, end the run or report a pass: it can only answer calls.
"""

from __future__ import annotations

import ast
import json
import secrets
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rft.sandbox import bubblewrap
from rft.sandbox.inside import confine
from rft.sandbox.run import Limits, Ran, Sandbox, SandboxError
from rft.verifiers.inside import pytest_side
from rft.verifiers.verdict import Isolation, Outcome

_SIDE = "mens_pytest_side.py"
_ANSWER = "ready(os.dup(0))()"
_NO_TESTS = 5
"""pytest's exit code when it has collected nothing."""


@dataclass(frozen=True)
class Found:
    """What pytest found; ``passed`` of ``expected`` tests that it had collected."""

    outcome: Outcome
    reason: str = ""
    diagnostic: str = ""
    passed: int | None = None
    expected: int | None = None


def problem(files: Mapping[str, bytes], judged: str) -> str | None:
    """Why a task's files hold no tests of the module ``judged``, in a sentence."""
    tests = [name for name in files if _is_test(Path(name).name)]
    if not tests:
        return "there is no test_*.py among check.data.files or the project's files, so there is nothing to pass"
    module = Path(judged).stem
    functions = uses = 0
    for name in tests:
        try:
            tree = ast.parse(files[name])
        except (SyntaxError, ValueError, RecursionError) as error:
            return f"{name} does not compile: {error}"
        functions += sum(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
            for node in ast.walk(tree)
        )
        uses += any(module in pytest_side.imported(node) for node in ast.walk(tree))
    if not functions:
        return "the test files define no function whose name begins with test, so there is nothing to pass"
    if not uses:
        return f"no test file imports {module}, so the tests do not look at the answer"
    return None


def _is_test(name: str) -> bool:
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def python_of(pytest: str) -> str:
    """The interpreter that a pytest belongs to."""
    beside = Path(pytest).parent / "python"
    return str(beside) if beside.exists() else sys.executable


def run(
    sandbox: Sandbox,
    python: str,
    arguments: Sequence[str],
    module: str,
    source: bytes,
    files: Mapping[str, bytes],
    limits: Limits,
    folders: Sequence[Path],
    environment: Mapping[str, str],
) -> Found:
    """Raises SandboxError when there is no verdict about the module."""
    nonce = secrets.token_hex(16)
    root = str(Path(confine.__file__).parents[3]) if sandbox.isolation is Isolation.NONE else bubblewrap.INSIDE
    spec = {"root": root, "module": module, "nonce": nonce, "arguments": list(arguments), "source": source.decode()}
    side = {_SIDE: Path(pytest_side.__file__).read_bytes(), "mens_spec.json": json.dumps(spec).encode()}
    ours, theirs = socket.socketpair()
    tests = [python, "-I", "-B", _SIDE]
    start = f"import os, sys; sys.path.insert(0, {root!r}); from rft.sandbox.inside.candidate import ready; {_ANSWER}"
    with ours, theirs:
        judged = _InThread(sandbox, [python, "-I", "-B", "-c", start], {}, limits, folders, environment, theirs)
        judging = _InThread(sandbox, tests, {**files, **side}, limits, folders, environment, ours)
        ours.close()
        theirs.close()
        ran, module_ran = judging.result(), judged.result()
    return _found(ran, module_ran, nonce)


class _InThread:
    """One command in the sandbox, on its own thread: it dies with the thread that started it."""

    def __init__(
        self,
        sandbox: Sandbox,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        limits: Limits,
        folders: Sequence[Path],
        environment: Mapping[str, str],
        connection: socket.socket,
    ) -> None:
        self._ran: Ran | SandboxError | None = None
        stdin = connection.dup()

        def work() -> None:
            with stdin:
                try:
                    self._ran = sandbox.run(argv, files, limits, folders, environment, stdin=stdin.fileno())
                except SandboxError as error:
                    self._ran = error

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def result(self) -> Ran:
        self._thread.join()
        if isinstance(self._ran, Ran):
            return self._ran
        raise self._ran or SandboxError("the thread of a sandbox died")


def _found(ran: Ran, module_ran: Ran, nonce: str) -> Found:
    shown = ran.stdout.decode(errors="replace")
    if ran.timed_out:
        return Found(Outcome.TIMEOUT, diagnostic=shown)
    if ran.killed_for is not None:
        return Found(Outcome.REJECTED, f"used too much {ran.killed_for}", shown)
    text, mark, report = shown.rpartition(f"\n{nonce} ")
    if not mark:
        words = (ran.stderr + b"\n" + module_ran.stderr).decode(errors="replace").strip() or shown.strip()
        return Found(Outcome.ERROR, diagnostic=f"pytest gave no report (exit code {ran.exit_code}): {words}")
    counted = json.loads(report)
    passed, expected = int(counted["passed"]), int(counted["expected"])
    text = text.strip()
    if counted["lost"] and module_ran.killed_for is not None:
        reason = (
            "used too much memory" if module_ran.killed_for == "memory" else f"used too much {module_ran.killed_for}"
        )
        return Found(Outcome.REJECTED, reason, text, passed, expected)
    if counted["trouble"]:
        return Found(Outcome.REJECTED, counted["trouble"], text, passed, expected)
    if counted["exit"] == _NO_TESTS or not expected:
        return Found(Outcome.REJECTED, counted["reason"] or "no test was collected", text, passed, expected)
    if passed == expected and counted["exit"] == 0 and ran.exit_code == 0:
        return Found(Outcome.ACCEPTED, passed=passed, expected=expected)
    return Found(Outcome.REJECTED, counted["reason"] or "tests failed", text, passed, expected)
