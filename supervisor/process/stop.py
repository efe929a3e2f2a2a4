"""Stopping a process with bounded patience: SIGTERM, then SIGABRT, then SIGKILL to its group."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.process.adopted import RunningTrainer
from supervisor.process.signals import SignalQueue

ABORT_SECONDS = 3.0
"""Between SIGABRT (a trainer with faulthandler dumps its stacks) and SIGKILL."""
KILL_SECONDS = 30.0
"""After SIGKILL; a process that lives longer is stuck in the kernel (state D)."""
STOP_TICK_SECONDS = 0.2
"""Between two looks at a trainer that is to end; its end itself is noticed at once."""


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


def press(process: RunningTrainer, stopper: Stopper, hurry: bool) -> None:
    """Send the signal that is due, if one is. Raises StuckProcessError when the process survived SIGKILL."""
    number = stopper.next_signal(time.monotonic(), hurry)
    if number is signal.SIGKILL:
        process.kill_group()
    elif number is not None:
        process.send(number)
        process.send(signal.SIGCONT)  # a stopped process heeds a signal only when it goes on
    if stopper.stuck(time.monotonic()):
        raise StuckProcessError(process.pid)


def stop_trainer(process: RunningTrainer, stopper: Stopper, signals: SignalQueue, hurry: Callable[[], bool]) -> None:
    """Press until it has ended; what is left of its group and its status are the caller's to see to.

    Raises StuckProcessError, and PermissionError when it is another user's.
    """
    while not process.ended():
        press(process, stopper, hurry())
        signals.wait(STOP_TICK_SECONDS, [process.pidfd])
