"""Whether the coordinator is there, and would believe this node: what never comes must not be waited for in silence."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path

LONGEST_SECONDS = 12 * 3600.0
"""Without the coordinator; a node then ends by itself."""
PROBE_SECONDS = 60.0
ANSWER_SECONDS = 5.0
MOST_AHEAD_SECONDS, MOST_BEHIND_SECONDS = 5, 305
"""Flower 1.42 refuses a call by a node whose clock is further off the coordinator's."""
MARGIN_SECONDS = 2.0
"""Of these: the front says its time in whole seconds."""


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


def distrust(host: str, port: int, authority: Path, clock: Callable[[], float] = time.time) -> str | None:
    """Why the coordinator and this node would refuse each other, by the front's certificate and the time it says.

    None when nothing is wrong with these, or nobody answers.
    """
    context = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection(host, port, timeout=ANSWER_SECONDS, context=context)
    try:
        connection.connect()
        began = clock()
        connection.request("GET", "/")
        date = parsedate_to_datetime(connection.getresponse().headers.get("Date", ""))
        ahead = (began + clock()) / 2 - date.timestamp() - 0.5
    except ssl.SSLCertVerificationError as error:
        return (
            f"the coordinator's certificate is not accepted ({error.verify_message}): this folder must be one that "
            f"its federate init has made, and this box's clock must be right"
        )
    except (OSError, http.client.HTTPException, ValueError):  # nobody, or somebody else
        return None
    finally:
        connection.close()
    if MARGIN_SECONDS - MOST_BEHIND_SECONDS < ahead < MOST_AHEAD_SECONDS - MARGIN_SECONDS:
        return None
    return (
        f"this box's clock is {abs(ahead):.0f} seconds {'ahead of' if ahead > 0 else 'behind'} the coordinator's, "
        f"which refuses a node {MOST_AHEAD_SECONDS} ahead or {MOST_BEHIND_SECONDS} behind: set both clocks, by NTP"
    )
