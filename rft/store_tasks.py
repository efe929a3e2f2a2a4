"""A job's tasks in its store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from rft.store_file import StoreFile
from rft.tasks.task import Task


class StoredTasks(StoreFile):
    """The part of the store that holds tasks."""

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


def _encode_task(task: Task) -> bytes:
    return msgspec.json.encode(task)


def _decode_task(body: bytes) -> Task:
    return msgspec.json.decode(body, type=Task)
