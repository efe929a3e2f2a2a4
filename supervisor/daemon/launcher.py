"""Starting a job so that nothing that happens to the daemon happens to it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

UNIT_SOCKET = "MENS_SUP_JOB_SOCKET"
"""Names the socket behind which systemd starts a unit for each job."""
_MODULE = "supervisor.daemon.job_start"


class LaunchError(Exception):
    """A job cannot be started now; the text says why."""


class Launcher(Protocol):
    def start(self, state_dir: Path, entry: int, launch: int) -> int | None:
        """Have that launch begin; the pid if it is a child of ours. Raises LaunchError."""


class UnitLauncher:
    """Under systemd: it starts a service of its own for each connection to a socket.

    So a job has its own control group and limits, and the daemon needs no right to manage units.
    """

    def __init__(self, address: Path) -> None:
        self._address = address

    def start(self, state_dir: Path, entry: int, launch: int) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
                asked.settimeout(10)
                asked.connect(str(self._address))
                asked.sendall("\0".join((str(state_dir), str(entry), str(launch))).encode() + b"\n")
        except OSError as error:
            raise LaunchError(
                f"systemd cannot be asked for a unit at {self._address} ({error.strerror or error}). "
                "Look at `systemctl status mens-supervisor-jobs.socket`."
            ) from error


class SessionLauncher:
    """Elsewhere: a process in a session of its own, which outlives the daemon.

    Under systemd without our own units (``systemd-run mens-sup daemon``) it moves into a transient scope first, since
    stopping a service ends whatever is in its control group.
    """

    def __init__(self, prefix: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        self._prefix = tuple(prefix)
        self._environment = environment

    def start(self, state_dir: Path, entry: int, launch: int) -> int:
        command = [*self._prefix, sys.executable, "-P", "-m", _MODULE, str(state_dir), str(entry), str(launch)]
        try:
            started = subprocess.Popen(
                command,
                env=None if self._environment is None else dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"{command[0]} cannot be started: {error.strerror}") from error
        started.returncode = 0  # reaped by the runner, by its pid: this object shall not
        return started.pid


def find_launcher(environment: Mapping[str, str]) -> Launcher:
    """The one for where this daemon runs."""
    if address := environment.get(UNIT_SOCKET):
        return UnitLauncher(Path(address))
    if environment.get("INVOCATION_ID") and environment.get("NOTIFY_SOCKET") and (run := shutil.which("systemd-run")):
        whose = [] if os.geteuid() == 0 else ["--user"]
        return SessionLauncher([run, *whose, "--scope", "--collect", "--quiet", "--"])
    return SessionLauncher()
