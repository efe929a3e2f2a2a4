"""Everything that a job has sampled and judged.

A sample is stored when it arrives and its verdict in a later transaction, so a kill at any moment costs neither. There
is at most one sample for a task and index, by the primary key.
"""

from __future__ import annotations

import re
import time
from array import array
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

from rft.samplers.sampler import Completion
from rft.samples import REFUSED, Arrived, Judged, Judgement, Origin, State, StoredSample, Totals
from rft.store_file import STORE_NAME, StoreError
from rft.store_tasks import StoredTasks
from rft.verifiers.verdict import Isolation, Outcome, Verdict

__all__ = [
    "REFUSED", "STORE_NAME", "Arrived", "Judged", "Judgement", "Origin", "State", "Store", "StoreError", "StoredSample",
    "Totals", "storable",
]  # fmt: skip
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Store(StoredTasks):
    """The samples of one job. One thread uses it."""

    # -- what the job is -----------------------------------------------------------------------------------------------

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
        self.forget()
        return True

    def add_seconds(self, attempt: int, seconds: float) -> None:
        """Seconds of sampling in this attempt so far."""
        self._db.execute("INSERT OR REPLACE INTO attempt VALUES (?, ?)", (attempt, seconds))

    def seconds(self) -> dict[int, float]:
        """Seconds of sampling by attempt."""
        return dict(self._db.execute("SELECT number, seconds FROM attempt ORDER BY number").fetchall())

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

    def accepted_texts(self, task: int) -> list[tuple[int, str]]:
        """``(index, text)`` of a task's accepted samples, by index."""
        query = (
            "SELECT s.place, c.text FROM sample s JOIN content c USING (task, place) "
            "WHERE s.task = ? AND s.outcome = 'accepted' ORDER BY s.place"
        )
        return self._db.execute(query, (task,)).fetchall()

    def set_key(self, task: int, index: int, key: str) -> None:
        """Which answers an accepted one is the same as, anew."""
        self._db.execute("UPDATE sample SET key = ? WHERE task = ? AND place = ?", (key, task, index))

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
        if self._has_metrics():
            for place, name, value in self._db.execute("SELECT place, name, value FROM metric WHERE task = ?", (task,)):
                found.setdefault(place, {})[name] = value
        return found

    def _has_metrics(self) -> bool:
        return self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'metric'").fetchone() is not None

    def judgements(self) -> dict[int, list[Judgement]]:
        """All verdicts by the number of their task, by index; without a text or a token, so that it is quick."""
        metrics: dict[tuple[int, int], dict[str, float]] = {}
        if self._has_metrics():
            for task, place, name, value in self._rows("SELECT task, place, name, value FROM metric"):
                metrics.setdefault((task, place), {})[name] = value
        found: dict[int, list[Judgement]] = {}
        query = (
            "SELECT s.task, s.place, s.outcome, v.score, CASE s.outcome WHEN 'refused' THEN c.text "
            "WHEN 'error' THEN v.reason ELSE '' END FROM sample s LEFT JOIN verdict v USING (task, place) "
            "LEFT JOIN content c ON s.outcome = 'refused' AND c.task = s.task AND c.place = s.place "
            "ORDER BY s.task, s.place"
        )
        for task, place, outcome, score, why in self._rows(query):
            judgement = Judgement(place, outcome, score, why or "", metrics.get((task, place), {}))
            found.setdefault(task, []).append(judgement)
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
