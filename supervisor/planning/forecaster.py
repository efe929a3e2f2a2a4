"""The program of a job kind that answers questions about a configuration, as a process with a deadline."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

import msgspec

from supervisor.protocol.forecast import DataForecast, MemoryForecast, Question
from supervisor.redact import hide_secrets

Answer = TypeVar("Answer", MemoryForecast, DataForecast)
LOOK_SECONDS = 0.5
LAST_WORDS = 2000
END_SECONDS = 5.0


class NoForecastError(Exception):
    """There is no answer; the text says why, as the end of a sentence."""


class Forecaster:
    """Started with the first question, ended on leaving. ``going_on`` is asked twice a second whether to wait on."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        patience_seconds: float,
        going_on: Callable[[], bool] = lambda: True,
    ) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self._patience = patience_seconds
        self._going_on = going_on
        self._process: subprocess.Popen[bytes] | None = None
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  # closed in __exit__
        self._buffer = b""

    def __enter__(self) -> Forecaster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()
        self._words.close()

    def memory(self, question: Question) -> MemoryForecast:
        """Raises NoForecastError."""
        return self._ask(question, MemoryForecast)

    def data(self, question: Question) -> DataForecast:
        """Raises NoForecastError."""
        return self._ask(question, DataForecast)

    def _ask(self, question: Question, kind: type[Answer]) -> Answer:
        until = time.monotonic() + self._patience
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(msgspec.json.encode(question) + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise NoForecastError(self._how_it_ended()) from None
        line = self._line(process, until)
        try:
            return msgspec.json.decode(line, type=kind)
        except msgspec.DecodeError as error:
            raise NoForecastError(f"its answer cannot be understood ({error})") from error

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                start_new_session=True,
            )
        except OSError as error:
            raise NoForecastError(f"{self._command[0]} cannot be started: {error.strerror}") from error
        return self._process

    def _line(self, process: subprocess.Popen[bytes], until: float) -> bytes:
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        while b"\n" not in self._buffer:
            if not self._going_on():
                self._end()
                raise NoForecastError("it was not waited for")
            left = until - time.monotonic()
            if left <= 0:
                self._end()
                raise NoForecastError(f"there was no answer within {self._patience:.0f} s")
            if not select.select([descriptor], [], [], min(left, LOOK_SECONDS))[0]:
                continue
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                raise NoForecastError(self._how_it_ended())
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _how_it_ended(self) -> str:
        process = self._process
        assert process is not None
        self._end(END_SECONDS)
        self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, self._words.tell() - LAST_WORDS))
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        said = f": {hide_secrets(lines[-1].strip())}" if lines else ""
        return f"its program ended with exit status {process.returncode}{said}"

    def _end(self, patience: float = LOOK_SECONDS) -> None:
        """It ends by itself when nobody asks any more, and is killed when that takes more than ``patience`` seconds."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # a question that it did not live to read
            process.stdin.close()
        process.stdout.close()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._buffer = b""
