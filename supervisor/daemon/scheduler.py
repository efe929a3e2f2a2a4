"""Recurring jobs: APScheduler's arithmetic on our own store, run by the daemon's main loop.

A time that comes puts an entry into the queue, and that in one transaction with the next time. So a kill between the
two neither loses nor doubles one, and what was missed while no daemon ran is made up for by one entry.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.executors.base import BaseExecutor
from apscheduler.job import Job as PlannedJob
from apscheduler.jobstores.base import BaseJobStore, JobLookupError
from apscheduler.schedulers.base import BaseScheduler

from supervisor.daemon.cron import trigger_of
from supervisor.daemon.queue import Queue, StoredSchedule

Fire = Callable[[StoredSchedule, float], None]
"""Queue a job for a schedule and the time that it is for, Unix seconds."""
_EXECUTOR = "queue"
DAY_SECONDS = 86_400.0


class Scheduler(BaseScheduler):  # type: ignore[misc]
    """Nothing of it runs by itself: :meth:`process` does what is due."""

    def __init__(self, queue: Queue, fire: Fire) -> None:
        logging.getLogger("apscheduler").setLevel(logging.CRITICAL)
        self._store = _Store(queue)
        self._clock: float | None = None
        super().__init__(
            jobstores={"default": self._store},
            executors={_EXECUTOR: _QueueExecutor(queue, fire)},
            job_defaults={"coalesce": True, "misfire_grace_time": None, "max_instances": 1},
        )
        self._queue = queue

    def process(self) -> float | None:
        """Queue what is due; seconds until the next time, None without one."""
        executor = self._lookup_executor(_EXECUTOR)
        with self._queue.transaction():
            before, self._clock = self._clock, time.time()
            if before is None or self._clock < before:  # the first look, or the clock was put back
                self._store.pull_in()
            seconds: float | None = self._process_jobs()
            if (failure := executor.take_failure()) is not None:
                raise failure  # APScheduler would only log it, and move the schedule on
        return seconds

    def wakeup(self) -> None:
        """The main loop comes by itself."""

    def shutdown(self, wait: bool = True) -> None:
        super().shutdown(wait)


def first_time(cron: str) -> float:
    """When a schedule made now comes first, Unix seconds. Raises NotPossibleError."""
    trigger = trigger_of(cron)
    found: datetime = trigger.get_next_fire_time(None, datetime.now(trigger.timezone))
    return found.timestamp()


class _QueueExecutor(BaseExecutor):  # type: ignore[misc]
    """Runs at once, in the caller's thread and transaction."""

    def __init__(self, queue: Queue, fire: Fire) -> None:
        super().__init__()
        self._queue = queue
        self._fire = fire
        self._failure: BaseException | None = None

    def submit_job(self, job: Any, run_times: list[datetime]) -> None:
        stored = next((each for each in self._queue.schedules() if each.id == job.id), None)
        if stored is None:
            return
        try:
            self._fire(stored, run_times[-1].timestamp())
        except BaseException as error:
            self._failure = error
            raise

    def take_failure(self) -> BaseException | None:
        failure, self._failure = self._failure, None
        return failure

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        raise AssertionError("called by BaseExecutor.submit_job alone, which is another one here")


class _Store(BaseJobStore):  # type: ignore[misc]
    """The table of schedules as APScheduler wants to see it."""

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self._queue = queue

    def lookup_job(self, job_id: str) -> Any:
        return next((job for job in self.get_all_jobs() if job.id == job_id), None)

    def get_due_jobs(self, now: datetime) -> list[Any]:
        return [job for job in self.get_all_jobs() if job.next_run_time is not None and job.next_run_time <= now]

    def get_next_run_time(self) -> datetime | None:
        times = [each.next_at for each in self._queue.schedules() if each.next_at is not None]
        return datetime.fromtimestamp(min(times), UTC) if times else None

    def pull_in(self) -> None:
        """Move a time that was reckoned while the clock was ahead back to where it belongs."""
        for each in self._queue.schedules():
            if each.next_at is None or each.next_at - time.time() < DAY_SECONDS:
                continue
            first = first_time(each.cron)
            if first + DAY_SECONDS < each.next_at and not self._queue.was_scheduled(each.id, first):
                self._queue.change_schedule(each.id, next_at=first)

    def get_all_jobs(self) -> list[Any]:
        found = sorted(self._queue.schedules(), key=lambda each: (each.next_at is None, each.next_at))
        return [self._planned(each) for each in found]

    def add_job(self, job: Any) -> None:
        raise AssertionError("schedules are added to the queue's database, not to its scheduler")

    def update_job(self, job: Any) -> None:
        when = None if job.next_run_time is None else job.next_run_time.timestamp()
        self._queue.change_schedule(job.id, next_at=when)

    def remove_job(self, job_id: str) -> None:
        if not self._queue.remove_schedule(job_id):
            raise JobLookupError(job_id)

    def remove_all_jobs(self) -> None:
        for each in self._queue.schedules():
            self._queue.remove_schedule(each.id)

    def _planned(self, stored: StoredSchedule) -> Any:
        trigger = trigger_of(stored.cron)
        next_at = None if stored.next_at is None else datetime.fromtimestamp(stored.next_at, trigger.timezone)
        now = datetime.now(trigger.timezone)
        lately = now - timedelta(seconds=DAY_SECONDS)
        if next_at is not None and next_at < lately:
            # APScheduler goes through every time that was missed: years of minutes where a clock was wrong.
            recent = trigger.get_next_fire_time(None, lately)
            if recent is not None and recent <= now:
                next_at = recent
        return PlannedJob(
            self._scheduler,
            id=stored.id,
            name=stored.name,
            trigger=trigger,
            executor=_EXECUTOR,
            func=_queued,
            args=(),
            kwargs={},
            coalesce=True,
            misfire_grace_time=None,
            max_instances=1,
            next_run_time=next_at,
        )


def _queued() -> None:
    """Stands for what the executor does itself."""
