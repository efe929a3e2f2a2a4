"""A running trainer that another supervisor started: ours to watch and to end, but not our child."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import Protocol

from supervisor.process.identity import Identity, read_stat, still_lives
from supervisor.process.spawn import ExitStatus


class RunningTrainer(Protocol):
    """What the supervisor needs of a trainer, however it came by it. ``pidfd`` is readable once it has ended."""

    pid: int
    pidfd: int

    def ended(self) -> bool: ...
    def send(self, number: int) -> None: ...
    def kill_group(self) -> None: ...
    def reap(self) -> ExitStatus: ...


class AdoptedProcess:
    """The same interface as ``TrainerProcess``. How it ended only its parent is told: the status is unknown.

    Raises ProcessLookupError when the process of ``identity`` does not live any more.
    """

    def __init__(self, identity: Identity) -> None:
        self.pid = identity.pid
        self._identity = identity
        self.pidfd = os.pidfd_open(identity.pid)
        if not still_lives(identity):  # looked at only now: the descriptor can't change hands any more
            os.close(self.pidfd)
            raise ProcessLookupError(identity.pid)

    def ended(self) -> bool:
        return bool(select.select([self.pidfd], [], [], 0)[0])

    def send(self, number: int) -> None:
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:  # ended meanwhile, and reaped by its parent
            return

    def kill_group(self) -> None:
        """SIGKILL to its process group, unless its number belongs to somebody else by now.

        A group's number is not given out again while the group has a member, so a leader of the same number
        that started at another time means that nobody of ours is left.
        """
        leader = read_stat(self.pid)
        if leader is not None and leader.start_ticks != self._identity.start_ticks:
            return
        for member in _members(self.pid):
            try:
                os.kill(member, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue

    def reap(self) -> ExitStatus:
        """Its status, known only where it happens to be our child (the same process took the run up again)."""
        try:
            found = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            found = None
        os.close(self.pidfd)
        if found is None:
            return ExitStatus(None, None)
        if found.si_code == os.CLD_EXITED:
            return ExitStatus(found.si_status, None)
        return ExitStatus(None, found.si_status)


def _members(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := read_stat(int(entry.name))) is not None and stat.group == group:
            found.append(int(entry.name))
    return found
