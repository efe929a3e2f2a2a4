"""The queue in SQLite: what was asked for, where each job stands, who holds which resource.

Every change is one transaction on a write-ahead log with synchronous=FULL: what a method has returned from survives
kill -9 and a power cut. That a resource has one holder is a constraint of the database, not a habit of its users.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from supervisor.daemon.service import EntryState, NoSuchEntryError
from supervisor.problems import InputError

FORMAT = 1
_BUSY_SECONDS = 5.0
_SCHEMA = """
CREATE TABLE jobs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL, config TEXT NOT NULL, run_dir TEXT NOT NULL, kind TEXT NOT NULL,
  arguments TEXT NOT NULL, after TEXT NOT NULL, priority INTEGER NOT NULL,
  device TEXT NOT NULL, processes INTEGER NOT NULL, resources TEXT NOT NULL DEFAULT '[]',
  state TEXT NOT NULL, wish TEXT NOT NULL DEFAULT '', resumed INTEGER NOT NULL DEFAULT 0,
  launch INTEGER NOT NULL DEFAULT 0, launched_at REAL, pid INTEGER NOT NULL DEFAULT 0,
  crashes INTEGER NOT NULL DEFAULT 0, mark TEXT NOT NULL DEFAULT '',
  submitted_at REAL NOT NULL, started_at REAL, ended_at REAL, outcome TEXT, explanation TEXT NOT NULL DEFAULT '',
  schedule TEXT, scheduled_for REAL,
  UNIQUE (schedule, scheduled_for)
);
CREATE INDEX jobs_by_state ON jobs (state);
CREATE TABLE leases (
  resource TEXT PRIMARY KEY, job INTEGER NOT NULL REFERENCES jobs (id),
  before TEXT NOT NULL, releasing_since REAL, note TEXT NOT NULL DEFAULT ''
);
CREATE TABLE schedules (
  id TEXT PRIMARY KEY, config TEXT NOT NULL, cron TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
  device TEXT NOT NULL, processes INTEGER NOT NULL, next_at REAL
);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""
ENDED = tuple(state.value for state in EntryState if state.ended)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job as stored.

    ``device``: cuda, cpu or auto, as its configuration asks. ``resources``: lent to it last. ``wish``: what its run was
    asked to stop for (pause, cancel, yield: for the daemon's own stop), empty for nothing. ``resumed``: it has begun
    before and goes first.
    ``launch``: number of its last launch, ``pid`` the process that this became, 0 when that is not known yet.
    ``crashes``: deaths of its supervisor in a row without progress; ``mark`` is where the run stood at the last one.
    """

    id: int
    name: str
    config: str
    run_dir: str
    kind: str
    arguments: tuple[str, ...]
    after: tuple[int, ...]
    priority: int
    device: str
    processes: int
    resources: tuple[str, ...]
    state: EntryState
    wish: str
    resumed: bool
    launch: int
    launched_at: float | None
    pid: int
    crashes: int
    mark: str
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    outcome: str | None
    explanation: str
    schedule: str | None
    scheduled_for: float | None


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A resource and its holder. ``before``: what was on the card when it was lent, JSON (see cards.py).

    ``releasing_since``: its holder has ended and it is waited for the memory; ``note``: what holds it up.
    """

    resource: str
    job: int
    before: str
    releasing_since: float | None
    note: str


class StoredSchedule(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    config: str
    cron: str
    kind: str
    name: str
    device: str
    processes: int
    next_at: float | None


class Queue:
    """The database. Methods may be called from any thread; :meth:`transaction` makes several of them one."""

    def __init__(self, path: Path) -> None:
        """Raises InputError when the file is damaged or of a later version."""
        self._guard = threading.RLock()
        self._depth = 0
        self._db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        try:
            self._open(path)
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise damaged(path, error) from error
        except BaseException:
            self._db.close()
            raise

    def _open(self, path: Path) -> None:
        path.chmod(0o600)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA foreign_keys = ON")
        if (found := self._db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(found)
        with self.transaction():
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version > FORMAT:
                raise InputError(
                    f"{path} was written by a later version (format {version}, this one knows {FORMAT}). Install that "
                    "version again, or name another --state-dir."
                )
            if version == 0:
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {FORMAT}")

    def close(self) -> None:
        with self._guard:
            self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and nobody else in between; the outermost one commits."""
        with self._guard:
            if self._depth == 0:
                self._db.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
            except BaseException:
                self._depth -= 1
                if self._depth == 0 and self._db.in_transaction:  # SQLite undoes it by itself when the disk is full
                    self._db.execute("ROLLBACK")
                raise
            self._depth -= 1
            if self._depth == 0:
                self._db.execute("COMMIT")

    def add(self, **values: Any) -> int:
        """A new job in state waiting; its id. ``values``: the columns that have no default but state and time."""
        columns = {**values, "state": EntryState.WAITING.value, "submitted_at": time.time()}
        for name in ("arguments", "after"):
            columns[name] = json.dumps(list(columns.get(name, ())))
        names = ", ".join(columns)
        with self.transaction():
            marks = ", ".join("?" * len(columns))
            added = self._db.execute(f"INSERT INTO jobs ({names}) VALUES ({marks})", tuple(columns.values())).lastrowid
        assert added is not None
        return added

    def job(self, job_id: int) -> Job:
        """Raises NoSuchEntryError."""
        found = self._jobs("WHERE id = ?", (job_id,))
        if not found:
            raise NoSuchEntryError(f"There is no entry {job_id} in the queue. `mens-sup queue` lists them.")
        return found[0]

    def unfinished(self) -> tuple[Job, ...]:
        """All that have not ended, by id."""
        return self._jobs(f"WHERE state NOT IN ({', '.join('?' * len(ENDED))}) ORDER BY id", ENDED)

    def ended(self, most: int | None) -> tuple[Job, ...]:
        """Those that ended last, by id; all of them for None."""
        marks = ", ".join("?" * len(ENDED))
        found = self._jobs(
            f"WHERE state IN ({marks}) ORDER BY ended_at DESC, id DESC LIMIT ?", (*ENDED, -1 if most is None else most)
        )
        return tuple(sorted(found, key=lambda job: job.id))

    def of_schedule(self, schedule: str) -> tuple[Job, ...]:
        """Those of a schedule that have not ended."""
        return tuple(job for job in self.unfinished() if job.schedule == schedule)

    def states(self, ids: Sequence[int]) -> dict[int, EntryState]:
        """Of those among ``ids`` that there are."""
        marks = ", ".join("?" * len(ids))
        with self._guard:
            rows = self._db.execute(f"SELECT id, state FROM jobs WHERE id IN ({marks})", tuple(ids)).fetchall()
        return {row["id"]: EntryState(row["state"]) for row in rows}

    def change(self, job_id: int, **values: Any) -> Job:
        """Set columns; the job afterwards. Raises NoSuchEntryError."""
        plain = {key: str(value) if isinstance(value, EntryState) else value for key, value in values.items()}
        names = ", ".join(f"{name} = ?" for name in plain)
        with self.transaction():
            self._db.execute(f"UPDATE jobs SET {names} WHERE id = ?", (*plain.values(), job_id))
            return self.job(job_id)

    def lend(self, job_id: int, resources: Sequence[str], before: str) -> None:
        """Give resources to a job. Raises sqlite3.IntegrityError when one of them is held."""
        with self.transaction():
            self.change(job_id, resources=json.dumps(list(resources)))
            for resource in resources:
                self._db.execute(
                    "INSERT INTO leases (resource, job, before) VALUES (?, ?, ?)", (resource, job_id, before)
                )

    def held(self) -> tuple[Held, ...]:
        with self._guard:
            rows = self._db.execute("SELECT * FROM leases ORDER BY resource").fetchall()
        return tuple(Held(**dict(row)) for row in rows)

    def held_by(self, job_id: int) -> tuple[str, ...]:
        return tuple(held.resource for held in self.held() if held.job == job_id)

    def release_soon(self, job_id: int) -> None:
        """The holder has ended; its resources are free once their memory is."""
        with self.transaction():
            self._db.execute("UPDATE leases SET releasing_since = ? WHERE job = ?", (time.time(), job_id))

    def note_release(self, resource: str, note: str) -> None:
        with self.transaction():
            self._db.execute("UPDATE leases SET note = ? WHERE resource = ?", (note, resource))

    def release(self, resource: str) -> None:
        with self.transaction():
            self._db.execute("DELETE FROM leases WHERE resource = ?", (resource,))

    def schedules(self) -> tuple[StoredSchedule, ...]:
        with self._guard:
            rows = self._db.execute("SELECT * FROM schedules ORDER BY CAST(id AS INTEGER)").fetchall()
        return tuple(StoredSchedule(**dict(row)) for row in rows)

    def add_schedule(self, **values: Any) -> str:
        """Its id, a number that no other schedule has had."""
        with self.transaction():
            last = self._db.execute("SELECT value FROM counters WHERE name = 'schedules'").fetchone()
            number = str((last["value"] if last else 0) + 1)
            self._db.execute("INSERT OR REPLACE INTO counters VALUES ('schedules', ?)", (int(number),))
            columns = {"id": number, **values}
            marks = ", ".join("?" * len(columns))
            self._db.execute(f"INSERT INTO schedules ({', '.join(columns)}) VALUES ({marks})", tuple(columns.values()))
        return number

    def was_scheduled(self, schedule: str, when: float) -> bool:
        """Has there been a job of that schedule for that time?"""
        asked = "SELECT 1 FROM jobs WHERE schedule = ? AND scheduled_for = ?"
        with self._guard:
            return self._db.execute(asked, (schedule, when)).fetchone() is not None

    def change_schedule(self, schedule: str, **values: Any) -> None:
        names = ", ".join(f"{name} = ?" for name in values)
        with self.transaction():
            self._db.execute(f"UPDATE schedules SET {names} WHERE id = ?", (*values.values(), schedule))

    def remove_schedule(self, schedule: str) -> bool:
        """False when there is none of that id."""
        with self.transaction():
            return self._db.execute("DELETE FROM schedules WHERE id = ?", (schedule,)).rowcount > 0

    def _jobs(self, condition: str, values: Sequence[Any]) -> tuple[Job, ...]:
        with self._guard:
            rows = self._db.execute(f"SELECT * FROM jobs {condition}", tuple(values)).fetchall()
        return tuple(_job(row) for row in rows)


def damaged(path: Path, error: sqlite3.DatabaseError) -> InputError:
    """That the database at ``path`` can't be used, and how to go on."""
    return InputError(
        f"{path}: the queue cannot be read ({error}). Move it aside and start the daemon again: the runs "
        "themselves are whole, and each goes on with `mens-sup run --run-dir` or after `mens-sup submit`."
    )


def launch_in_queue(path: Path, job_id: int) -> Job | None:
    """The job as it stands in the database, read by a process that is not the daemon; None when there is none."""
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=_BUSY_SECONDS, uri=True)
    try:
        db.row_factory = sqlite3.Row
        row = db.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
    finally:
        db.close()
    return None if row is None else _job(row)


def _job(row: sqlite3.Row) -> Job:
    values = dict(row)
    values["arguments"] = tuple(json.loads(values["arguments"]))
    values["after"] = tuple(json.loads(values["after"]))
    values["resources"] = tuple(json.loads(values["resources"]))
    values["state"] = EntryState(values["state"])
    values["resumed"] = bool(values["resumed"])
    return Job(**values)
