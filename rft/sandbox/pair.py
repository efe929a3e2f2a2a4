"""A warm pair of sandboxes that judges programs by tests: in one the program runs, in the other its tests."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import rft.sandbox.inside
from rft.sandbox import bubblewrap, cgroup, cores
from rft.sandbox.inside.confine import Bounds
from rft.sandbox.inside.tests import LENGTH, received
from rft.sandbox.run import SandboxError
from rft.verifiers.verdict import Isolation

_MIB = 1 << 20
READY_SECONDS = 120.0
END_SECONDS = 20.0
_SOON_SECONDS = 0.25
"""After which a program counts as one that computes."""
_CPU_SLACK_SECONDS = 0.2
"""The kernel looks at processor time from tick to tick."""
_MAX_RUNS = 500
"""Of tests in one process."""
_TEMPLATE_BYTES = 128 * _MIB
"""What the warm interpreter itself takes of its group's memory."""
_TESTS_MEMORY = 2048 * _MIB
_TESTS_CPU_SECONDS = 3600
"""Tests are the task's; the clock on the wall bounds them."""


@dataclass(frozen=True)
class ProgramLimits:
    """What a program under test may use up: ``memory_bytes`` of address space for each process, and of real memory
    with its files for all where there are control groups; ``processes`` and threads; ``seconds`` for all its tests."""

    seconds: float
    cpu_seconds: int
    memory_bytes: int
    processes: int
    tmp_bytes: int
    files: int


@dataclass(frozen=True)
class Finding:
    """``outcome``: accepted, rejected, timeout, tests (they cannot be run), machine (no verdict)."""

    outcome: str
    reason: str
    diagnostic: str = ""
    passed: int | None = None
    expected: int | None = None


class LostError(SandboxError):
    """A warm sandbox has ended, or does not do what it is told."""


class Pair:
    """Judges one program at a time, each in new processes that nothing is left of. All share ``core`` until one of them
    computes."""

    def __init__(
        self,
        limits: ProgramLimits,
        isolation: Isolation,
        packages: Sequence[str],
        groups: cgroup.Groups,
        core: int,
        anywhere: Set[int],
    ) -> None:
        """Called by a process on ``core`` that may use ``anywhere``. Raises SandboxError."""
        self._limits = limits
        bare = isolation is Isolation.NONE
        program = Bounds(
            cpu_seconds=limits.cpu_seconds,
            address_space=limits.memory_bytes,
            processes=limits.processes,
            tmp_bytes=limits.tmp_bytes,
            files=limits.files,
            user=None,
            bare=bare,
            sockets=False,
        )
        tests = replace(program, cpu_seconds=_TESTS_CPU_SECONDS, address_space=_TESTS_MEMORY, processes=64)
        self._program = _Warm("program", program, packages, groups)
        self._check: str | None = None
        """Whose tests' process is alive."""
        self._core, self._anywhere = core, anywhere
        self._together = True
        self._asked = socket.socket(socket.AF_UNIX)
        self._runs = 0
        try:
            self._tests = _Warm("tests", tests, packages, groups)
        except BaseException:
            self._program.close()
            raise

    def close(self) -> None:
        self._asked.close()
        self._program.close()
        self._tests.close()

    def judge(self, check: str, source: str) -> Finding:
        """Raises LostError."""
        nonce = secrets.token_hex(16)
        request = json.dumps({"nonce": nonce, "source": source}).encode()
        deadline = time.monotonic() + self._limits.seconds
        if not self._together:
            self._run_on({self._core})
            self._together = True
        if check != self._check or self._runs >= _MAX_RUNS:
            self._begin_tests(check)
        self._runs += 1
        theirs, ours = socket.socketpair()
        try:
            self._program.begin(theirs)
            socket.send_fds(self._asked, [LENGTH.pack(len(request))], [ours.fileno()])
            self._asked.sendall(request)
        except OSError as error:
            raise LostError("the tests' process has ended") from error
        finally:
            theirs.close()
            ours.close()
        said = self._answer(deadline)
        program = self._program.end()
        if said is None:
            self._end_tests()
        elif not said:
            raise LostError(f"the tests' process ended with {self._tests.end()['code']} and no report")
        return _finding(said, nonce, program, self._limits, self._program.out_of_memory())

    def _run_on(self, allowed: Set[int]) -> None:
        for warm in (self._program, self._tests):
            cores.place(warm.process_id, allowed)

    def _begin_tests(self, check: str) -> None:
        """A new process for the tests of another task. Raises LostError."""
        self._end_tests()
        self._asked, theirs = socket.socketpair()
        with theirs:
            self._tests.begin(theirs, check)
        self._check, self._runs = check, 0

    def _end_tests(self) -> None:
        """Raises LostError."""
        if self._check is not None:
            self._check = None
            self._asked.close()
            self._tests.end()

    def _answer(self, deadline: float) -> bytes | None:
        """What the tests' process has found, nothing when it has ended; None when that takes too long."""
        waiting = select.poll()
        waiting.register(self._asked, select.POLLIN)
        patience = _SOON_SECONDS
        # Asked again and again, for a process that was being made meanwhile is easily missed.
        while not waiting.poll(patience * 1000) and time.monotonic() < deadline:
            self._run_on(self._anywhere)  # it computes, perhaps beside another that does
            self._together = False
            patience = min(2 * patience, max(0.0, deadline - time.monotonic()))
        try:
            self._asked.settimeout(max(0.001, deadline - time.monotonic()))
            header = received(self._asked, LENGTH.size)
            return received(self._asked, LENGTH.unpack(header)[0]) if len(header) == LENGTH.size else b""
        except TimeoutError:
            return None
        except ConnectionResetError:
            return b""


class _Warm:
    """A sandbox with a warm interpreter that makes a new process for each program, or for each run of tests."""

    def __init__(self, role: str, bounds: Bounds, packages: Sequence[str], groups: cgroup.Groups) -> None:
        self._groups = groups
        self._group = groups.take(
            bounds.address_space + bounds.tmp_bytes + _TEMPLATE_BYTES if bounds.address_space else _TESTS_MEMORY,
            bounds.processes + 8,
        ) if not bounds.bare else cgroup.Group()  # fmt: skip
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the sandbox)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = self._group.entering(_command(role, theirs.fileno(), bounds, packages))
            environment = {"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "LD_BIND_NOW": "1"}
            try:
                self._process = start_process(command, theirs, self._words, env=environment, cwd="/")
            except SandboxError:
                self._control.close()
                self._words.close()
                raise
        try:
            self._hear(READY_SECONDS)
        except LostError as error:
            self.close()
            raise SandboxError(f"a warm sandbox does not start: {error}") from error

    def begin(self, line: socket.socket, check: str | None = None) -> None:
        """Start a process that answers on ``line``; for tests, those of ``check``. Raises LostError."""
        try:
            if check is None:
                socket.send_fds(self._control, [b"begin"], [line.fileno()])
                return
            with os.fdopen(os.memfd_create("check"), "w+b", buffering=0) as file:
                file.write(check.encode())
                socket.send_fds(self._control, [b"begin"], [line.fileno(), file.fileno()])
        except OSError as error:
            raise LostError(last_words(self._process, self._words)) from error

    def end(self) -> dict[str, Any]:
        """Kill what was begun and all it has started, and tell how it ended. Raises LostError."""
        with contextlib.suppress(OSError):  # then there is no answer either
            self._control.send(b"end")
        answer = self._hear(END_SECONDS)
        if "machine" in answer:
            raise LostError(str(answer["machine"]))
        return answer

    @property
    def process_id(self) -> int:
        return self._process.pid

    def out_of_memory(self) -> bool:
        """Whether a process was killed for memory since this was last asked."""
        return self._group.ran_out_of_memory()

    def close(self) -> None:
        self._control.close()
        try:
            self._process.wait(END_SECONDS if self._process.poll() is None else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._words.close()
        self._groups.give_back(self._group)

    def _hear(self, seconds: float) -> dict[str, Any]:
        self._control.settimeout(seconds)
        try:
            message = self._control.recv(1 << 16)
        except TimeoutError:
            raise LostError("it does not answer") from None
        except OSError:
            message = b""
        if not message:
            raise LostError(last_words(self._process, self._words))
        answer: dict[str, Any] = json.loads(message)
        return answer


def start_process(
    command: Sequence[str], line: socket.socket, words: IO[bytes], **more: Any
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own that inherits ``line`` and writes what it complains of into ``words``.
    ``more``: arguments of Popen. Raises SandboxError."""
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=words,
            pass_fds=(line.fileno(),),
            start_new_session=True,
            **more,
        )
    except OSError as error:
        raise SandboxError(f"no process can be started: {error.strerror}") from error


def last_words(process: subprocess.Popen[bytes], words: IO[bytes]) -> str:
    """How a process has ended, with the last line of what it wrote into ``words``."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    words.seek(0)
    lines = words.read().decode(errors="replace").strip().splitlines()
    code = process.returncode
    ended = "it has ended" if code is None or code >= 0 else f"it was killed by {signal.Signals(-code).name}"
    return f"{ended}: {lines[-1]}" if lines else ended


def _command(role: str, control: int, bounds: Bounds, packages: Sequence[str]) -> list[str]:
    interpreter = bubblewrap.own_interpreter()
    root = str(Path(rft.sandbox.inside.__file__).parents[3]) if bounds.bare else bubblewrap.INSIDE
    start = f"import sys; sys.path.insert(0, {root!r}); from rft.sandbox.inside.zygote import main; main()"
    # -P -s -S: nothing but the interpreter's own library; -E would ignore the seed of hashes as well.
    program = [interpreter.program, "-P", "-s", "-S", "-B", "-c", start, role, str(control)]
    program += [json.dumps(asdict(bounds)), *packages]
    if bounds.bare:
        return program
    readable = [*interpreter.folders, *packages]
    return bubblewrap.command(program, readable=readable, whole_system=False, processes_visible=False)


def _finding(
    said: bytes | None,
    nonce: str,
    program: dict[str, Any],
    limits: ProgramLimits,
    out_of_memory: bool,
) -> Finding:
    """Raises LostError for a report that is none."""
    if said is not None:
        try:
            found = json.loads(said)
        except ValueError:
            raise LostError("the tests' process ended within its report") from None
        if found.get("nonce") != nonce:
            raise LostError("the report is not about this run")
        finding = Finding(
            found["outcome"], found["reason"], found.get("diagnostic", ""), found.get("passed"), found.get("expected")
        )
        # Counted by the tests' process and once more here: nothing but all of them is a pass.
        if finding.outcome == "accepted" and not (finding.passed and finding.passed == finding.expected):
            raise LostError("the report contradicts itself")
        if finding.reason != "ends its process":
            return finding
    killed = -program["code"] if program["code"] < 0 else None
    if killed == signal.SIGKILL and program["cpu"] >= limits.cpu_seconds - _CPU_SLACK_SECONDS:
        return Finding("timeout", "processor time used up", f"more than {limits.cpu_seconds} s of processor time")
    if said is None:
        return Finding("timeout", "time used up", f"no verdict after {limits.seconds:g} s")
    reason = _how(killed, out_of_memory)
    return Finding("rejected", reason, finding.diagnostic, finding.passed, finding.expected)


def _how(killed: int | None, out_of_memory: bool) -> str:
    """Which way a process ended before its tests did."""
    if out_of_memory:
        return "memory used up"
    if killed is None or killed == signal.SIGKILL:  # which may have been the judge's, a moment later
        return "ends its process"
    return f"crashes ({signal.Signals(killed).name})" if killed in _NAMED else "crashes"


_NAMED = frozenset(int(number) for number in signal.Signals)
