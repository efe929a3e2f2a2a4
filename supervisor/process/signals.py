"""Signals to the supervisor: handlers only enqueue, the loop reads them when it is ready."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class SignalQueue:
    """While entered, the stop signals are collected instead of ending this process.

    A stop signal that was ignored before (``nohup``) stays ignored. Main thread only.
    """

    def __init__(self) -> None:
        self._pending: list[int] = []
        self._previous: dict[int, signal._HANDLER] = {}
        self._read = self._write = self._old_wakeup = -1

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._enqueue)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self._read)
        os.close(self._write)

    def _enqueue(self, number: int, frame: FrameType | None) -> None:
        self._pending.append(number)

    def pending(self) -> tuple[int, ...]:
        """The signals that the next :meth:`take` will return."""
        return tuple(self._pending)

    def take(self) -> list[int]:
        """The signals that came since the last call, oldest first."""
        taken, self._pending = self._pending, []
        return taken

    def wait(self, timeout: float, descriptors: Sequence[int] = ()) -> None:
        """Sleep until a signal comes, one of ``descriptors`` is readable, or ``timeout`` seconds passed."""
        poller = select.poll()
        for descriptor in (self._read, *descriptors):
            poller.register(descriptor, select.POLLIN)
        for descriptor, _ in poller.poll(max(timeout, 0) * 1000):
            if descriptor == self._read:
                os.read(self._read, 4096)
