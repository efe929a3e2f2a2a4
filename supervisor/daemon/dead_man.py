"""The daemon's own sign of life to a dead man's switch, given by its main loop: who hangs is silent."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from supervisor.config_sections import NotifySettings
from supervisor.notify import Teller

EVERY_SECONDS = 300.0
_log = logging.getLogger("mens-supervisor")


class DeadMan:
    """``file``: holds the addresses, one a line (see secret_file.py); None for none."""

    def __init__(self, file: Path | None, every_seconds: float = EVERY_SECONDS) -> None:
        self._settings = None if file is None else NotifySettings(ping_file=str(file))
        self._every = every_seconds
        self._teller = Teller(lambda sentence: _log.warning("%s", sentence))
        self._due = 0.0

    def tick(self) -> None:
        """Call it from the main loop; it waits for nothing."""
        if self._settings is None:
            return
        self._teller.look()
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every
            try:
                self._teller.ping(self._settings)
            except OSError as error:  # no room for a temporary file
                _log.warning("the dead man's switch was not told: %s", error.strerror)
