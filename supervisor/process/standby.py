"""The supervisor's side of a warm standby: start it, hand it an attempt, or end it."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from supervisor.process.priority import give_way
from supervisor.process.spawn import ExitStatus, TrainerProcess, kill_group
from supervisor.protocol.attempt import SPEC_VARIABLE
from supervisor.protocol.standby import MAX_MESSAGE, READY, STANDBY_VARIABLE, TAKEN

IMPORT_SECONDS = 30.0
"""How long a crash waits for a standby that is still importing: about what a launch from nothing takes at most."""
TAKE_SECONDS = 5.0
"""For a standby to say that it has taken the job; it takes milliseconds."""
END_SECONDS = 10.0
_POLL_SECONDS = 0.05


class StandbyLostError(Exception):
    """The standby did not take the job and is gone; ``str`` says why, as the end of a sentence."""


class Standby:
    """A trainer process that imports its stack and waits, of the lowest priority until it gets the job.

    Its environment names the attempt that it may become from the start (/proc/PID/environ cannot be changed later),
    so whoever looks for the processes of that attempt finds it and its children. It ends by itself when this
    process does. ``command`` and ``environment`` are those of a launch of that attempt.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], present: Path, log: Path) -> None:
        """``present``: the attempt.json of the running attempt. ``log``: gets the output until the job comes.

        Raises OSError when the program cannot be started.
        """
        self.command = list(command)
        self.environment = dict(environment)
        self.started = time.monotonic()
        self.is_ready = False
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, open(log, "wb") as output:
                self._popen = subprocess.Popen(
                    self.command,
                    env={**self.environment, STANDBY_VARIABLE: f"{theirs.fileno()}:{present}"},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=(theirs.fileno(),),
                )
        except BaseException:
            self._channel.close()
            raise
        self._restore_priority = give_way(self._popen.pid)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def ended(self) -> ExitStatus | None:
        """How it ended by itself, None while it lives. It is not reaped: its process group stays its own."""
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        exited = found.si_code == os.CLD_EXITED
        return ExitStatus(found.si_status if exited else None, None if exited else found.si_status)

    def ready(self) -> bool:
        """Has it imported everything?"""
        if not self.is_ready and self._readable(0):
            self.is_ready = self._receive() == READY
        return self.is_ready

    def serves(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Would a launch with this command and environment be the very process that is waiting here?"""
        return self.command == list(command) and self.environment == dict(environment)

    def take_over(self, stdout: Path, stderr: Path, hurry: Callable[[], bool]) -> TrainerProcess:
        """Hand it the attempt that its environment names. ``hurry``: whether to stop waiting for its imports.

        Raises StandbyLostError, after the standby was killed and reaped, and OSError when a log cannot be opened.
        """
        self._restore_priority()
        deadline = time.monotonic() + IMPORT_SECONDS
        while not self.ready():
            if (status := self.ended()) is not None:
                self._lose(f"it had ended ({status})")
            if hurry() or time.monotonic() > deadline:
                self._lose("it was not ready in time")
            time.sleep(_POLL_SECONDS)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptors: list[int] = []
        try:
            for path in (stdout, stderr):
                descriptors.append(os.open(path, flags, 0o644))
            message = os.fsencode(self.environment[SPEC_VARIABLE])
            socket.send_fds(self._channel, [message], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            self._lose("it had ended")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if not self._readable(TAKE_SECONDS) or self._receive() != TAKEN:
            self._lose("it did not answer")
        self._channel.close()
        return TrainerProcess(self._popen)

    def end(self) -> bool:
        """Kill it with everything in its group and reap it; False when it is stuck in the kernel."""
        self._channel.close()
        kill_group(self.pid)
        try:
            self._popen.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _lose(self, why: str) -> NoReturn:
        if not self.end():
            why += f", and process {self.pid} does not end even after SIGKILL"
        raise StandbyLostError(why)

    def _readable(self, seconds: float) -> bool:
        return bool(select.select([self._channel], [], [], seconds)[0])

    def _receive(self) -> bytes:
        try:
            return self._channel.recv(MAX_MESSAGE)
        except ConnectionResetError:
            return b""
