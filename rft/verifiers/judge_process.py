"""Judges that run beside the job: a few processes, each asked one thing at a time, started again when they die.

What is judged may hang, eat memory or kill its process: none of that reaches the job, whose threads only wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rft.verifiers.inside import judge_server
from rft.verifiers.verifier import VerifierUnusableError

START_SECONDS = 120.0
PATIENCE_SECONDS = 10.0
"""Beyond a request's own limit, until the process itself is given up."""
MAX_REPLY = 2_000_000


class JudgeTimeoutError(Exception):
    """The time of the request is used up."""


class JudgeLostError(Exception):
    """The judge came to no verdict, and not because of the completion; a sentence."""


class JudgeRaisedError(Exception):
    """The judging function raised; the text is its traceback."""


class JudgeDiedError(Exception):
    """The process that judged was ended by what it judged: a signal (negative) or an exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(signal.Signals(-code).name if code < 0 else f"exit code {code}")


class Running(Protocol):
    """A started judge; ``end`` kills it if it still lives, and waits."""

    def end(self) -> None: ...


Start = Callable[[socket.socket], Running]
"""Starts a judge that speaks on the socket, which it may keep open in its own process only."""


class JudgeProcesses:
    """Up to ``count`` judges. Threads may ask at the same time; each waits for one that is free."""

    def __init__(self, start: Start, count: int) -> None:
        self._start = start
        self._free: queue.SimpleQueue[_Judge | None] = queue.SimpleQueue()
        self._all: set[_Judge] = set()
        self._lock = threading.Lock()
        self._closed = False
        for _ in range(count):
            self._free.put(None)

    def open(self) -> None:
        """Start the first one, to see that it works. Raises VerifierUnusableError."""
        judge = self._free.get()
        try:
            judge = judge or self._started()
        except (JudgeLostError, OSError) as error:
            raise VerifierUnusableError(str(error)) from None
        finally:
            self._free.put(judge)

    def ask(self, value: Any, seconds: float, memory: int | None = None) -> Any:
        """What the judging function makes of ``value``. Raises JudgeTimeoutError, JudgeRaisedError, JudgeDiedError;
        JudgeLostError, after which the next request gets another process."""
        judge = self._free.get()
        alive: _Judge | None = None
        try:
            judge = judge or self._started()
            reply = judge.ask({"seconds": seconds, "memory": memory, "value": value}, seconds + PATIENCE_SECONDS)
            alive = judge
        except (OSError, ValueError) as error:
            raise JudgeLostError(f"the judging process is gone: {error}") from None
        finally:
            if alive is None and judge is not None:
                self._end(judge)
            self._free.put(alive)
        return _value(reply)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            judges = list(self._all)
        for judge in judges:
            self._end(judge)

    def _started(self) -> _Judge:
        ours, theirs = socket.socketpair()
        with self._lock:
            if self._closed:
                ours.close()
                theirs.close()
                raise JudgeLostError("the verifier is closed")
        with theirs:
            try:
                judge = _Judge(ours, self._start(theirs))
            except BaseException:
                ours.close()
                raise
        with self._lock:
            self._all.add(judge)
        try:
            ready = judge.receive(START_SECONDS)
        except (OSError, ValueError) as error:
            self._end(judge)
            raise JudgeLostError(f"the judging process did not start: {error}") from None
        if "raised" in ready:
            self._end(judge)
            raise JudgeLostError(f"the judge cannot be loaded: {str(ready['raised']).strip()}")
        return judge

    def _end(self, judge: _Judge) -> None:
        with self._lock:
            self._all.discard(judge)
        judge.end()


def _value(reply: dict[str, Any]) -> Any:
    if "value" in reply:
        return reply["value"]
    if reply.get("timeout"):
        raise JudgeTimeoutError
    if "raised" in reply:
        raise JudgeRaisedError(str(reply["raised"]))
    if isinstance(reply.get("died"), int):
        raise JudgeDiedError(reply["died"])
    raise JudgeLostError("the judging process answered with something that is no answer")


class _Judge:
    def __init__(self, connection: socket.socket, running: Running) -> None:
        self._connection, self._running = connection, running
        self._replies = connection.makefile("rb")

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        self._connection.settimeout(seconds)
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        return self.receive(seconds)

    def receive(self, seconds: float) -> dict[str, Any]:
        self._connection.settimeout(seconds)
        line = self._replies.readline(MAX_REPLY)
        if not line.endswith(b"\n"):
            raise ConnectionResetError("it ended")
        reply = json.loads(line)
        if not isinstance(reply, dict):
            raise ValueError("no object")
        if "lost" in reply:
            raise ConnectionResetError(str(reply["lost"]))
        return reply

    def end(self) -> None:
        with contextlib.suppress(OSError):  # it is gone already
            self._connection.shutdown(socket.SHUT_RDWR)
        self._running.end()
        self._replies.close()
        self._connection.close()


class _Process:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def beside(file: Path, name: str, argument: Any) -> Start:
    """A judge in a plain process of this interpreter, for functions that run nothing of what they judge."""

    def start(connection: socket.socket) -> Running:
        arguments = [str(connection.fileno()), str(file), name, json.dumps(argument)]
        process = subprocess.Popen(
            [sys.executable, "-I", judge_server.__file__, *arguments],
            env={"LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[connection.fileno()],
            start_new_session=True,
        )
        return _Process(process)

    return start
