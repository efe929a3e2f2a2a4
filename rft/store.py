"""Everything that a job has sampled and judged: one SQLite file in the run directory.

A sample is stored when it arrives and its verdict in a later transaction, so a kill at any moment costs neither. There
is at most one sample for a task and index, by the primary key. One process writes (it holds ``trainer.lock``); readers
may look at any time. ``sample`` is narrow and is all that planning needs; texts and log-probabilities lie in
``content``, what is said for people in ``verdict``.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from rft.samplers.sampler import Completion, Refused, SamplerIdentity, Sampling
from rft.tasks.task import Task
from rft.verifiers.verdict import Isolation, Outcome, Verdict
from supervisor.problems import InputError

STORE_NAME = "samples.sqlite"
FORMAT = "1"
REFUSED = "refused"
"""Outcome of a sample that the sampler can never draw."""
READ_ROWS = 1000
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

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


class State(msgspec.Struct, frozen=True):
    """What planning knows of one sample: ``outcome`` None while it is not judged, ``key`` of an accepted one says which
    answers are the same, ``tries`` how often the judge failed on it."""

    index: int
    outcome: str | None
    key: str | None
    tries: int


class Arrived(msgspec.Struct, frozen=True):
    """A completion (or a refusal) and the number of its task."""

    task: int
    got: Completion | Refused


class Judged(msgspec.Struct, frozen=True):
    """A verdict about sample ``index`` of a task. ``key`` for accepted ones; ``tries``: failures of the judge on it."""

    task: int
    index: int
    verdict: Verdict
    key: str | None
    tries: int = 0


class StoredSample(msgspec.Struct, frozen=True):
    """One sample as it stands. ``verdict`` is None while it is not judged; ``refused`` says why it was never drawn.

    ``logprobs`` in nats, one for each of ``token_ids``; both None where the server did not tell. ``sampler`` is a key
    of :meth:`Store.samplers`.
    """

    task: int
    index: int
    seed: int
    text: str
    token_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    finish: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    sampler: int
    attempt: int
    key: str | None
    verdict: Verdict | None
    refused: str | None


class Origin(msgspec.Struct, frozen=True):
    """What samples were drawn from and how."""

    sampler: SamplerIdentity
    sampling: Sampling


class Totals(msgspec.Struct, frozen=True):
    """``outcomes``: number of samples by outcome, ``unjudged`` among them."""

    outcomes: dict[str, int]
    prompt_tokens: int
    completion_tokens: int

    @property
    def samples(self) -> int:
        return sum(self.outcomes.values())


class Store:
    """The samples of one job. One thread uses it."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._db = connection
        self.path = path

    @classmethod
    def open(cls, run_dir: Path) -> Store:
        """To write, made if need be. Raises StoreError, or OSError when the disk is full."""
        path = run_dir / STORE_NAME
        with _failures(path):
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
        return store

    @classmethod
    def read(cls, run_dir: Path) -> Store:
        """To look, also while a job writes. Raises StoreError when there is none."""
        path = run_dir / STORE_NAME
        if not path.is_file():
            raise StoreError(f"{run_dir} holds no samples (no {STORE_NAME}). Name the folder of a run of kind rft.")
        with _failures(path):
            db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
            db.execute("PRAGMA cache_size=-32768")
            db.execute("BEGIN")  # one moment of the store for as long as it is read
            store = cls(db, path)
            store._check_format()
        return store

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Store:
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
        with _failures(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    # -- what is known of the job --------------------------------------------------------------------------------------

    def remember(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def recall(self, key: str) -> str | None:
        with _failures(self.path):
            row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def note_change(self, name: str, before: str, after: str) -> None:
        """A difference to what the job began with that was accepted."""
        self._db.execute("INSERT INTO change VALUES (?, ?, ?, ?)", (time.time(), name, before, after))

    def changes(self) -> list[tuple[float, str, str, str]]:
        """``(time, name, before, after)`` of every accepted change, in order."""
        return self._db.execute("SELECT time, name, before, after FROM change ORDER BY rowid").fetchall()

    def origin_number(self, origin: Origin) -> int:
        """The number of what is sampled from, given anew if it is not known yet.

        How far the adapter moved a probe is measured at every start, a little otherwise each time: the first is kept.
        """
        replaced = msgspec.structs.replace
        text = msgspec.json.encode(
            replaced(origin, sampler=replaced(origin.sampler, adapter_effect=None)), order="sorted"
        ).decode()
        effect = origin.sampler.adapter_effect
        self._db.execute("INSERT OR IGNORE INTO sampler (identity, adapter_effect) VALUES (?, ?)", (text, effect))
        return int(self._db.execute("SELECT number FROM sampler WHERE identity = ?", (text,)).fetchone()[0])

    def samplers(self) -> dict[int, Origin]:
        found = {}
        query = "SELECT number, identity, adapter_effect FROM sampler ORDER BY number"
        for number, text, effect in self._db.execute(query):
            origin = msgspec.json.decode(text, type=Origin)
            sampler = msgspec.structs.replace(origin.sampler, adapter_effect=effect)
            found[number] = msgspec.structs.replace(origin, sampler=sampler)
        return found

    def forget_job(self) -> bool:
        """Forget tasks and identity of a job of which nothing was sampled; False when there are samples."""
        if self._db.execute("SELECT 1 FROM sample LIMIT 1").fetchone():
            return False
        self._db.execute("DELETE FROM task")
        self._db.execute("DELETE FROM meta WHERE key != 'format'")
        return True

    def add_seconds(self, attempt: int, seconds: float) -> None:
        """Seconds of sampling in this attempt so far."""
        self._db.execute("INSERT OR REPLACE INTO attempt VALUES (?, ?)", (attempt, seconds))

    def seconds(self) -> dict[int, float]:
        """Seconds of sampling by attempt."""
        return dict(self._db.execute("SELECT number, seconds FROM attempt ORDER BY number").fetchall())

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def add_tasks(self, tasks: Iterable[Task]) -> None:
        """In their order, numbered from what there is."""
        self._db.executemany(
            "INSERT INTO task (id, source, verifier, digest, present, body) VALUES (?, ?, ?, ?, 1, ?)",
            ((task.id, task.source, task.check.verifier, task.digest, _encode_task(task)) for task in tasks),
        )

    def task_digests(self) -> Iterator[tuple[int, str, str, bool]]:
        """``(number, id, digest, present)`` of every task, in order."""
        query = "SELECT number, id, digest, present FROM task ORDER BY number"
        for number, identity, digest, present in self._rows(query):
            yield number, identity, digest, bool(present)

    def find_task(self, identity: str) -> tuple[int, str] | None:
        """Number and digest of the task with this id."""
        found = self._db.execute("SELECT number, digest FROM task WHERE id = ?", (identity,)).fetchone()
        return None if found is None else (found[0], found[1])

    def set_present(self, number: int | None, present: bool) -> None:
        """Whether a task (None: every one) still belongs to the job; samples of others stay but do not count."""
        where = "" if number is None else " WHERE number = ?"
        self._db.execute(f"UPDATE task SET present = ?{where}", (int(present), *([] if number is None else [number])))

    def task(self, number: int) -> Task:
        row = self._db.execute("SELECT body FROM task WHERE number = ?", (number,)).fetchone()
        return _decode_task(row[0])

    def each_task(self) -> Iterator[tuple[int, Task]]:
        """Every task that belongs to the job, in order; one at a time is in memory."""
        for number, body in self._rows("SELECT number, body FROM task WHERE present ORDER BY number"):
            yield number, _decode_task(body)

    def tasks_after(self, number: int, most: int) -> list[int]:
        """The next numbers of tasks that belong to the job."""
        query = "SELECT number FROM task WHERE number > ? AND present ORDER BY number LIMIT ?"
        return [row[0] for row in self._db.execute(query, (number, most))]

    def last_task(self) -> int:
        """The highest number of a task; 0 when there is none."""
        return int(self._db.execute("SELECT coalesce(max(number), 0) FROM task").fetchone()[0])

    def first_tasks(self, source: str, most: int) -> list[int]:
        query = "SELECT number FROM task WHERE source = ? AND present ORDER BY number LIMIT ?"
        return [row[0] for row in self._db.execute(query, (source, most))]

    def task_counts(self) -> dict[str, int]:
        """Tasks of the job by source, in the order in which the sources first stand."""
        query = "SELECT source, count(*) FROM task WHERE present GROUP BY source ORDER BY min(number)"
        return dict(self._db.execute(query).fetchall())

    def verifiers(self) -> list[tuple[str, str]]:
        """``(source, verifier)`` of all tasks of the job."""
        return self._db.execute("SELECT DISTINCT source, verifier FROM task WHERE present ORDER BY 1, 2").fetchall()

    # -- samples -------------------------------------------------------------------------------------------------------

    def add(self, arrived: Sequence[Arrived], origin: int, attempt: int) -> list[Arrived]:
        """Store what arrived; what is there already is left as it is. Returns what was new."""
        new = []
        now = time.time()
        for each in arrived:
            got = each.got
            if isinstance(got, Completion):
                row: tuple[Any, ...] = (got.prompt_tokens, got.completion_tokens, got.seconds, got.finish, None)
                content = (storable(got.text), _pack_ids(got.token_ids), _pack_floats(got.logprobs))
            else:
                row = (0, 0, 0.0, "", REFUSED)
                content = (got.problem, None, None)
            done = self._db.execute(
                "INSERT OR IGNORE INTO sample (task, place, seed, sampler, attempt, time, prompt_tokens, "
                "completion_tokens, seconds, finish, outcome) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (each.task, got.index, got.seed, origin, attempt, now, *row),
            )
            if done.rowcount:
                self._db.execute("INSERT INTO content VALUES (?, ?, ?, ?, ?)", (each.task, got.index, *content))
                new.append(each)
        return new

    def add_verdicts(self, judged: Sequence[Judged]) -> None:
        """A verdict is final, but for one that says that the judge failed."""
        for each in judged:
            verdict = each.verdict
            done = self._db.execute(
                "UPDATE sample SET outcome = ?, key = ?, tries = ? "
                "WHERE task = ? AND place = ? AND (outcome IS NULL OR outcome = 'error')",
                (verdict.outcome.value, each.key, each.tries, each.task, each.index),
            )
            if done.rowcount:
                self._db.execute(
                    "INSERT OR REPLACE INTO verdict VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        each.task, each.index, verdict.reason, verdict.verifier, verdict.version,
                        verdict.isolation.value, storable(verdict.diagnostic), verdict.passed, verdict.expected,
                        verdict.score, verdict.seconds,
                    ),
                )  # fmt: skip
                self._db.executemany(
                    "INSERT OR REPLACE INTO metric VALUES (?, ?, ?, ?)",
                    ((each.task, each.index, name, value) for name, value in verdict.metrics.items()),
                )

    def states(self, task: int) -> list[State]:
        """What planning needs to know of a task's samples, by index."""
        query = "SELECT place, outcome, key, tries FROM sample WHERE task = ? ORDER BY place"
        return [State(*row) for row in self._db.execute(query, (task,))]

    def each_states(self) -> Iterator[tuple[int, str, list[State]]]:
        """``(number, source, states)`` of every task of the job that has samples, in order, one in memory at a time."""
        tasks = self._rows("SELECT number, source FROM task WHERE present ORDER BY number")
        rows = self._rows("SELECT task, place, outcome, key, tries FROM sample ORDER BY task, place")
        wanted, source = next(tasks, (None, ""))
        for number, group in groupby(rows, itemgetter(0)):
            while wanted is not None and wanted < number:
                wanted, source = next(tasks, (None, ""))
            if wanted == number:
                yield number, source, [State(*row[1:]) for row in group]

    def text(self, task: int, index: int) -> str:
        row = self._db.execute("SELECT text FROM content WHERE task = ? AND place = ?", (task, index)).fetchone()
        return str(row[0])

    def samples(self, task: int) -> list[StoredSample]:
        """All samples of a task with texts and verdicts, by index."""
        query = (
            "SELECT s.task, s.place, s.seed, c.text, c.ids, c.logprobs, s.finish, s.prompt_tokens, s.completion_tokens,"
            " s.seconds, s.sampler, s.attempt, s.key, s.outcome, v.reason, v.verifier, v.version, v.isolation, "
            "v.diagnostic, v.passed, v.expected, v.score, v.seconds FROM sample s JOIN content c USING (task, place) "
            "LEFT JOIN verdict v USING (task, place) WHERE s.task = ? ORDER BY s.place"
        )
        metrics = self._metrics(task)
        return [_stored(row, metrics.get(row[1], {})) for row in self._db.execute(query, (task,))]

    def _metrics(self, task: int) -> dict[int, dict[str, float]]:
        found: dict[int, dict[str, float]] = {}
        if self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'metric'").fetchone():
            for place, name, value in self._db.execute("SELECT place, name, value FROM metric WHERE task = ?", (task,)):
                found.setdefault(place, {})[name] = value
        return found

    def totals(self) -> Totals:
        """Over all samples, also those of tasks that no longer belong to the job: they were paid for."""
        query = "SELECT outcome, count(*), sum(prompt_tokens), sum(completion_tokens) FROM sample GROUP BY outcome"
        rows = self._db.execute(query).fetchall()
        outcomes = {outcome or "unjudged": count for outcome, count, _, _ in rows}
        return Totals(outcomes, sum(row[2] for row in rows), sum(row[3] for row in rows))

    def counts(self) -> dict[str, dict[str, int]]:
        """Samples of the job's tasks by source and outcome, ``unjudged`` and ``refused`` among the outcomes."""
        found: dict[str, dict[str, int]] = {source: {} for source in self.task_counts()}
        query = (
            "SELECT t.source, coalesce(s.outcome, 'unjudged'), count(*) FROM sample s JOIN task t ON t.number = s.task "
            "WHERE t.present GROUP BY 1, 2"
        )
        for source, outcome, count in self._db.execute(query):
            found[source][outcome] = count
        return found

    def distinct(self) -> dict[str, tuple[int, int]]:
        """By source: accepted answers that differ within their task, and tasks with an accepted answer."""
        query = (
            "SELECT source, sum(keys), count(*) FROM (SELECT t.source AS source, count(DISTINCT s.key) AS keys "
            "FROM sample s JOIN task t ON t.number = s.task WHERE t.present AND s.outcome = 'accepted' "
            "GROUP BY s.task) GROUP BY source"
        )
        return {source: (keys, tasks) for source, keys, tasks in self._db.execute(query)}

    def reasons(self, most: int = 20) -> list[tuple[str, str, int]]:
        """``(outcome, reason, count)`` of verdicts that are no acceptance, the most frequent first."""
        query = (
            "SELECT s.outcome, v.reason, count(*) FROM verdict v JOIN sample s USING (task, place) "
            "WHERE s.outcome != 'accepted' GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT ?"
        )
        return self._db.execute(query, (most,)).fetchall()

    def _rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        with _failures(self.path):
            cursor = self._db.cursor()
            cursor.execute(query)
            while rows := cursor.fetchmany(READ_ROWS):
                yield from rows


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    """SQLite's errors as what they are: a full disk, or a file that is not ours."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            remedy = "Restore it from a backup, or start in a new --run-dir."
            raise StoreError(f"{path} is damaged ({error}). {remedy}") from error
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            raise StoreError(f"{path} cannot be opened ({error}). Give this user access to it.") from error
        raise


def _encode_task(task: Task) -> bytes:
    return msgspec.json.encode(task)


def _decode_task(body: bytes) -> Task:
    return msgspec.json.decode(body, type=Task)


def _pack_ids(ids: Sequence[int] | None) -> bytes | None:
    """A letter for the width, then the ids."""
    if ids is None:
        return None
    code = "H" if max(ids, default=0) < 1 << 16 else "I"
    return code.encode() + array(code, ids).tobytes()


def _unpack_ids(data: bytes | None) -> tuple[int, ...] | None:
    if data is None:
        return None
    found: array[int] = array(chr(data[0]))
    found.frombytes(data[1:])
    return tuple(found)


def _pack_floats(values: Sequence[float] | None) -> bytes | None:
    return None if values is None else array("f", values).tobytes()


def _unpack_floats(data: bytes | None) -> tuple[float, ...] | None:
    if data is None:
        return None
    found = array("f")
    found.frombytes(data)
    return tuple(found)


def _stored(row: tuple[Any, ...], metrics: dict[str, float]) -> StoredSample:
    task, index, seed, text, ids, logprobs, finish, prompt, completion, seconds, sampler, attempt, key = row[:13]
    outcome = row[13]
    verdict = None
    if outcome is not None and outcome != REFUSED:
        reason, verifier, version, isolation, diagnostic, passed, expected, score, took = row[14:]
        verdict = Verdict(
            Outcome(outcome), reason, verifier, version, Isolation(isolation), diagnostic, passed, expected, score,
            took, metrics,
        )  # fmt: skip
    refused = outcome == REFUSED
    return StoredSample(
        task, index, seed, "" if refused else text, _unpack_ids(ids), _unpack_floats(logprobs), finish, prompt,
        completion, seconds, sampler, attempt, key, verdict, text if refused else None,
    )  # fmt: skip


def storable(text: str) -> str:
    """``text`` as it can be written anywhere: a half of a surrogate pair becomes U+FFFD."""
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)
