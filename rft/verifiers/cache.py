"""Verdicts kept by content, so that equal completions of a task are judged once, also by another job.

The key is task, completion, verifier with its version, and isolation. What the machine did to a judge is never kept: an
error is no verdict, and what took too long here may not elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from rft.tasks.task import Task
from rft.verifiers.verdict import Isolation, Outcome, Verdict
from rft.verifiers.verifier import Verifier

FORMAT = 1
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS verdicts (key BLOB PRIMARY KEY, verdict BLOB NOT NULL) WITHOUT ROWID",
    f"PRAGMA user_version = {FORMAT}",
)
_KEPT = frozenset({Outcome.ACCEPTED, Outcome.REJECTED})


class CachedVerifier:
    """A verifier that asks its cache first. ``hits`` and ``misses`` count since it was opened; ``says`` is told what
    became of a cache that cannot be used: a damaged one is set aside and made anew, and judging never waits for it."""

    def __init__(
        self,
        verifier: Verifier,
        path: Path,
        *,
        keep_timeouts: bool = False,
        says: Callable[[str], None] | None = None,
    ) -> None:
        self.inner = verifier
        self.name, self.version = verifier.name, verifier.version
        self.hits = self.misses = 0
        self.notes: list[str] = []
        self._untold: SimpleQueue[str] = SimpleQueue()
        self._path = path
        self._kept = _KEPT | {Outcome.TIMEOUT} if keep_timeouts else _KEPT
        self._says = says
        self._store: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def open(self) -> None:
        self.inner.open()
        self.name, self.version = self.inner.name, self.inner.version
        with self._lock:
            if self._store is None:
                self._connect()

    def close(self) -> None:
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None
        self.inner.close()

    def news(self) -> list[str]:
        """The notes that came since this was last asked, from whichever thread."""
        found = []
        with contextlib.suppress(Empty):
            while True:
                found.append(self._untold.get_nowait())
        return found

    def problem(self, task: Task) -> str | None:
        return self.inner.problem(task)

    def judge(self, task: Task, completion: str) -> Verdict:
        key = self._key(task, completion)
        if (known := self._known(key)) is not None:
            return known
        verdict = self.inner.judge(task, completion)
        if verdict.outcome in self._kept:
            self._keep(key, verdict)
        return verdict

    def _key(self, task: Task, completion: str) -> bytes:
        isolation = getattr(self.inner, "isolation", Isolation.NOT_RUN)
        parts = [task.digest, self.name, self.version, isolation.value]
        text = completion.encode("utf-8", "surrogatepass")
        return hashlib.sha256("\0".join(parts).encode() + b"\0\0" + text).digest()

    def _known(self, key: bytes) -> Verdict | None:
        with self._lock:
            if self._store is None:
                return None
            try:
                row = self._store.execute("SELECT verdict FROM verdicts WHERE key = ?", (key,)).fetchone()
                found = None if row is None else msgspec.json.decode(row[0], type=Verdict)
            except (sqlite3.Error, msgspec.MsgspecError) as error:
                self._recover(error)
                found = None
            self.hits += found is not None
            self.misses += found is None
            return found

    def _keep(self, key: bytes, verdict: Verdict) -> None:
        with self._lock:
            if self._store is None:
                return
            try:
                self._store.execute(
                    "INSERT OR REPLACE INTO verdicts VALUES (?, ?)", (key, msgspec.json.encode(verdict))
                )
            except sqlite3.Error as error:
                self._recover(error)

    def _connect(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Each write is a transaction: the caches of other verifiers and jobs write to the same file.
            store = sqlite3.connect(self._path, timeout=30, check_same_thread=False, isolation_level=None)
            try:
                store.execute("PRAGMA journal_mode = WAL")
                store.execute("PRAGMA synchronous = NORMAL")
                if (found := store.execute("PRAGMA user_version").fetchone()[0]) not in (0, FORMAT):
                    raise sqlite3.DatabaseError(f"it has format {found}, this version reads {FORMAT}")
                for statement in _SCHEMA:
                    store.execute(statement)
            except BaseException:
                store.close()
                raise
            self._store = store
        except (sqlite3.Error, OSError) as error:
            self._recover(error)

    def _recover(self, error: Exception) -> None:
        """Set a damaged cache aside and go on with a new one; go on without one when that does not help either."""
        if self._store is not None:
            with contextlib.suppress(sqlite3.Error):
                self._store.close()
            self._store = None
        damaged = isinstance(error, msgspec.MsgspecError) or (
            isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
        )
        if damaged and not any("set aside" in note for note in self.notes):
            aside = self._path.with_name(f"{self._path.name}.damaged-{os.getpid()}-{int(time.time())}")
            try:
                for ending in ("", "-wal", "-shm"):
                    with contextlib.suppress(FileNotFoundError):
                        os.replace(f"{self._path}{ending}", f"{aside}{ending}")
            except OSError as failure:
                self._note(f"the cache of verdicts {self._path} is damaged and cannot be moved: {failure.strerror}")
                return
            self._note(
                f"the cache of verdicts was damaged ({error}); it was set aside as {aside.name}, a new one is used"
            )
            self._connect()
            return
        self._note(f"the cache of verdicts {self._path} is not used: {error}")

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self._untold.put(text)
        if self._says is not None:
            self._says(text)
