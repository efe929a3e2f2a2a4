"""Verdicts kept by content: what is kept, what never is, and a cache that is damaged. # proves RFT-7"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest
from judged import task_of

from rft.tasks.task import Task
from rft.verifiers.cache import CachedVerifier
from rft.verifiers.verdict import Isolation, Outcome, Verdict


class Counting:
    """Says what the completion says, and counts."""

    name = "counting"

    def __init__(self, version: str = "1", isolation: Isolation = Isolation.NOT_RUN) -> None:
        self.version, self.isolation = version, isolation
        self.asked: Counter[str] = Counter()

    def open(self) -> None: ...

    def close(self) -> None: ...

    def problem(self, task: Task) -> str | None:
        return None

    def judge(self, task: Task, completion: str) -> Verdict:
        self.asked[completion] += 1
        return Verdict(Outcome(completion), "r", self.name, self.version, self.isolation)


def judged(
    verifier: Counting, path: Path, completions: list[str], task: Task | None = None, **more: bool
) -> CachedVerifier:
    cached = CachedVerifier(verifier, path, **more)
    cached.open()
    for completion in completions:
        assert cached.judge(task or task_of("counting", {}), completion).outcome == completion
    cached.close()
    return cached


def test_equal_completions_are_judged_once_also_by_another_job(tmp_path: Path) -> None:
    verifier = Counting()
    path = tmp_path / "cache" / "verdicts.sqlite"
    first = judged(verifier, path, ["accepted", "rejected", "accepted"])
    assert (first.hits, first.misses) == (1, 2)
    judged(verifier, path, ["accepted", "rejected"])
    assert verifier.asked == {"accepted": 1, "rejected": 1}


def test_errors_are_never_kept_and_timeouts_only_when_asked_for(tmp_path: Path) -> None:
    verifier = Counting()
    for _ in range(2):
        judged(verifier, tmp_path / "a.sqlite", ["error", "timeout"])
    assert verifier.asked == {"error": 2, "timeout": 2}
    verifier = Counting()
    for _ in range(2):
        judged(verifier, tmp_path / "b.sqlite", ["error", "timeout"], keep_timeouts=True)
    assert verifier.asked == {"error": 2, "timeout": 1}


def test_another_task_version_or_isolation_is_judged_anew(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.sqlite"
    one, two = Counting(), Counting(version="2")
    inside = Counting(isolation=Isolation.BUBBLEWRAP)
    judged(one, path, ["accepted"])
    judged(one, path, ["accepted"], task_of("counting", {"other": 1}))
    judged(two, path, ["accepted"])
    judged(inside, path, ["accepted"])
    assert one.asked == {"accepted": 2} and two.asked == {"accepted": 1} and inside.asked == {"accepted": 1}


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_cache_is_set_aside_said_and_made_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "verdicts.sqlite"
    path.write_bytes(content)
    said: list[str] = []
    cached = CachedVerifier(Counting(), path, says=said.append)
    cached.open()
    assert cached.judge(task_of("counting", {}), "accepted").outcome is Outcome.ACCEPTED
    assert cached.judge(task_of("counting", {}), "accepted").outcome is Outcome.ACCEPTED
    assert cached.hits == 1
    cached.close()
    assert len(said) == 1 and "set aside as verdicts.sqlite.damaged-" in said[0]
    aside = [entry for entry in tmp_path.iterdir() if ".damaged-" in entry.name]
    assert len(aside) == 1 and aside[0].read_bytes() == content


def test_a_cache_that_breaks_in_the_middle_does_not_stop_the_judging(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.sqlite"
    judged(Counting(), path, ["accepted"])
    whole = bytearray(path.read_bytes())
    whole[4096:] = b"\xaa" * (len(whole) - 4096)
    path.write_bytes(bytes(whole))
    cached = judged(Counting(), path, ["accepted", "rejected", "accepted"])
    assert any("set aside" in note for note in cached.notes)


def test_without_a_place_for_the_cache_judging_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    verifier = Counting()
    cached = judged(verifier, tmp_path / "file" / "verdicts.sqlite", ["accepted", "accepted"])
    assert verifier.asked == {"accepted": 2} and "is not used" in cached.notes[0]


def test_several_verifiers_write_to_one_file_at_a_time(tmp_path: Path) -> None:
    """A write that left its transaction open would lock the other out: without waiting, that is seen at once."""
    both = [CachedVerifier(Counting(version), tmp_path / "verdicts.sqlite") for version in "12"]
    for cached in both:
        cached.open()
        assert cached._store is not None
        cached._store.execute("PRAGMA busy_timeout = 0")
    for number in range(5):
        for cached in both:
            cached.judge(task_of("counting", {"n": number}), "accepted")
    for cached in both:
        assert not cached.notes and cached.misses == 5
        cached.close()


def test_threads_share_a_cache(tmp_path: Path) -> None:
    cached = CachedVerifier(Counting(), tmp_path / "verdicts.sqlite")
    cached.open()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for index in range(200):
                cached.judge(task_of("counting", {"n": (index * 7 + number) % 50}), "accepted")
        except BaseException as error:  # noqa: BLE001  (told by the test)
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and cached.hits + cached.misses == 800 and cached.hits >= 600 - 4 * 50
    cached.close()
    cached.close()
