"""Single keys from the terminal, without ever waiting for one."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
from types import TracebackType

_ESCAPED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
"""What cursor and function keys, and letters with Alt, send."""
_MOST_AT_ONCE = 3
"""Characters of one reading; more of them were pasted, and are no keys."""


class Keyboard:
    """While entered, keys come one by one and are not shown. Ctrl-C and Ctrl-Z mean what they always do.

    Without a terminal on standard input, and while this process is in the background, there are no keys.
    """

    def __init__(self) -> None:
        self._fd = -1
        self._before: list[object] = []

    def __enter__(self) -> Keyboard:
        try:
            fd = sys.stdin.fileno()
            self._before = termios.tcgetattr(fd)
        except (AttributeError, OSError, ValueError, termios.error):  # no standard input, or no terminal there
            return self
        self._fd = fd
        self._make_single()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def works(self) -> bool:
        """Whether a key would arrive now."""
        return self._foreground()

    @property
    def descriptor(self) -> int | None:
        """Readable when a key was pressed; None without keys."""
        return self._fd if self._foreground() else None

    def close(self) -> None:
        """Give the terminal back as it was."""
        if self._foreground():
            self._set(self._before)
        self._fd = -1

    def take(self) -> str:
        """The key pressed since the last call, empty for none."""
        if not self._foreground():
            return ""
        self._make_single()
        try:
            if not select.select([self._fd], [], [], 0)[0]:
                return ""
            given = os.read(self._fd, 1024)
        except OSError:
            given = b""
        if not given:  # the terminal has hung up
            self._fd = -1
            return ""
        typed = _ESCAPED.sub("", given.decode("utf-8", "replace"))
        return typed[-1] if typed and len(typed) <= _MOST_AT_ONCE else ""

    def _foreground(self) -> bool:
        """Whoever touches the terminal from the background is stopped by it."""
        try:
            return self._fd >= 0 and os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return False

    def _make_single(self) -> None:
        """Again and again: a shell sets its own mode when this process is suspended."""
        if not self._foreground():
            return
        try:
            now = termios.tcgetattr(self._fd)
        except termios.error:
            return
        if now[3] & (termios.ICANON | termios.ECHO):
            now[3] &= ~(termios.ICANON | termios.ECHO)
            now[6][termios.VMIN], now[6][termios.VTIME] = 1, 0
            self._set(now)

    def _set(self, attributes: list[object]) -> None:
        try:
            termios.tcsetattr(self._fd, termios.TCSANOW, attributes)  # type: ignore[arg-type]
        except termios.error:  # it has hung up
            self._fd = -1
