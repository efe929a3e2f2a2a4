"""Flower's own count of the bytes that went to and came from nodes, which it keeps in the SuperLink's database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

DATABASE = "superlink.db"
"""In the coordinator's folder."""


def counted_bytes(database: Path) -> int | None:
    """Both directions, all runs; None where it cannot be read, which is no reason to stop a round."""
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True, timeout=2.0)) as connection:
            row = connection.execute("SELECT SUM(bytes_sent + bytes_recv) FROM run").fetchone()
    except sqlite3.Error:
        return None
    return int(row[0]) if row and row[0] is not None else None
