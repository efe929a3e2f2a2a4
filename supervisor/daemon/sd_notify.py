"""Telling systemd how the daemon is, as sd_notify(3) does: a datagram of assignments, nothing where nobody listens."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

MICROSECONDS = 1_000_000


class Notifier:
    """Talks to whoever started this process. Sending never blocks and never fails the daemon."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._socket: socket.socket | None = None
        self._status = ""
        address = environment.get("NOTIFY_SOCKET", "")
        if address[:1] in ("/", "@"):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
            self._address = f"\0{address[1:]}" if address[0] == "@" else address
        self.watchdog_seconds = _watchdog_seconds(environment) if self._socket else None
        """How long it may take from one ping to the next; None when nobody counts."""

    def ready(self) -> None:
        self._send("READY=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`; sent only when it has changed."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def alive(self) -> None:
        """The ping of the watchdog: only whoever does the work may send it."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def extend(self, seconds: float) -> None:
        """Starting or stopping takes that much longer from now on."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * MICROSECONDS)}")

    def _send(self, text: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(text.encode(), self._address)
        except OSError:
            return  # its queue is full, or systemd is being upgraded: the next ping comes in time


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    for_us = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    given = environment.get("WATCHDOG_USEC", "")
    return int(given) / MICROSECONDS if for_us and given.isdecimal() and int(given) > 0 else None
