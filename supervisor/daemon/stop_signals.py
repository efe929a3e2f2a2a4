"""Signals to the daemon: handlers only take note, the main loop asks."""

from __future__ import annotations

import os
import select
import signal
from collections import Counter
from collections.abc import Sequence
from types import FrameType, TracebackType


class DaemonSignals:
    """SIGTERM and SIGINT stop, a second SIGINT leaves everything running, SIGHUP reloads. Main thread only."""

    _numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self) -> None:
        self._came: Counter[int] = Counter()
        self._previous: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> DaemonSignals:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in self._numbers:
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self._read)
        os.close(self._write)

    @property
    def stop(self) -> bool:
        return self._came[signal.SIGTERM] + self._came[signal.SIGINT] > 0

    @property
    def leave(self) -> bool:
        return self._came[signal.SIGINT] > 1

    @property
    def reload(self) -> bool:
        return self._came[signal.SIGHUP] > 0 and not self.stop

    def wait(self, seconds: float, descriptors: Sequence[int]) -> None:
        """Sleep until a signal comes, a descriptor is readable, or the time has passed."""
        poller = select.poll()
        for descriptor in (self._read, *descriptors):
            poller.register(descriptor, select.POLLIN)
        for descriptor, _ in poller.poll(max(seconds, 0) * 1000):
            if descriptor == self._read:
                os.read(self._read, 4096)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came[number] += 1
