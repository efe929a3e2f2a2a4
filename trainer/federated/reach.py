"""Whether the coordinator has been there lately: a node must not wait for one that never comes back."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

LONGEST_SECONDS = 12 * 3600.0
"""Without the coordinator; a node then ends by itself."""
PROBE_SECONDS = 60.0
ANSWER_SECONDS = 5.0


class Reach:
    """Tries the coordinator's port once a minute."""

    def __init__(self, host: str, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = (host, port)
        self._clock = clock
        self._last = clock()
        self._due = 0.0

    def lost(self) -> bool:
        """Nobody has answered there for too long."""
        if self._clock() >= self._due:
            self._due = self._clock() + PROBE_SECONDS
            if self._answers():
                self._last = self._clock()
        return self._clock() - self._last > LONGEST_SECONDS

    def _answers(self) -> bool:
        try:
            with socket.create_connection(self._address, timeout=ANSWER_SECONDS):
                return True
        except OSError:
            return False
