"""How a job goes: rates over the last minute, an event every few seconds."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from rft.scheduler import Scheduler
from trainer.reporting import Reporter

EVERY_SECONDS = 10.0
WINDOW_SECONDS = 60.0


@dataclass(frozen=True)
class _Mark:
    moment: float
    settled: int
    accepted: int
    tokens: int


class Progress:
    """Heartbeat and ``progress`` events of the job's main thread."""

    def __init__(self, reporter: Reporter, scheduler: Scheduler, tokens: int) -> None:
        """``tokens`` were sampled before this attempt."""
        self._reporter, self._scheduler = reporter, scheduler
        self.tokens = tokens
        self._marks: deque[_Mark] = deque([self._mark()])
        self._said = time.monotonic()

    def news(self, tokens: int) -> None:
        """Something arrived or was judged; ``tokens`` were sampled for it."""
        self.tokens += tokens
        self.alive()
        if time.monotonic() - self._said >= EVERY_SECONDS:
            self.say()

    def alive(self) -> None:
        self._reporter.beat(self._scheduler.settled, self._scheduler.bound)

    def say(self) -> None:
        scheduler = self._scheduler
        self._said = time.monotonic()
        now = self._mark()
        self._marks.append(now)
        while len(self._marks) > 2 and now.moment - self._marks[1].moment > WINDOW_SECONDS:
            self._marks.popleft()
        first = self._marks[0]
        seconds = max(now.moment - first.moment, 1e-6)
        judged_rate = (now.settled - first.settled) / seconds
        accepted_rate = (now.accepted - first.accepted) / seconds
        tokens_rate = (now.tokens - first.tokens) / seconds
        left = max(scheduler.expected - scheduler.settled, 0.0)
        eta = left / judged_rate if judged_rate > 0 else None
        self._reporter.event(
            "progress",
            f"{scheduler.settled} of at most {scheduler.bound} samples judged, {scheduler.accepted} accepted "
            f"({scheduler.distinct} different), {scheduler.done_tasks} of {scheduler.tasks} tasks done, "
            f"{accepted_rate:.2f} accepted/s",
            accepted=scheduler.accepted,
            distinct=scheduler.distinct,
            tasks_done=scheduler.done_tasks,
            accepted_per_second=accepted_rate,
            samples_per_second=judged_rate,
            tokens_per_second=tokens_rate,
            eta_seconds=eta,
            tokens_seen=now.tokens,
            planned_steps=scheduler.bound,
            in_flight=scheduler.in_flight,
            at_judge=scheduler.at_judge,
        )

    def _mark(self) -> _Mark:
        return _Mark(time.monotonic(), self._scheduler.settled, self._scheduler.accepted, self.tokens)
