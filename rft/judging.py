"""Judges at work: threads that take stored completions and give verdicts.

The threads only wait for the verifiers' own processes, so they cost no computing here.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping

from rft.diversity import Distinct, answer_key
from rft.store import Judged
from rft.tasks.task import Task
from rft.verifiers.verdict import Outcome, Verdict
from rft.verifiers.verifier import Verifier

TRIES = 3
"""Judgements of one sample in an attempt before it is left unscored for want of a judge that works."""
PAUSES = (0.2, 1.0)
"""Seconds before the second and the third."""
PATIENCE_SECONDS = 5.0
BROKEN_AFTER = 16
"""Samples in a row on which the judge failed, none of them judged in between: it will not work by itself again."""

VerifierOf = Callable[[Task], Verifier]


class JudgesBrokenError(Exception):
    """The judges fail on everything; a sentence with what they said last."""


class Judges:
    """A pool of threads around verifiers that are open. :meth:`give` and :meth:`take` are one thread's."""

    def __init__(self, workers: int, verifier_of: VerifierOf, distinct: Distinct) -> None:
        self.workers = workers
        self._verifier_of, self._distinct = verifier_of, distinct
        self._work: queue.SimpleQueue[tuple[int, Task, int, str, int] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Judged | BaseException] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._failures = 0
        self._threads = [
            threading.Thread(target=self._judge, name=f"judge-{number}", daemon=True) for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def give(self, number: int, task: Task, index: int, text: str, tries: int) -> None:
        self._work.put((number, task, index, text, tries))

    def take(self, seconds: float = 0.0) -> list[Judged]:
        """The verdicts that are there, after at most so many seconds when there is none yet.

        Raises JudgesBrokenError, or what a verifier raised although it must not.
        """
        found: list[Judged] = []
        while True:
            try:
                got = self._done.get(timeout=seconds) if seconds and not found else self._done.get_nowait()
            except queue.Empty:
                return found
            if isinstance(got, BaseException):
                raise got
            self._failures = self._failures + 1 if got.verdict.outcome is Outcome.ERROR else 0
            if self._failures >= BROKEN_AFTER:
                last = got.verdict.diagnostic.strip().splitlines()
                raise JudgesBrokenError(
                    f"the judge {got.verdict.verifier} failed on {BROKEN_AFTER} samples in a row: {got.verdict.reason}"
                    + (f" ({last[-1].strip()})" if last else "")
                )
            found.append(got)

    def close(self) -> None:
        """End the threads; what waits is not judged, what is being judged is waited for a moment.

        A judge that takes longer ends when its verifier is closed; what it was about is judged another time.
        """
        self._ending.set()
        for _ in self._threads:
            self._work.put(None)
        deadline = time.monotonic() + PATIENCE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _judge(self) -> None:
        while (work := self._work.get()) is not None:
            if self._ending.is_set():
                continue
            number, task, index, text, tries = work
            try:
                verdict, failed = self._verdict(task, text)
                key = answer_key(text, self._distinct) if verdict.outcome is Outcome.ACCEPTED else None
                self._done.put(Judged(number, index, verdict, key, tries + failed))
            except Exception as error:  # noqa: BLE001  # goes to the thread that takes
                self._done.put(error)

    def _verdict(self, task: Task, text: str) -> tuple[Verdict, int]:
        """The verdict, and how often the judge failed."""
        verifier = self._verifier_of(task)
        verdict = verifier.judge(task, text)
        failed = int(verdict.outcome is Outcome.ERROR)
        for pause in PAUSES[: TRIES - 1]:
            if verdict.outcome is not Outcome.ERROR or self._ending.wait(pause):
                break
            verdict = verifier.judge(task, text)
            failed += verdict.outcome is Outcome.ERROR
        return verdict, failed


def verifier_of(opened: Mapping[tuple[str, str], Verifier]) -> VerifierOf:
    """By a task's source and the name of its verifier."""
    return lambda task: opened[task.source, task.check.verifier]


