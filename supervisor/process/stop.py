"""Stopping a process with bounded patience: SIGTERM, then SIGABRT, then SIGKILL to its group."""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import dataclass

from supervisor.process.signals import SignalQueue
from supervisor.process.spawn import kill_group

ABORT_SECONDS = 3.0
"""Between SIGABRT (a trainer with faulthandler dumps its stacks) and SIGKILL."""
KILL_SECONDS = 30.0
"""After SIGKILL; a process that lives longer is stuck in the kernel (state D)."""


class StuckProcessError(Exception):
    """A process survived SIGKILL: only the kernel, a driver or a reboot can end it."""

    def __init__(self, pid: int) -> None:
        super().__init__(
            f"Process {pid} does not end even after SIGKILL: it is stuck inside the kernel (often a sick GPU driver or "
            "a dead network file system) and still holds its memory. Reboot the machine, then run it again "
            "with the same --run-dir; it goes on from its newest verified checkpoint."
        )
        self.pid = pid


@dataclass(frozen=True)
class StopPlan:
    """When which signal is due, in seconds since the stop was asked for."""

    grace_seconds: float
    abort_seconds: float = ABORT_SECONDS
    kill_seconds: float = KILL_SECONDS

    def due(self, elapsed: float, hurry: bool = False) -> signal.Signals:
        """The strongest signal due by now; ``hurry`` goes straight to SIGKILL."""
        if hurry or elapsed >= self.grace_seconds + self.abort_seconds:
            return signal.SIGKILL
        return signal.SIGABRT if elapsed >= self.grace_seconds else signal.SIGTERM


class Stopper:
    """Carries a :class:`StopPlan` out, one signal at a time; the caller brings the clock."""

    def __init__(self, plan: StopPlan, now: float) -> None:
        self.plan = plan
        self.started = now
        self.sent: signal.Signals | None = None
        self._killed_at: float | None = None

    def next_signal(self, now: float, hurry: bool = False) -> signal.Signals | None:
        """The signal to send now, or None. Each of the three is returned at most once."""
        due = self.plan.due(now - self.started, hurry or self._killed_at is not None)
        if due is self.sent:
            return None
        self.sent = due
        if due is signal.SIGKILL:
            self._killed_at = now
        return due

    def stuck(self, now: float) -> bool:
        return self._killed_at is not None and now - self._killed_at > self.plan.kill_seconds


def stop_stranger(pid: int, plan: StopPlan, signals: SignalQueue) -> signal.Signals | None:
    """Stop a trainer that is not our child; returns the strongest signal it took, None if it was gone.

    SIGINT among the pending signals hurries to the kill; they stay pending for the caller. Raises
    StuckProcessError when it survives SIGKILL and PermissionError when it is another user's.
    """
    try:
        pidfd = os.pidfd_open(pid)
        leads_group = os.getpgid(pid) == pid
    except ProcessLookupError:
        return None
    stopper = Stopper(plan, time.monotonic())
    try:
        while not _readable(pidfd):
            number = stopper.next_signal(time.monotonic(), hurry=signal.SIGINT in signals.pending())
            if number is not None:
                signal.pidfd_send_signal(pidfd, number)
            if stopper.stuck(time.monotonic()):
                raise StuckProcessError(pid)
            signals.wait(0.2, [pidfd])
    except ProcessLookupError:
        return stopper.sent
    finally:
        os.close(pidfd)
    if leads_group:
        kill_group(pid)
    return stopper.sent


def _readable(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])
