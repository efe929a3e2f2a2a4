"""The side of the tests: they run and are counted here, with stand-ins for what the program under test defines."""

from __future__ import annotations

import ast
import builtins
import contextlib
import doctest
import io
import json
import os
import random
import socket
import struct
import sys
import traceback
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rft.sandbox.inside.peer import Channel, GoneError, Peer, Remote, trace_of
from rft.sandbox.inside.values import MalformedError, NoValueError

LENGTH = struct.Struct(">I")
_FILE = "<tests>"
_MAX_RECEIVED, _MAX_SENT = 1 << 23, 1 << 26
_MAX_SHOWN = 400
_MAX_NAME = 60
_COUNT = "__mens_assertion_held__"
_DOCTEST = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.DONT_ACCEPT_TRUE_FOR_1
_RAISED = "Traceback (most recent call last):"


class TestsFault(Exception):
    """The tests cannot be run, whatever the program; a sentence."""


@dataclass(frozen=True)
class Step:
    """One counted test: code, and for an example the output that is expected of it."""

    text: str
    code: types.CodeType
    expected: str | None = None


@dataclass(frozen=True)
class Suite:
    """A task's tests, compiled. ``check``: the code that defines ``check``, instead of ``steps``. ``asserts``: how many
    assertions a run of ``check`` passes, None where that can't be told from its text. ``wanted``: names that the
    program has to or may define. ``shared``: classes of the prompt. ``withheld``: modules that the program must do
    without. ``source``: of ``check``."""

    prefix: types.CodeType | None
    setup: types.CodeType | None
    check: types.CodeType | None
    asserts: int | None
    steps: tuple[Step, ...]
    entry_point: str | None
    wanted: tuple[str, ...]
    shared: tuple[str, ...]
    withheld: tuple[str, ...]
    source: str


def prepared(text: str) -> Suite:
    """From the JSON of a check. Raises TestsFault."""
    data = json.loads(text)
    entry_point = data.get("entry_point")
    prefix = _prefix(data.get("prefix") or "") if entry_point else None
    defined = _names(prefix)[0] if prefix else set()
    setup = _parsed(data.get("setup") or "", "setup")
    bound, used = _names(setup)
    defined |= bound
    tests = data.get("tests") or []
    check = counted = None
    steps: list[Step] = []
    if isinstance(tests, str):
        check = _parsed(tests, "tests")
        bound, read = _names(check)
        defined |= bound
        used |= read
        counted = _straight_assertions(check)
        check = ast.fix_missing_locations(_Counting().visit(check))
    else:
        for test in tests:
            tree = _parsed(test, "tests")
            used |= _names(tree)[1]
            steps.append(Step(test, _compiled(tree)))
        for example in data.get("examples") or []:
            call = example["call"]
            tree = _parsed(call, "examples")
            used |= _names(tree)[1]
            try:
                code = compile(call, _FILE, "single")
            except SyntaxError:  # several lines
                code = compile(call, _FILE, "exec")
            steps.append(Step(call, code, example["expected"]))
    free = used - defined - set(dir(builtins)) - {entry_point}
    modules = free & sys.stdlib_module_names
    setup.body[:0] = [ast.Import([ast.alias(name)]) for name in sorted(modules)]
    ast.fix_missing_locations(setup)
    # With an entry point the program gives no other function: it could be one that the tests compare with.
    wanted = sorted(name for name in free - modules if not entry_point or name[0].isupper())
    if entry_point:
        wanted.append(entry_point)
    shared = [node.name for node in prefix.body if isinstance(node, ast.ClassDef)] if prefix else []
    return Suite(
        None if prefix is None else _compiled(prefix),
        _compiled(setup) if setup.body else None,
        None if check is None else _compiled(check),
        counted,
        tuple(steps),
        entry_point,
        tuple(wanted),
        tuple(name for name in shared if name != entry_point),
        tuple(data.get("unimportable") or ()),
        tests if isinstance(tests, str) else "",
    )


class Run:
    """One run of a suite against one program."""

    def __init__(self, suite: Suite, peer: Peer) -> None:
        self.suite, self.peer = suite, peer
        self.passed = 0
        self.names: dict[str, Any] = {"__name__": "tests", _COUNT: self._count}
        peer.print_theirs = lambda text: sys.stdout.write(text)

    def _count(self) -> None:
        self.passed += 1

    def verdict(self, source: str) -> dict[str, Any]:
        """``outcome``, ``reason``, ``diagnostic``, ``passed``, ``expected``."""
        suite = self.suite
        expected = suite.asserts if suite.check else len(suite.steps)
        try:
            self._run_ours(suite.prefix, "prefix")
            self.peer.codec.shared = {name: self.names[name] for name in suite.shared if name in self.names}
            try:
                defined = self.peer.ask("load", None, (source, suite.wanted, suite.shared, suite.withheld))
            except (GoneError, MalformedError, NoValueError):
                return self._ended(expected)
            except BaseException as error:  # noqa: BLE001  (the program's, told by its process)
                broken = isinstance(error, SyntaxError) and "exec(" not in self.peer.trace
                reason = "does not compile" if broken else f"raises {_name(error)} when loaded"
                return self._finding("rejected", reason, expected, self.peer.trace)
            if not isinstance(defined, dict):
                return self._finding("rejected", "breaks the protocol", expected)
            if suite.entry_point and suite.entry_point not in defined:
                return self._finding("rejected", "does not define the entry point", expected, suite.entry_point)
            # Only what was asked for: a program must not replace what the tests compare with.
            self.names.update({name: defined[name] for name in suite.wanted if name in defined})
            self._run_ours(suite.setup, "setup")
        except TestsFault as error:
            return self._finding("tests", "the tests cannot be run", expected, str(error))
        except BaseException as error:  # noqa: BLE001  (the program's, in the setup)
            return self._ended(expected) if self._troubled() else self._failed(error, expected)
        return self._check(expected) if suite.check else self._steps(expected)

    def _run_ours(self, code: types.CodeType | None, what: str) -> None:
        if code is None:
            return
        try:
            exec(code, self.names)
        except BaseException as error:
            if error is self.peer.error or self._troubled() or self.peer.last_call is not None:
                raise  # what the program has given may be to blame
            raise TestsFault(f"its {what} raises {type(error).__name__}: {error}") from error

    def _check(self, expected: int | None) -> dict[str, Any]:
        assert self.suite.check is not None
        try:
            exec(self.suite.check, self.names)
            if "check" in self.names:
                self.names["check"](self.names[self.suite.entry_point or ""])
        except BaseException as error:  # noqa: BLE001  (SystemExit as well: nothing but a counted pass is one)
            return self._ended(expected) if self._troubled() else self._failed(error, expected)
        if self._troubled():
            return self._ended(expected)
        if self.passed == 0 or (expected is not None and self.passed != expected):
            return self._finding("rejected", "not all tests were reached", expected)
        return self._finding("accepted", "all tests passed", self.passed)

    def _steps(self, expected: int | None) -> dict[str, Any]:
        first: dict[str, Any] | None = None
        for step in self.suite.steps:
            failure: dict[str, Any] | None = None
            try:
                if step.expected is None:
                    exec(step.code, self.names)
                else:
                    self._example(step)
            except BaseException as error:  # noqa: BLE001  (as above)
                failure = self._failed(error, expected, step)
            if self._troubled():
                return self._ended(expected) if first is None else first | {"passed": self.passed}
            if failure is None:
                self.passed += 1
            first = first or failure
        if first is not None:
            return first | {"passed": self.passed}
        return self._finding("accepted", "all tests passed", expected)

    def _example(self, step: Step) -> None:
        """Raises AssertionError."""
        wanted = step.expected or ""
        error: BaseException | None = None
        with _captured() as output:
            try:
                exec(step.code, self.names)
            except BaseException as raised:  # noqa: BLE001  (an example may expect it)
                error = raised
        if error is not None:
            if not wanted.startswith(_RAISED):
                raise error
            got = "".join(traceback.format_exception_only(type(error), error))
            wanted = wanted.rstrip("\n").rpartition("\n")[2]
        else:
            got = output.getvalue()
        if not _agrees(wanted, got):
            raise AssertionError(f"expected {_short(wanted.strip())}, got {_short(got.strip())}")

    def _troubled(self) -> bool:
        peer = self.peer
        return peer.lost is not None or peer.no_value is not None or peer.unsendable is not None

    def _ended(self, expected: int | None) -> dict[str, Any]:
        """What it means that the conversation with the program broke off."""
        peer = self.peer
        if peer.unsendable is not None:
            return self._finding("tests", "the tests cannot be run", expected, peer.unsendable)
        if peer.lost == "gone":
            return self._finding("rejected", "ends its process", expected)
        if peer.lost is not None:
            reason = "gives an answer that is too large" if peer.lost == "too large" else "breaks the protocol"
            return self._finding("rejected", reason, expected)
        return self._finding("rejected", "gives an answer that is no value", expected, peer.no_value or "")

    def _failed(self, error: BaseException, expected: int | None, step: Step | None = None) -> dict[str, Any]:
        if error is self.peer.error:
            return self._finding("rejected", f"raises {_name(error)}", expected, self.peer.trace)
        reason = "assertion failed" if isinstance(error, AssertionError) else f"test raises {_name(error)}"
        where = step.text if step is not None else self._line_of(error)
        lines = [_short(where), self._last_call(), _short(trace_of(error.with_traceback(None)))]
        return self._finding("rejected", reason, expected, "\n".join(line for line in lines if line).strip())

    def _line_of(self, error: BaseException) -> str:
        """The line of the tests that an exception comes from."""
        frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
        numbers = [frame.lineno for frame in frames if frame.filename == _FILE and frame.lineno]
        lines = self.suite.source.splitlines()
        return lines[numbers[-1] - 1].strip() if numbers and numbers[-1] <= len(lines) else ""

    def _last_call(self) -> str:
        if self.peer.last_call is None:
            return ""
        arguments, named = self.peer.last_call
        given = ", ".join([*map(_shown, arguments), *(f"{name}={_shown(value)}" for name, value in named.items())])
        return f"the last call, with ({_short(given)}), gave {_shown(self.peer.last_answer)}"

    def _finding(self, outcome: str, reason: str, expected: int | None, diagnostic: str = "") -> dict[str, Any]:
        return {
            "outcome": outcome,
            "reason": reason,
            "diagnostic": diagnostic,
            "passed": self.passed,
            "expected": expected,
        }


def main(control: int, check: str) -> None:
    """Judge programs by the tests of ``check`` (JSON), one after the other, as the socket ``control`` asks: a line of
    JSON with ``nonce`` and ``source``, its length before it and the socket of the program with it. The answer is what
    was found, with the nonce."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (until the process ends)
    suite: Suite | str
    try:
        suite = prepared(check)
    except TestsFault as error:
        suite = str(error)
    recursion = sys.getrecursionlimit()
    with socket.socket(fileno=control) as asked:
        while True:
            header, links, _, _ = socket.recv_fds(asked, LENGTH.size, 1)
            if len(header) < LENGTH.size or not links:
                return
            request = json.loads(received(asked, LENGTH.unpack(header)[0]))
            random.seed(0)  # the same completion gets the same verdict
            sys.setrecursionlimit(recursion)
            try:
                found = _judged(suite, request["source"], links[0])
            except Exception as error:  # noqa: BLE001  (a defect of the judge is no verdict)
                found = {"outcome": "machine", "reason": "the judge failed", "diagnostic": trace_of(error)}
            os.close(links[0])
            body = json.dumps(found | {"nonce": request["nonce"]}).encode()
            asked.sendall(LENGTH.pack(len(body)) + body)


def received(line: socket.socket, size: int) -> bytes:
    """So many bytes; fewer when the other side has ended."""
    pieces = []
    while size > 0 and (piece := line.recv(min(size, 1 << 20))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _judged(suite: Suite | str, source: str, link: int) -> dict[str, Any]:
    if isinstance(suite, str):
        return {"outcome": "tests", "reason": "the tests cannot be run", "diagnostic": suite}
    channel = Channel(link, _MAX_RECEIVED, _MAX_SENT)
    peer = Peer(channel, {"call": lambda thing, *arguments, **named: thing(*arguments, **named), "next": _next})
    try:
        channel.receive()
    except (GoneError, MalformedError):
        return {"outcome": "machine", "reason": "the program's process never began"}
    return Run(suite, peer).verdict(source)


def _next(thing: Any) -> Any:
    if not hasattr(type(thing), "__next__"):
        raise MalformedError
    return next(thing)


class _Counting(ast.NodeTransformer):
    """Counts every assertion that has held."""

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        call = ast.Expr(ast.Call(ast.Name(_COUNT, ast.Load()), [], []))
        return [node, ast.copy_location(call, node)]


def _straight_assertions(tree: ast.Module) -> int | None:
    """How many assertions there are, all in the body of ``check`` or outside, where each is reached; else None."""
    inner = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    places: list[ast.Module | ast.FunctionDef] = [tree, *inner[-1:]]
    own = [node for place in places for node in place.body if isinstance(node, ast.Assert)]
    everywhere = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    leaves_early = any(isinstance(node, ast.Return) for part in inner for node in ast.walk(part))
    return len(own) if len(own) == len(everywhere) and own and not leaves_early else None


def _parsed(text: str, what: str) -> ast.Module:
    try:
        return ast.parse(text, _FILE)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise TestsFault(f"its {what} do not compile: {error}") from error


def _compiled(tree: ast.Module) -> types.CodeType:
    return compile(tree, _FILE, "exec")


def _prefix(text: str) -> ast.Module | None:
    """The prompt's own code; it mostly ends inside a function."""
    for tail in ("", "\n    pass\n", "\n        pass\n"):
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            return ast.parse(text + tail, "<prompt>")
    return None


def _names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Names that the statements of a module define, and those that it reads and does not itself define."""
    bound: set[str] = set()
    read: set[str] = set()
    arguments: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Del):
                (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            arguments.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
    return bound, read - bound - arguments


@contextlib.contextmanager
def _captured() -> Iterator[io.StringIO]:
    output = io.StringIO()
    shown, sys.stdout, hook = sys.stdout, output, sys.displayhook
    sys.displayhook = lambda value: None if value is None else print(repr(value))  # noqa: T201
    try:
        yield output
    finally:
        sys.stdout, sys.displayhook = shown, hook


def _agrees(wanted: str, got: str) -> bool:
    """As doctest judges; or the same value in another writing (sets have no order)."""
    wanted, got = wanted.rstrip("\n") + "\n" if wanted else "", got.rstrip("\n") + "\n" if got else ""
    if doctest.OutputChecker().check_output(wanted, got, _DOCTEST):
        return True
    try:
        expected, value = ast.literal_eval(wanted.strip()), ast.literal_eval(got.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return type(expected) is type(value) and bool(expected == value)


def _name(error: BaseException) -> str:
    """Of its class, which the program may have named."""
    name = type(error).__name__
    return name if name.isidentifier() and len(name) <= _MAX_NAME else "an exception"


def _shown(value: Any) -> str:
    if isinstance(value, Remote):
        return "an object"
    try:
        return _short(repr(value))
    except Exception as error:  # noqa: BLE001  (its parts may be the program's)
        return f"what cannot be shown ({type(error).__name__})"


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
