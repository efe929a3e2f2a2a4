"""The supervisor's writing into a run directory, which must survive a disk that fills up."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from supervisor.protocol.events import EventLog
from supervisor.protocol.paths import RunPaths
from supervisor.sensors.disk import FULL_ERRORS
from supervisor.state import RunState, write_state

RESERVE_BYTES = 128 * 1024
RESERVE_NAME = ".reserve"
"""Space held back so that the outcome can still be written when the disk is full."""
STATE_SECONDS = 2.0


class Journal:
    """Events and state of one run. What does not fit on a full disk is kept and written later.

    Other write errors are raised. ``full`` is True while something is waiting for space.
    """

    def __init__(self, paths: RunPaths, state: RunState) -> None:
        self.paths = paths
        self.state = state
        self.full = False
        self._log = EventLog(paths.events, "supervisor")
        self._left_out: dict[str, str | None] = {}
        self._waiting: list[tuple[str, str, int | None, int, dict[str, Any]]] = []
        self._written_at = 0.0
        self.hears: Callable[[str, str], None] | None = None
        """Told of every event, by its kind and message."""

    def event(self, kind: str, message: str = "", *, step: int | None = None, **data: Any) -> None:
        """Append an event of the present attempt."""
        if kind in self._left_out and self._left_out.pop(kind) in (message, None):
            return
        self._waiting.append((kind, message, step, self.state.attempt, data))
        self._flush()
        if self.hears is not None:
            self.hears(kind, message)

    def leave_out(self, kinds: Mapping[str, str | None]) -> None:
        """Do not write the next event of each of these kinds: its message, or any (None), is in the log already.

        A supervisor that died between an event and the state that belongs to it leaves such work to its successor.
        """
        self._left_out = dict(kinds)

    def save(self, *, force: bool = True) -> None:
        """Write state.json now, or with ``force=False`` only if the last time is 2 seconds ago."""
        if not force and time.monotonic() - self._written_at < STATE_SECONDS:
            return
        self.state.updated = time.time()
        self._written_at = time.monotonic()
        try:
            write_state(self.paths.state, self.state)
        except OSError as error:
            self._no_room(error)
        else:
            self._flush()

    def hold_reserve(self) -> None:
        """Lay the reserve aside. Raises OSError when not even that fits."""
        path = self.paths.root / RESERVE_NAME
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
        finally:
            os.close(fd)

    def use_reserve(self) -> None:
        """Give the reserve up and write what is waiting. Only while no trainer could take the space."""
        (self.paths.root / RESERVE_NAME).unlink(missing_ok=True)
        self.save()

    def _flush(self) -> None:
        while self._waiting:
            kind, message, step, attempt, data = self._waiting[0]
            self._log.attempt = attempt
            try:
                self._log.append(kind, message, step=step, **data)
            except OSError as error:
                self._no_room(error)
                return
            del self._waiting[0]
        self.full = False

    def _no_room(self, error: OSError) -> None:
        """Remember that the disk is full and say it once on the console; other errors are raised."""
        if error.errno not in FULL_ERRORS:
            raise error
        if not self.full:
            sys.stderr.write(
                f"warning: no room left in {self.paths.root} for the supervisor's own records; they wait in memory\n"
            )
        self.full = True
