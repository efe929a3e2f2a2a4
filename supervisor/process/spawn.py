"""Start a trainer in a session of its own and hold on to it by a pidfd."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ExitStatus:
    """How a process ended: one of the two is set, or none when nobody could tell us (it was not our child)."""

    code: int | None
    signal: int | None

    def __str__(self) -> str:
        if self.signal is None:
            return "exit status unknown" if self.code is None else f"exit code {self.code}"
        try:
            return f"signal {signal.Signals(self.signal).name}"
        except ValueError:
            return f"signal {self.signal}"


class TrainerProcess:
    """A running trainer: leader of its own session and process group.

    ``pidfd`` becomes readable when it has ended; the process stays a zombie (its pid and group
    cannot be reused) until :meth:`reap`.
    """

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.pid = popen.pid
        self.pidfd = os.pidfd_open(popen.pid)

    def ended(self) -> bool:
        """True once it has ended, without reaping it."""
        return os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def send(self, number: int) -> None:
        """Signal the trainer alone. Nothing happens when it has ended already."""
        if not self.ended():
            signal.pidfd_send_signal(self.pidfd, number)

    def kill_group(self) -> None:
        """SIGKILL to everybody in the trainer's process group."""
        kill_group(self.pid)

    def reap(self) -> ExitStatus:
        """Collect the exit status of an ended trainer and forget it."""
        code = self._popen.wait()
        os.close(self.pidfd)
        return ExitStatus(None, -code) if code < 0 else ExitStatus(code, None)


def kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def spawn_trainer(
    command: Sequence[str],
    environment: Mapping[str, str],
    stdout: Path,
    stderr: Path,
    *,
    folder: Path | None = None,
    inherited: Sequence[int] = (),
) -> TrainerProcess:
    """Run ``command`` detached from our terminal and session, its output going straight to files.

    ``folder``: where it runs, None for our own folder. ``inherited``: descriptors that it gets besides.
    Raises OSError when the program cannot be started or a log cannot be opened.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    out = os.open(stdout, flags, 0o644)
    try:
        err = os.open(stderr, flags, 0o644)
        try:
            popen = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                close_fds=True,
                cwd=folder,
                pass_fds=inherited,
            )
        finally:
            os.close(err)
    finally:
        os.close(out)
    return TrainerProcess(popen)
