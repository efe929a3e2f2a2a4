"""A terminal that is written to without waiting: one that nobody reads (Ctrl-S, a stalled ssh) holds nothing up."""

from __future__ import annotations

import io
import os
import time
from typing import TextIO

DEFAULT_SIZE = (80, 24)


def is_live_terminal(stream: TextIO) -> bool:
    """Whether a screen can be drawn there: a terminal that moves its cursor."""
    return _isatty(stream) and os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """(columns, lines) of the terminal itself, else what COLUMNS and LINES say, else 80 x 24."""
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError, io.UnsupportedOperation):
        columns, lines = 0, 0
    return columns or _number("COLUMNS", DEFAULT_SIZE[0]), lines or _number("LINES", DEFAULT_SIZE[1])


class PatientTerminal(io.TextIOBase):
    """Text for the terminal that ``stream`` writes to. What it does not take at once waits here, in order.

    Raises OSError from :meth:`flush` when the terminal is gone. A terminal that cannot be opened a second time is
    written to through ``stream``.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waiting = b""
        try:
            # Of our own: O_NONBLOCK on the stream's would be everybody's who shares it, the shell's among them.
            self._fd = os.open(os.ttyname(stream.fileno()), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except (OSError, ValueError, io.UnsupportedOperation):
            self._fd = -1

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._stream, "encoding", None) or "utf-8"

    @property
    def busy(self) -> bool:
        """Something is waiting still; whoever draws leaves a picture out."""
        return bool(self._waiting)

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._fd < 0:
            return self._stream.write(text)
        self._waiting += text.encode(self.encoding, "replace")
        return len(text)

    def flush(self) -> None:
        if self._fd < 0:
            self._stream.flush()
            return
        while self._waiting:
            try:
                taken = os.write(self._fd, self._waiting)
            except BlockingIOError:
                return
            self._waiting = self._waiting[taken:]

    def drain(self, seconds: float) -> None:
        """Flush, waiting at most so long for the terminal to take everything; the rest is dropped."""
        until = time.monotonic() + seconds
        self.flush()
        while self._waiting and time.monotonic() < until:
            time.sleep(0.02)
            self.flush()
        self._waiting = b""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._waiting = b""


def _isatty(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() and 0 < int(text) < 10_000 else default
