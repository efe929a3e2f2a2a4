"""The file that a job's samples are kept in: one SQLite database in the run directory.

One process writes (it holds ``trainer.lock``); readers may look at any time. ``sample`` is narrow and is all that
planning needs; texts and log-probabilities lie in ``content``, what is said for people in ``verdict``.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from supervisor.problems import InputError

STORE_NAME = "samples.sqlite"
FORMAT = "1"
READ_ROWS = 1000
_RUN_ID = "run_id"

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE task (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, source TEXT NOT NULL, verifier TEXT NOT NULL,
    digest TEXT NOT NULL, present INTEGER NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE INDEX task_source ON task (source, verifier);
CREATE TABLE sampler (number INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE, adapter_effect REAL) STRICT;
CREATE TABLE sample (
    task INTEGER NOT NULL, place INTEGER NOT NULL, seed INTEGER NOT NULL, sampler INTEGER NOT NULL,
    attempt INTEGER NOT NULL, time REAL NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    seconds REAL NOT NULL, finish TEXT NOT NULL, outcome TEXT, key TEXT, tries INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (task, place)
) STRICT, WITHOUT ROWID;
CREATE TABLE content (
    task INTEGER NOT NULL, place INTEGER NOT NULL, text TEXT NOT NULL, ids BLOB, logprobs BLOB,
    PRIMARY KEY (task, place)
) STRICT;
CREATE TABLE verdict (
    task INTEGER NOT NULL, place INTEGER NOT NULL, reason TEXT NOT NULL, verifier TEXT NOT NULL, version TEXT NOT NULL,
    isolation TEXT NOT NULL, diagnostic TEXT NOT NULL, passed INTEGER, expected INTEGER, score REAL,
    seconds REAL NOT NULL, PRIMARY KEY (task, place)
) STRICT;
CREATE TABLE attempt (number INTEGER PRIMARY KEY, seconds REAL NOT NULL) STRICT;
CREATE TABLE change (time REAL NOT NULL, name TEXT NOT NULL, before TEXT NOT NULL, after TEXT NOT NULL) STRICT;
"""
_METRICS = (
    "CREATE TABLE IF NOT EXISTS metric (task INTEGER NOT NULL, place INTEGER NOT NULL, name TEXT NOT NULL, "
    "value REAL NOT NULL, PRIMARY KEY (task, place, name)) STRICT, WITHOUT ROWID"
)
"""Stores of earlier versions of this format have none."""


class StoreError(InputError):
    """The store cannot be used; one paragraph."""


class StoreFile:
    """The open database. One thread uses it."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._db = connection
        self.path = path

    @classmethod
    def open(cls, run_dir: Path) -> Self:
        """To write, made if need be. Raises StoreError, or OSError when the disk is full."""
        path = run_dir / STORE_NAME
        with failures(path):
            db = sqlite3.connect(path, isolation_level=None)
            mode = db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            if mode != "wal":
                raise StoreError(f"{path}: the file system of the run directory cannot hold a write-ahead log; take "
                                 "a run directory on a local disk.")  # fmt: skip
            db.execute("PRAGMA synchronous=FULL")
            db.execute("PRAGMA cache_size=-32768")
            store = cls(db, path)
            with store.batch():
                if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
                    for statement in _SCHEMA.split(";"):
                        db.execute(statement)
                    store.remember("format", FORMAT)
            store._check_format()
            with store.batch():
                db.execute(_METRICS)
                if store.recall(_RUN_ID) is None:
                    store.remember(_RUN_ID, uuid.uuid4().hex)
        return store

    @classmethod
    def read(cls, run_dir: Path) -> Self:
        """To look, also while a job writes. Raises StoreError when there is none."""
        path = run_dir / STORE_NAME
        if not path.is_file():
            raise StoreError(f"{run_dir} holds no samples (no {STORE_NAME}). Name the folder of a run of kind rft.")
        with failures(path):
            db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
            db.execute("PRAGMA cache_size=-32768")
            db.execute("BEGIN")  # one moment of the store for as long as it is read
            store = cls(db, path)
            store._check_format()
        return store

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_format(self) -> None:
        found = self.recall("format")
        if found != FORMAT:
            raise StoreError(f"{self.path} has format {found}, this program reads {FORMAT}; use the one that wrote it.")

    @contextmanager
    def batch(self) -> Iterator[None]:
        """One transaction: on a clean exit all of it is on the disk, otherwise none."""
        with failures(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def remember(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def recall(self, key: str) -> str | None:
        with failures(self.path):
            row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    @property
    def run_id(self) -> str:
        """What no other run has, also one whose folder has the same name."""
        return self.recall(_RUN_ID) or self.path.parent.resolve().name

    def forget(self) -> None:
        """All that was remembered of a job but which run this is."""
        self._db.execute("DELETE FROM meta WHERE key NOT IN ('format', ?)", (_RUN_ID,))

    def _rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        with failures(self.path):
            cursor = self._db.cursor()
            cursor.execute(query)
            while rows := cursor.fetchmany(READ_ROWS):
                yield from rows


@contextmanager
def failures(path: Path) -> Iterator[None]:
    """SQLite's errors as what they are: a full disk, or a file that is not ours."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        torn = code == sqlite3.SQLITE_ERROR and str(error).startswith("no such ")  # a table that it must have
        if torn or code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            remedy = "Restore it from a backup, or start in a new --run-dir."
            raise StoreError(f"{path} is damaged ({error}). {remedy}") from error
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            raise StoreError(f"{path} cannot be opened ({error}). Give this user access to it.") from error
        raise
