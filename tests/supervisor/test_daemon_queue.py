"""The queue, its schedules and the desk in front of it, without a process."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apscheduler.triggers.cron import CronTrigger

from supervisor.daemon import scheduler as scheduler_module
from supervisor.daemon.desk import Desk, LoopView
from supervisor.daemon.intake import Accepted, accept
from supervisor.daemon.launcher import SessionLauncher
from supervisor.daemon.loop import Daemon
from supervisor.daemon.paths import DaemonPaths
from supervisor.daemon.queue import Queue, StoredSchedule
from supervisor.daemon.scheduler import Scheduler
from supervisor.daemon.service import EntryState, NoSuchEntryError, NotPossibleError, Submission
from supervisor.problems import InputError
from supervisor.protocol.lock import FileLock

ACCEPTED = Accepted(name="r", kind="sft", device="cpu", processes=1, arguments=(), document="name: r\n")
HOUR = 3600.0


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    made = Queue(tmp_path / "queue.db")
    yield made
    made.close()


@pytest.fixture
def desk(tmp_path: Path, queue: Queue) -> Desk:
    def accept(config: Path, arguments: object, *, preflight: bool) -> Accepted:
        return ACCEPTED

    return Desk(DaemonPaths(tmp_path), tmp_path / "runs", queue, LoopView(), lambda: None, lambda entry: None, accept)


def submission(**more: Any) -> Submission:
    return Submission(config=Path("/c.yaml"), kind="sft", **more)


def add(queue: Queue, **more: Any) -> int:
    values = {"name": "r", "config": "/c.yaml", "run_dir": "/r", "kind": "sft", "priority": 0, "device": "cpu"}
    return queue.add(**{**values, "processes": 1, **more})


# proves SUP-18: a resource has one holder, by constraint
def test_a_resource_is_lent_once(queue: Queue) -> None:
    first, second = add(queue), add(queue)
    queue.lend(first, ("cpu",), "{}")
    with pytest.raises(sqlite3.IntegrityError):
        queue.lend(second, ("GPU-a", "cpu"), "{}")
    assert [held.job for held in queue.held()] == [first]  # all or nothing
    assert queue.job(second).resources == ()


# proves SUP-18: durable, and all or nothing
def test_the_queue_is_written_through_and_in_transactions(tmp_path: Path, queue: Queue) -> None:
    def pragma(name: str) -> Any:
        return queue._db.execute(f"PRAGMA {name}").fetchone()[0]

    assert (pragma("journal_mode"), pragma("synchronous")) == ("wal", 2)

    def cut() -> None:
        with queue.transaction():
            add(queue)
            with queue.transaction():
                add(queue)
            raise RuntimeError("cut")

    with pytest.raises(RuntimeError):
        cut()
    assert queue.unfinished() == ()
    kept = add(queue)
    again = Queue(tmp_path / "queue.db")
    assert [job.id for job in again.unfinished()] == [kept]
    again.close()


def test_a_damaged_queue_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "queue.db").write_bytes(b"no database" * 999)
    with pytest.raises(InputError, match=r"queue.db: the queue cannot be read .* Move it aside"):
        Queue(tmp_path / "queue.db")


# proves SUP-18: a queue that is damaged while the daemon works, too, ends it with a paragraph
def test_a_queue_that_gets_damaged_is_a_sentence(tmp_path: Path) -> None:
    paths = DaemonPaths(tmp_path / "state")
    daemon = Daemon(paths, paths.runs, SessionLauncher(), restarting=lambda: False)

    class Damaging:
        alive = True

        def start(self) -> None:
            daemon._queue._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            with open(paths.queue, "r+b") as file:
                file.write(b"no database" * (paths.queue.stat().st_size // 11))
            daemon._queue._db.execute("PRAGMA cache_size = 0")

        def stop(self) -> None:
            return

    with pytest.raises(InputError, match=r"queue.db: the queue cannot be read .* Move it aside"):
        daemon.run(lambda desk: Damaging())


def test_a_queue_of_a_later_version_is_left_alone(tmp_path: Path, queue: Queue) -> None:
    queue._db.execute("PRAGMA user_version = 99")
    with pytest.raises(InputError, match="later version"):
        Queue(tmp_path / "queue.db")


# proves SUP-18: submit, dependencies, pause, resume, cancel
def test_submitted_work_keeps_its_configuration(tmp_path: Path, desk: Desk) -> None:
    entry = desk.submit(submission(priority=3, name="mine"))
    assert (entry.name, entry.state, entry.priority, entry.resource) == ("mine", EntryState.WAITING, 3, "cpu")
    assert entry.run_dir.name.startswith("mine-") and entry.run_dir.name.endswith(f"-{entry.id}")
    assert (tmp_path / "jobs" / str(entry.id) / "config.yaml").read_text() == "name: r\n"


def test_who_follows_another_is_shown_as_blocked(desk: Desk, queue: Queue) -> None:
    first = desk.submit(submission())
    second = desk.submit(submission(after=(first.id,)))
    assert (second.state, second.explanation) == (EntryState.BLOCKED, f"It follows entry {first.id}.")
    queue.change(first.id, state=EntryState.COMPLETED)
    assert desk.entry(second.id).state is EntryState.WAITING
    with pytest.raises(NoSuchEntryError):
        desk.submit(submission(after=(99,)))


def test_pause_resume_and_cancel(desk: Desk, queue: Queue) -> None:
    entry = desk.submit(submission()).id
    assert desk.pause(entry).state is EntryState.PAUSED
    assert desk.resume(entry).state is EntryState.WAITING
    queue.change(entry, state=EntryState.RUNNING)
    assert desk.pause(entry).state is EntryState.RUNNING and queue.job(entry).wish == "pause"
    with pytest.raises(NotPossibleError, match="still saving"):
        desk.resume(entry)
    desk.cancel(entry)
    with pytest.raises(NotPossibleError, match="being cancelled"):
        desk.pause(entry)
    queue.change(entry, state=EntryState.FAILED, wish="")
    with pytest.raises(NotPossibleError, match="has ended already"):
        desk.cancel(entry)
    assert desk.resume(entry).state is EntryState.WAITING  # a failed one may be tried again
    assert desk.cancel(entry).state is EntryState.CANCELLED
    with pytest.raises(NotPossibleError, match="only one that is paused"):
        desk.resume(entry)
    with pytest.raises(NoSuchEntryError):
        desk.entry(99)


def test_a_run_is_in_the_queue_once(tmp_path: Path, desk: Desk) -> None:
    desk.submit(submission(run_dir=tmp_path / "r"))
    with pytest.raises(NotPossibleError, match="in the queue already"):
        desk.submit(submission(run_dir=tmp_path / "r"))


def schedule(queue: Queue, next_at: float) -> str:
    return queue.add_schedule(
        config="/c.yaml", cron="0 * * * *", kind="sft", name="r", device="cpu", processes=1, next_at=next_at
    )


class Fired:
    """Queues a job as the daemon does, and notes it."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.times: list[float] = []
        self.dies = False

    def __call__(self, stored: StoredSchedule, when: float) -> None:
        add(self.queue, schedule=stored.id, scheduled_for=when)
        self.times.append(when)
        if self.dies:
            raise KeyboardInterrupt  # as a kill would: nothing after it is done


@pytest.fixture
def fired(queue: Queue) -> Fired:
    return Fired(queue)


@pytest.fixture
def scheduler(queue: Queue, fired: Fired) -> Iterator[Scheduler]:
    made = Scheduler(queue, fired)
    made.start()
    yield made
    made.shutdown(wait=False)


# proves SUP-18: what was missed while no daemon ran is made up for once
def test_missed_times_are_coalesced(queue: Queue, scheduler: Scheduler, fired: Fired) -> None:
    now = time.time()
    schedule(queue, next_at=now - 5 * HOUR)
    wait = scheduler.process()
    assert len(fired.times) == 1 and now - HOUR <= fired.times[0] <= now
    (stored,) = queue.schedules()
    assert stored.next_at is not None and 0 < stored.next_at - now <= HOUR
    assert wait is not None and 0 < wait <= HOUR
    scheduler.process()
    assert len(queue.unfinished()) == 1


# proves SUP-18: a machine that was off for years, or whose clock was, is not busy for minutes with what it missed
def test_years_of_missed_times_are_one_entry_at_once(
    queue: Queue, scheduler: Scheduler, fired: Fired, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    original = CronTrigger.get_next_fire_time

    def counted(self: CronTrigger, *given: Any) -> Any:
        looked.append(given)
        return original(self, *given)

    monkeypatch.setattr(CronTrigger, "get_next_fire_time", counted)
    now = time.time()
    schedule(queue, next_at=now - 365 * 24 * HOUR)
    scheduler.process()
    assert len(fired.times) == 1 and now - HOUR <= fired.times[0] <= now
    assert len(looked) < 100


# proves SUP-18: a time that was reckoned while the clock was years ahead comes when cron would have it come
def test_a_clock_that_was_ahead_silences_no_schedule(queue: Queue, scheduler: Scheduler, fired: Fired) -> None:
    now = time.time()
    schedule(queue, next_at=now + 4 * 365 * 24 * HOUR)
    wait = scheduler.process()
    assert fired.times == [] and wait is not None and wait <= HOUR
    assert queue.schedules()[0].next_at == pytest.approx(now + wait, abs=60)


# proves SUP-18: a full disk undoes a step, and what is said of it is what SQLite said
def test_a_full_disk_undoes_a_step_and_is_named(queue: Queue) -> None:
    first = add(queue)
    pages = queue._db.execute("PRAGMA page_count").fetchone()[0]
    queue._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        add(queue, name="r" * 100_000)
    assert [job.id for job in queue.unfinished()] == [first]
    queue._db.execute("PRAGMA max_page_count = 100000")
    assert queue.job(add(queue)).state is EntryState.WAITING


# proves SUP-18: a kill between queueing a job and moving its schedule on neither loses nor doubles it
def test_a_time_that_comes_is_one_transaction(queue: Queue, scheduler: Scheduler, fired: Fired) -> None:
    due = time.time() - 60
    schedule(queue, next_at=due)
    fired.dies = True
    with pytest.raises(KeyboardInterrupt):
        scheduler.process()
    assert queue.unfinished() == () and queue.schedules()[0].next_at == due
    fired.dies = False
    scheduler.process()
    assert len(queue.unfinished()) == 1 and queue.schedules()[0].next_at != due


def test_a_schedule_is_made_and_removed(desk: Desk) -> None:
    made = desk.add_schedule(Path("/c.yaml"), "0 2 * * *")
    assert made.next_at is not None and time.localtime(made.next_at).tm_hour == 2
    assert desk.schedules() == (made,)
    desk.remove_schedule(made.id)
    assert desk.schedules() == ()
    with pytest.raises(NoSuchEntryError):
        desk.remove_schedule(made.id)
    assert desk.add_schedule(Path("/c.yaml"), "0 2 * * *").id != made.id
    with pytest.raises(NotPossibleError):
        desk.add_schedule(Path("/c.yaml"), "now and then")
    assert scheduler_module.first_time("0 2 * * *") == made.next_at


def test_there_is_one_daemon_for_a_state_folder(tmp_path: Path) -> None:
    paths = DaemonPaths(tmp_path)
    daemon = Daemon(paths, tmp_path / "runs", SessionLauncher(), restarting=lambda: False)
    with FileLock(paths.lock), pytest.raises(InputError, match="A daemon works with"):
        daemon.run()


# proves SUP-18: what is queued was looked through; what is wrong is said with line and key
def test_a_configuration_is_looked_through(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("kind: command\nname: mine\ncommand: [echo, hello]\nworking_dir: .\n")
    accepted = accept(config, ("--set=limits.max_hours=3", "--max-attempts=2"), preflight=True)
    assert (accepted.name, accepted.kind, accepted.device) == ("mine", "command", "auto")
    assert accepted.arguments == ("--max-attempts=2",)
    assert "max_hours: 3" in accepted.document and f"working_dir: {tmp_path}" in accepted.document
    config.write_text("kind: command\ncommnd: [echo]\n")
    with pytest.raises(NotPossibleError, match=r"c.yaml:2: .*commnd.*Did you mean command"):
        accept(config, (), preflight=True)
    with pytest.raises(NotPossibleError, match="takes these arguments"):
        accept(config, ("--run-dir=/etc",), preflight=True)
