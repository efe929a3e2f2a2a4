"""The oracle: a command of the user's that judges one answer by its exit code. Verdicts are kept by content.

The command gets a bare environment, a folder of its own that is also its home, bounded processor time, file size and
wall time, and is ended with everything it started, also when the build ends (see :mod:`.oracle_keeper`). It is not a
sandbox: an oracle that *runs* answers trusts them.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Any

from supervisor.problems import InputError
from supervisor.protocol.manifest import digest_file
from trainer.data.build import oracle_keeper
from trainer.data.build.mix import FILE_PLACEHOLDER, OracleSection
from trainer.data.code_block import first_code_block

LOOK_AHEAD = 64
PATIENCE_SECONDS = 10.0
"""For a keeper to end what it runs, which takes milliseconds."""
_KEPT_VARIABLES = (
    "PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "RUSTUP_HOME", "CARGO_HOME", "GOROOT", "JAVA_HOME",
)  # fmt: skip
"""Where tools are found; none of them is a secret, though the files there may be."""
_OWN_FAULTS = frozenset(
    {
        signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGBUS, signal.SIGTRAP, signal.SIGSYS,
        signal.SIGPIPE,
    }
)  # fmt: skip
"""Signals that a command brings upon itself; any other is the machine's doing, or somebody else's."""
_SHELL_KILLED = 128 + signal.SIGKILL
"""Exit code by which a shell tells that what it ran was killed."""
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4


class Verdict(StrEnum):
    """PASS: exit code 0. FAIL: another one. NO_CODE: the answer has no code block to judge.

    TIMEOUT: ended. CRASH: the command died of its own fault. Neither says anything certain of the answer: another
    machine may come to a verdict.
    """

    PASS = "pass"
    FAIL = "fail"
    TIMEOUT = "timeout"
    CRASH = "crash"
    NO_CODE = "no_code"


UNDECIDED = (Verdict.TIMEOUT, Verdict.CRASH)


class OracleUnusableError(Exception):
    """The command cannot be started at all; one sentence."""


def taken(answer: str, section: OracleSection) -> str | None:
    """What is judged of an answer; None when it has no code block."""
    if section.take == "code_block":
        code = first_code_block(answer)
        return None if code is None else section.prepend + code
    return section.prepend + answer


class OracleMachineError(InputError):
    """The machine did not let the command come to a verdict."""


class Oracle:
    """Verdicts on answers, from the cache or from the command. Use as a context manager, in the main thread.

    Paths in the command that have a slash are relative to ``base``. Raises OracleUnusableError when the program does
    not exist or cannot be started, OracleMachineError, sqlite3.Error or OSError for the cache.
    """

    def __init__(self, section: OracleSection, cache: Path, base: Path) -> None:
        command = [located_argument(part, base) for part in section.command]
        program = shutil.which(command[0])
        if program is None:
            raise OracleUnusableError(f"the oracle's program {section.command[0]} is not on this machine")
        program = os.path.abspath(program)  # noqa: PTH100
        self.section = section
        self.from_cache = self._unsaved = 0
        self._identity = _identity([program, *command[1:]], section.suffix)
        cache.mkdir(parents=True, exist_ok=True)
        self._store = sqlite3.connect(cache / "oracle.sqlite", timeout=60)
        self._store.execute("CREATE TABLE IF NOT EXISTS verdicts (key BLOB PRIMARY KEY, verdict TEXT) WITHOUT ROWID")
        self._keepers = _Keepers([program, *command[1:]], section)
        self._at_once = len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self._at_once)

    def __enter__(self) -> Oracle:
        # A program that is not dumpable has an environment and a memory that other programs of its user cannot read.
        libc = ctypes.CDLL(None, use_errno=True)
        self._dumpable = libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._keepers.end()
            self._pool.shutdown(cancel_futures=True)
            with contextlib.suppress(sqlite3.Error):  # what is lost is asked again
                self._store.commit()
            self._store.close()
        finally:
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, self._dumpable, 0, 0, 0)

    def judge(self, answers: Iterable[str]) -> Iterator[Verdict]:
        """One verdict per answer, in order; some answers are judged at the same time."""
        waiting: deque[Verdict | tuple[bytes, Future[Verdict]]] = deque()
        running: dict[bytes, Future[Verdict]] = {}
        for answer in answers:
            waiting.append(self._ask(answer, running))
            if len(waiting) > max(LOOK_AHEAD, 2 * self._at_once):
                yield self._settle(waiting.popleft(), running)
        while waiting:
            yield self._settle(waiting.popleft(), running)

    def _ask(self, answer: str, running: dict[bytes, Future[Verdict]]) -> Verdict | tuple[bytes, Future[Verdict]]:
        text = taken(answer, self.section)
        if text is None:
            return Verdict.NO_CODE
        key = hashlib.sha256(self._identity + b"\0\0" + text.encode()).digest()
        if key not in running:
            known = self._store.execute("SELECT verdict FROM verdicts WHERE key = ?", (key,)).fetchone()
            if known:
                self.from_cache += 1
                return Verdict(known[0])
            running[key] = self._pool.submit(self._keepers.judge, text)
        return key, running[key]

    def _settle(
        self, entry: Verdict | tuple[bytes, Future[Verdict]], running: dict[bytes, Future[Verdict]]
    ) -> Verdict:
        if isinstance(entry, Verdict):
            return entry
        key, future = entry
        verdict = future.result()
        running.pop(key, None)
        if verdict not in UNDECIDED:
            self._store.execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?)", (key, verdict.value))
            self._unsaved += 1
            if self._unsaved >= LOOK_AHEAD:  # so that a build that is interrupted has not asked in vain
                self._store.commit()
                self._unsaved = 0
        return verdict


def located_argument(part: str, base: Path) -> str:
    """An argument that is a path with a slash, relative to ``base`` like every path of a mix; others as they are."""
    if "/" not in part or FILE_PLACEHOLDER in part:
        return part
    try:
        path = os.path.abspath(base / Path(part).expanduser())  # noqa: PTH100  (a link, such as a venv's python, stays)
    except RuntimeError:  # no such user's home
        return part
    return path if os.path.exists(path) else part  # noqa: PTH110  (Path's raises for what is too long to be a path)


def _identity(command: list[str], suffix: str) -> bytes:
    """The command and the content of every file that it names: another compiler or script may judge otherwise."""
    parts = [*command, suffix]
    for part in command:
        if "/" in part and Path(part).is_file():
            parts.append(digest_file(Path(part)).sha256)
    return "\0".join(parts).encode("utf-8", "surrogateescape")


class _Keepers:
    """One process for every command that runs at a time, started when it is first needed."""

    def __init__(self, command: list[str], section: OracleSection) -> None:
        self._section = section
        self._request = {
            "command": command,
            "placeholder": FILE_PLACEHOLDER,
            "suffix": section.suffix,
            "seconds": section.timeout_seconds,
            "temporary": tempfile.gettempdir(),
        }
        self._lock = threading.Lock()
        self._idle: list[_Keeper] = []
        self._all: list[_Keeper] = []
        self._ended = False

    def judge(self, text: str) -> Verdict:
        """Raises OracleUnusableError, OracleMachineError."""
        with self._lock:
            if self._ended:
                raise OracleMachineError("The build is ending.")
            if not self._idle:
                self._all.append(_Keeper())
                self._idle.append(self._all[-1])
            keeper = self._idle.pop()
        reply = keeper.ask(self._request | {"text": text})
        with self._lock:
            self._idle.append(keeper)
        return _verdict(reply, self._section)

    def end(self) -> None:
        """End the commands that run, and whatever they started."""
        with self._lock:
            self._ended = True
        for keeper in self._all:
            keeper.leave()
        for keeper in self._all:
            keeper.end()


class _Keeper:
    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", oracle_keeper.__file__],
                env=_environment(),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # so that an interrupt reaches only us
            )
        self._replies = self._socket.makefile("rb")

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            if line := self._replies.readline():
                reply: dict[str, Any] = json.loads(line)
                return reply
        raise OracleMachineError(
            "The process that runs the oracle was killed, mostly for want of memory. Free memory and build again."
        )

    def leave(self) -> None:
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._socket.close()


def _environment() -> dict[str, str]:
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    for name, place in (("RUSTUP_HOME", ".rustup"), ("CARGO_HOME", ".cargo")):
        # rustc is a proxy that finds its toolchain below the user's home, which it does not get.
        if name not in environment and (Path.home() / place).is_dir():
            environment[name] = str(Path.home() / place)
    return environment


def _verdict(reply: dict[str, Any], section: OracleSection) -> Verdict:
    """Raises OracleUnusableError, OracleMachineError."""
    if "unusable" in reply:
        raise OracleUnusableError(f"the oracle {section.command[0]} cannot be started: {reply['unusable']}")
    if "machine" in reply:
        raise OracleMachineError(f"The oracle came to no verdict: {reply['machine']}. Make room and build again.")
    code = 0 if "timeout" in reply else int(reply["code"])
    if "timeout" in reply or -code == signal.SIGXCPU:
        return Verdict.TIMEOUT
    if -code in _OWN_FAULTS:
        return Verdict.CRASH
    if -code == signal.SIGXFSZ:  # it wrote more than it may, here as on any machine
        return Verdict.FAIL
    if code < 0 or code == _SHELL_KILLED:
        number = int(signal.SIGKILL) if code > 0 else -code
        raise OracleMachineError(
            f"The oracle {section.command[0]} was killed from outside (signal {number}) and came to no verdict, "
            "mostly for want of memory. Free memory and build again; verdicts so far are kept."
        )
    return Verdict.PASS if code == 0 else Verdict.FAIL
