"""proves RFT-4: what is stored, is stored once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from toy_job import ToySampler, toy_tasks

from rft.samplers.sampler import Completion, Refused, Sampling
from rft.store import STORE_NAME, Arrived, Judged, Origin, Store, StoreError
from rft.verifiers.verdict import Isolation, Outcome, Verdict


def completion(index: int, text: str = "4", ids: tuple[int, ...] | None = (1, 70_000)) -> Completion:
    logprobs = None if ids is None else tuple(-0.25 * at for at in range(len(ids)))
    return Completion("sums/0", index, 11 + index, text, ids, logprobs, "stop", 5, 2, 0.5)


def verdict(outcome: Outcome = Outcome.ACCEPTED, reason: str = "right") -> Verdict:
    return Verdict(outcome, reason, "toy", "v1", Isolation.NOT_RUN, "a diagnostic", 2, 3, 0.5, 0.1)


def filled(place: Path, count: int = 3) -> tuple[Store, int]:
    store = Store.open(place)
    with store.batch():
        store.add_tasks(toy_tasks(count))
        origin = store.origin_number(Origin(ToySampler().start(), Sampling(1.0, 1.0, 0, 16)))
    return store, origin


def test_a_sample_comes_back_as_it_was(tmp_path: Path) -> None:
    store, origin = filled(tmp_path)
    with store.batch():
        store.add([Arrived(1, completion(0)), Arrived(1, completion(1, "no ids", None))], origin, 1)
        store.add([Arrived(1, Refused("sums/0", 2, 13, "too long"))], origin, 1)
        store.add_verdicts([Judged(1, 0, verdict(), "k1")])
    store.close()
    with Store.read(tmp_path) as again:
        first, second, third = again.samples(1)
        assert (first.text, first.token_ids, first.logprobs) == ("4", (1, 70_000), (0.0, -0.25))
        assert (first.seed, first.finish, first.key, first.verdict) == (11, "stop", "k1", verdict())
        assert second.token_ids is None and second.logprobs is None and second.verdict is None
        assert third.refused == "too long" and third.text == "" and third.verdict is None
        assert again.totals().outcomes == {"accepted": 1, "unjudged": 1, "refused": 1}
        assert again.counts() == {"sums": {"accepted": 1, "unjudged": 1, "refused": 1}}
        assert again.samplers()[first.sampler].sampler.model == "toy"
        assert [task.id for _, task in again.each_task()] == ["sums/0", "sums/1", "sums/2"]


def test_a_second_sample_of_the_same_place_changes_nothing(tmp_path: Path) -> None:
    store, origin = filled(tmp_path)
    with store.batch():
        assert len(store.add([Arrived(1, completion(0, "first"))], origin, 1)) == 1
        assert store.add([Arrived(1, completion(0, "second"))], origin, 2) == []
    with store.batch():
        store.add_verdicts([Judged(1, 0, verdict(), "k")])
        store.add_verdicts([Judged(1, 0, verdict(Outcome.REJECTED, "wrong"), None)])
    (found,) = store.samples(1)
    assert found.text == "first" and found.verdict == verdict() and found.attempt == 1


def test_a_failure_of_the_judge_is_the_one_verdict_that_can_change(tmp_path: Path) -> None:
    store, origin = filled(tmp_path)
    with store.batch():
        store.add([Arrived(1, completion(0))], origin, 1)
        store.add_verdicts([Judged(1, 0, verdict(Outcome.ERROR, "no sandbox"), None, 3)])
    assert store.states(1)[0].tries == 3
    with store.batch():
        store.add_verdicts([Judged(1, 0, verdict(), "k", 3)])
    assert store.samples(1)[0].verdict == verdict()


def test_what_is_not_committed_never_was(tmp_path: Path) -> None:
    store, origin = filled(tmp_path)

    def half() -> None:
        with store.batch():
            store.add([Arrived(1, completion(0))], origin, 1)
            raise RuntimeError("killed here")

    with pytest.raises(RuntimeError):
        half()
    assert store.samples(1) == [] and store.totals().samples == 0
    with store.batch():
        store.add([Arrived(1, completion(0))], origin, 1)
    assert len(store.samples(1)) == 1


def test_text_that_no_file_can_hold_is_made_storable(tmp_path: Path) -> None:
    store, origin = filled(tmp_path)
    with store.batch():
        store.add([Arrived(1, completion(0, "a\ud800b\0c")), Arrived(1, completion(1, "ü?"))], origin, 1)
    assert [sample.text for sample in store.samples(1)] == ["a\ufffdb\0c", "ü?"]


def test_every_commit_reaches_the_disk_before_it_returns(tmp_path: Path) -> None:
    store, _ = filled(tmp_path)
    database = store._db
    assert database.execute("PRAGMA synchronous").fetchone()[0] == 2, "FULL"
    assert database.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_a_store_killed_in_a_transaction_opens_again(tmp_path: Path) -> None:
    store, origin = filled(tmp_path)
    with store.batch():
        store.add([Arrived(1, completion(0))], origin, 1)
    store.close()
    program = (
        "import os, signal, sys; from pathlib import Path; from rft.store import *\n"
        "from rft.samplers.sampler import Completion\n"
        "store = Store.open(Path(sys.argv[1]))\n"
        "with store.batch():\n"
        "    store.add([Arrived(1, Completion('sums/0', 1, 12, 'x', None, None, 'stop', 1, 1, 0.0))], 1, 1)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], env={**os.environ}, check=False)
    assert done.returncode == -signal.SIGKILL
    with Store.open(tmp_path) as again:
        assert [sample.index for sample in again.samples(1)] == [0]


def test_what_is_no_store_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no samples"):
        Store.read(tmp_path)
    (tmp_path / STORE_NAME).write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError, match=r"is damaged .* Restore it from a backup"):
        Store.open(tmp_path)
    (tmp_path / STORE_NAME).unlink()
    Store.open(tmp_path).close()
    with sqlite3.connect(tmp_path / STORE_NAME) as database:
        database.execute("UPDATE meta SET value = '99' WHERE key = 'format'")
    with pytest.raises(StoreError, match="has format 99, this program reads 1"):
        Store.open(tmp_path)
