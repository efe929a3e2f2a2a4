"""Warm judges of programs by tests: a process for each, started when there is work for it."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO

import msgspec

from rft.sandbox import cores
from rft.sandbox.judge_host import Answer, Request, Settings, hear, say
from rft.sandbox.pair import END_SECONDS, READY_SECONDS, Finding, LostError, ProgramLimits, last_words, start_process
from rft.sandbox.run import SandboxError
from rft.verifiers.verdict import Isolation


class Judges:
    """``workers`` processes with a pair of sandboxes each; they judge one program at a time."""

    def __init__(
        self, workers: int, limits: ProgramLimits, isolation: Isolation, packages: Sequence[str] = ()
    ) -> None:
        self._settings, self._workers = Settings(limits, isolation, tuple(packages)), workers
        self._idle: list[_Host | None] = []
        self._all: set[_Host] = set()
        self._cores = cores.Cores()
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        # They die with the thread that has started them, so that needs to be one that lives as long as this.
        self._starter: ThreadPoolExecutor | None = None

    def open(self) -> None:
        """Raises SandboxError."""
        if self._starter is None:
            self._starter = ThreadPoolExecutor(1, thread_name_prefix="judges")
            first = self._new()
            self._idle = [*[None] * (self._workers - 1), first]  # the others are started when there is work for them

    def close(self) -> None:
        with self._lock:
            hosts, self._all = self._all, set()
            starter, self._starter = self._starter, None
        for host in hosts:
            host.close()
        if starter is not None:
            starter.shutdown()

    def judge(self, check: str, source: str) -> Finding:
        """The finding about ``source`` by the tests of ``check`` (JSON); waits for a free host. Raises SandboxError
        when the sandboxes cannot be started, LostError when they were lost on the way."""
        host = self._take(check)
        try:
            if host is None:
                host = self._new()
            finding = host.judge(check, source)
        except BaseException:
            self._discard(host)
            self._free(None)
            raise
        self._free(host)
        return finding

    def _take(self, check: str) -> _Host | None:
        """A free host, best one that has these tests already; None for a free place without one."""
        with self._freed:
            while not self._idle:
                self._freed.wait()
            known = [host for host in self._idle if host is not None and host.check == check]
            host = known[0] if known else self._idle[-1]
            self._idle.remove(host)
            return host

    def _free(self, host: _Host | None) -> None:
        with self._freed:
            self._idle.append(host) if host is not None else self._idle.insert(0, host)
            self._freed.notify()

    def _new(self) -> _Host:
        with self._lock:
            if self._starter is None:
                raise SandboxError("the judge is closed")
            starter = self._starter
        return starter.submit(self._started).result()

    def _started(self) -> _Host:
        host = _Host(self._settings, self._cores.least_used(other.core for other in self._all))
        with self._lock:
            self._all.add(host)
        return host

    def _discard(self, host: _Host | None) -> None:
        if host is not None:
            with self._lock:
                self._all.discard(host)
            host.close()


class _Host:
    def __init__(self, settings: Settings, core: int) -> None:
        """Raises SandboxError."""
        self.core = core
        self.check: str | None = None
        """The tests that it knows."""
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._line, theirs = socket.socketpair()
        # -P: what lies in the working directory is not imported.
        command = [sys.executable, "-P", "-m", "rft.sandbox.judge_host"]
        command += [str(theirs.fileno()), msgspec.json.encode(settings).decode(), str(core)]
        with theirs:
            try:
                self._process = start_process(command, theirs, self._words)
            except SandboxError:
                self._line.close()
                self._words.close()
                raise
        try:
            _wait_at_most(self._line, 2 * READY_SECONDS)
            self._hear()
        except LostError as error:
            self.close()
            raise SandboxError(str(error)) from error
        _wait_at_most(self._line, settings.limits.seconds + 3 * END_SECONDS)

    def judge(self, check: str, source: str) -> Finding:
        """Raises LostError."""
        request = Request(source) if check == self.check else Request(source, check)
        try:
            say(self._line, request)
        except OSError:
            raise LostError(last_words(self._process, self._words)) from None
        self.check = check
        finding = self._hear().finding
        if finding is None:
            raise LostError("a judge has answered nothing")
        return finding

    def close(self) -> None:
        self._process.terminate()  # whoever waits for its answer hears that the line has ended
        try:
            self._process.wait(2 * END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._line.close()
        self._words.close()

    def _hear(self) -> Answer:
        try:
            text = hear(self._line)
        except BlockingIOError:
            raise LostError("it does not answer") from None
        except OSError:
            text = b""
        if not text:
            raise LostError(last_words(self._process, self._words))
        answer = msgspec.json.decode(text, type=Answer)
        if answer.lost is not None:
            raise LostError(answer.lost)
        return answer


def _wait_at_most(line: socket.socket, seconds: float) -> None:
    """By the kernel, where Python would make two calls of each, and let other threads run at both."""
    for way in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        line.setsockopt(socket.SOL_SOCKET, way, struct.pack("ll", int(seconds) + 1, 0))
