"""Collect the evidence that an ended attempt left in its folder."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.diagnosis.loglines import clean_text

TAIL_BYTES = 256 * 1024


def log_tail(path: Path, limit: int = TAIL_BYTES) -> str:
    """The last ``limit`` bytes of a log as clean text; empty when there is no log."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - limit, 0))
            data = file.read(limit)
    except FileNotFoundError:
        return ""
    return clean_text(data.decode(errors="replace"))
