"""The last lines that a run's program has written, made fit for a screen."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.protocol.paths import AttemptPaths
from supervisor.redact import hide_secrets
from supervisor.view.text import clean

TAIL_BYTES = 32 * 1024


def last_lines(attempt: AttemptPaths, most: int) -> tuple[str, list[str]]:
    """The name of the log written last, and its last lines; harmless, and without secrets. No log: an empty name."""
    path = max((attempt.stderr, attempt.stdout), key=_written)
    if _written(path) < 0:
        return "", []
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return "", []
    lines = text.split("\n")
    if size > TAIL_BYTES:
        del lines[0]  # begun before what was read
    shown = [_seen(line) for line in lines]
    return path.name, [line for line in shown if line][-most:]


def _written(path: Path) -> int:
    """When something was last written there, -1 for nothing at all."""
    try:
        found = path.stat()
    except OSError:
        return -1
    return found.st_mtime_ns if found.st_size else -1


def _seen(line: str) -> str:
    """What a terminal would show of it in the end: progress bars go back to the beginning of their line."""
    last = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    return clean(str(hide_secrets(last))).rstrip()
