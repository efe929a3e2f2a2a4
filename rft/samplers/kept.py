"""A program that cannot outlive this process: it runs below a keeper (:mod:`.keeper`)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rft.samplers import keeper

PATIENCE_SECONDS = 15.0
"""Beyond the grace, for the keeper to kill and reap what is left."""
TAIL_BYTES = 32 << 10


class Kept:
    """Start ``command``; its output is appended to ``log``. ``inherited``: descriptors that it gets.

    ``grace``: seconds between SIGTERM and SIGKILL when it is ended, also when this process dies. Raises OSError when
    the log cannot be opened or no process can be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        inherited: Sequence[int] = (),
        grace: float = 0.0,
    ) -> None:
        self._grace = grace
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._said = b""
        self._channel, theirs = socket.socketpair()
        with theirs, open(log, "ab") as output:
            self._log_start = output.tell()
            self._keeper = subprocess.Popen(
                [
                    sys.executable, "-I", "-S", keeper.__file__, str(grace),
                    ",".join(str(number) for number in inherited), "--", *command,
                ],
                env=dict(environment),
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                pass_fds=inherited,
                start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int | None:
        """Of the program; None until the keeper has said it."""
        self._listen()
        first = self._said.split(b"\n")[0]
        return int(first) if b"\n" in self._said else None

    def ended(self, patience: float = 0.0) -> str | None:
        """How it ended, in a few words; None while it runs, and still does after ``patience`` seconds."""
        try:
            self._keeper.wait(patience)
        except subprocess.TimeoutExpired:
            return None
        self._listen()
        lines = self._said.split(b"\n")
        if len(lines) < 3:
            return "was ended together with its keeper"
        status = int(lines[1])
        if status >= 0:
            return f"ended with exit code {status}"
        try:
            return f"was ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"was ended by signal {-status}"

    def close(self) -> None:
        """End it and everything it started; returns when nothing of it is left. May be called twice."""
        self._listen()
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)
        try:
            self._keeper.wait(self._grace + PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:  # a process in the kernel that no signal reaches
            self._keeper.kill()
            self._keeper.wait()
        self._channel.close()

    def tail(self, lines: int = 12) -> tuple[str, ...]:
        """The last lines that it wrote since it was started."""
        with open(self._log, "rb") as file:
            file.seek(max(self._log_start, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
        return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-lines:]

    def _listen(self) -> None:
        if self._channel.fileno() < 0:
            return
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while data := self._channel.recv(256, socket.MSG_DONTWAIT):
                self._said += data
