"""The daemon's main loop. It alone starts and ends things, and it alone tells systemd that the daemon is well."""

from __future__ import annotations

import enum
import logging
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from supervisor.daemon.cards import Cards
from supervisor.daemon.dead_man import DeadMan
from supervisor.daemon.desk import Desk, LoopView, new_run_dir
from supervisor.daemon.launcher import Launcher
from supervisor.daemon.paths import DaemonPaths
from supervisor.daemon.queue import Held, Job, Queue, StoredSchedule, damaged
from supervisor.daemon.runner import Runner
from supervisor.daemon.scheduler import Scheduler
from supervisor.daemon.sd_notify import Notifier
from supervisor.daemon.service import DaemonService, EntryState
from supervisor.daemon.stop_signals import DaemonSignals
from supervisor.daemon.turns import CPU, Candidate, Holding, Resources, decide
from supervisor.problems import InputError
from supervisor.protocol.lock import FileLock, LockHeldError

SOON_SECONDS = 0.2
"""Between two looks while something is between two states."""
IDLE_SECONDS = 30.0
RETRY_SECONDS = 5.0
_log = logging.getLogger("mens-supervisor")


class End(enum.Enum):
    """How the loop ended. STOP: everything that ran has saved and waits. LEAVE: it runs on. RELOAD: so it does, and
    this process becomes the daemon anew, perhaps of another version."""

    STOP = "stop"
    LEAVE = "leave"
    RELOAD = "reload"


class Control(Protocol):
    """The server through which the daemon is asked."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    @property
    def alive(self) -> bool: ...


class Daemon:
    """``restarting``: asked when the daemon is to stop, whether another one comes at once, so that jobs may run on."""

    def __init__(
        self,
        paths: DaemonPaths,
        runs: Path,
        launcher: Launcher,
        *,
        restarting: Callable[[], bool],
        notifier: Notifier | None = None,
        cards: Cards | None = None,
        dead_man: DeadMan | None = None,
    ) -> None:
        self._paths = paths
        self._runs = runs
        self._launcher = launcher
        self._restarting = restarting
        self._notifier = notifier or Notifier()
        self._cards = cards or Cards()
        self._dead_man = dead_man or DeadMan(None)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._view = LoopView()
        self._yielding = False

    def run(self, control: Callable[[DaemonService], Control] | None = None) -> End:
        """Serve until asked to stop. Raises InputError when the state folder cannot be used."""
        with ExitStack() as stack:
            stack.enter_context(self._only_one())
            self._queue = Queue(self._paths.queue)
            stack.callback(self._queue.close)
            self._runner = Runner(self._paths, self._queue, self._launcher)
            stack.callback(self._runner.forget)
            stack.callback(self._cards.rest)
            self._scheduler = Scheduler(self._queue, self._fire)
            self._scheduler.start()
            stack.callback(self._scheduler.shutdown, wait=False)
            signals = stack.enter_context(DaemonSignals())
            self._control: Control | None = None
            desk = Desk(self._paths, self._runs, self._queue, self._view, self.wake, self._runner.hurry)
            if control is not None:
                self._control = control(desk)
                self._control.start()
                stack.callback(self._control.stop)
            end = self._loop(signals)
            if end is End.RELOAD:
                self._notifier.reloading()
            else:
                self._notifier.stopping()
            return end

    def wake(self) -> None:
        """Have the loop look at once; from any thread."""
        try:
            os.write(self._wake_write, b".")
        except BlockingIOError:
            return  # it has been woken often enough

    @contextmanager
    def _only_one(self) -> Iterator[None]:
        lock = FileLock(self._paths.lock)
        try:
            for folder in (self._paths.root, self._runs):
                folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except LockHeldError as error:
            raise InputError(
                f"A daemon works with {self._paths.root} already: process {error.owner or 'unknown'}. Ask it with "
                "`mens-sup queue`, or name another --state-dir."
            ) from None
        except OSError as error:
            raise InputError(
                f"{error.filename}: {error.strerror}. The daemon keeps its queue in {self._paths.root} and runs in "
                f"{self._runs}; give it the right to, or name other folders with --state-dir and --runs."
            ) from error
        try:
            yield
        finally:
            lock.release()

    def _loop(self, signals: DaemonSignals) -> End:
        self._notifier.ready()
        while True:
            try:
                if (end := self._asked(signals)) is not None:
                    return end
                wait = self._look()
                status = self._status()
            except sqlite3.OperationalError as error:  # a full disk: every step is whole or undone, and tried again
                status, wait = f"the queue cannot be written: {error}", RETRY_SECONDS
                _log.error("%s: %s", self._paths.queue, status)
            except sqlite3.DatabaseError as error:
                if type(error) is not sqlite3.DatabaseError:
                    raise  # a constraint is broken, or a call is wrong: our own fault
                raise damaged(self._paths.queue, error) from error
            except OSError as error:
                where = error.filename or self._paths.root
                status, wait = f"{where} cannot be used: {error.strerror or error}", RETRY_SECONDS
                _log.error("%s", status)
            self._view.ticked = time.monotonic()
            self._notifier.alive()
            self._dead_man.tick()
            self._notifier.status(status)
            signals.wait(wait, [self._wake_read, *self._runner.descriptors])
            self._drain()

    def _look(self) -> float:
        """One round; how long nothing will happen by itself, in seconds."""
        if self._control is not None and not self._control.alive:
            raise RuntimeError("the control server has ended")
        due = None if self._yielding else self._scheduler.process()
        self._runner.tick()
        if self._yielding:
            self._ask_all_to_yield()
        self._release()
        waiting = () if self._yielding else self._start_what_can()
        busy = self._runner.unsettled or bool(waiting) or self._being_released()
        limits = [IDLE_SECONDS, *((due,) if due is not None else ())]
        if self._notifier.watchdog_seconds is not None:
            limits.append(self._notifier.watchdog_seconds / 3)
        return SOON_SECONDS if busy else min(limits)

    def _start_what_can(self) -> Sequence[Job]:
        """Start whose turn it is; those who wait only for what is being looked at."""
        jobs = [job for job in self._queue.unfinished() if job.state is EntryState.WAITING]
        if any(job.device != CPU for job in jobs):
            self._cards.look()
        elif not self._being_released():
            self._cards.rest()
        names = self._cards.names
        turns = decide([self._candidate(job) for job in jobs], self._resources(names))
        self._view.gpus = names or ()
        self._view.turns = {turn.id: turn for turn in turns}
        by_id = {job.id: job for job in jobs}
        unsure = []
        for turn in turns:
            job = by_id[turn.id]
            if turn.resources and (turn.resources == (CPU,) or self._cards.fresh):
                self._runner.begin(job, turn.resources, self._cards.before(turn.resources))
            elif turn.resources or (not turn.blocked and names is None and job.device != CPU):
                unsure.append(job)
        return unsure

    def _release(self) -> None:
        for held in self._queue.held():
            if held.releasing_since is None:
                continue
            note = self._holds_up(held)
            if not note:
                self._queue.release(held.resource)
            elif note != held.note:
                self._queue.note_release(held.resource, note)

    def _holds_up(self, held: Held) -> str:
        assert held.releasing_since is not None
        if left := self._runner.end_leftovers(self._queue.job(held.job)):
            return left
        if held.resource == CPU:
            return ""
        self._cards.look()
        return self._cards.still_held(held.resource, held.before, max(0.0, time.time() - held.releasing_since))

    def _being_released(self) -> bool:
        return any(held.releasing_since is not None for held in self._queue.held())

    def _candidate(self, job: Job) -> Candidate:
        states = self._queue.states(job.after)
        after = {each: states.get(each) for each in job.after}
        return Candidate(job.id, job.name, job.priority, job.resumed, job.device, job.processes, after)

    def _resources(self, names: tuple[str, ...] | None) -> Resources:
        held = {}
        for each in self._queue.held():
            name, ended = self._queue.job(each.job).name, each.releasing_since is not None
            held[each.resource] = Holding(each.job, name, ended, each.note)
        return Resources(names, held, self._cards.unknown)

    def _fire(self, schedule: StoredSchedule, when: float) -> None:
        """Queue a job for a schedule, in the transaction that moves it on to its next time."""
        if left := self._queue.of_schedule(schedule.id):
            _log.warning("schedule %s: entry %d of it has not ended yet; no other is queued", schedule.id, left[0].id)
            return
        entry = self._queue.add(
            name=schedule.name, config=schedule.config, run_dir="", kind=schedule.kind, priority=0,
            device=schedule.device, processes=schedule.processes, schedule=schedule.id, scheduled_for=when,
        )  # fmt: skip
        self._queue.change(entry, run_dir=str(new_run_dir(self._runs, schedule.name, entry)))
        _log.info("schedule %s: entry %d (%s) is queued", schedule.id, entry, schedule.name)

    def _asked(self, signals: DaemonSignals) -> End | None:
        if signals.reload:
            return End.RELOAD
        if not signals.stop:
            return None
        if signals.leave:
            return End.LEAVE
        if not self._yielding:
            if self._restarting():
                _log.info("another daemon comes at once: what runs goes on running")
                return End.LEAVE
            self._notifier.stopping()
            _log.info("stopping: what runs is asked to save a checkpoint")
            self._yielding = True
            self._ask_all_to_yield()
        running = self._running()
        if running:
            self._notifier.extend(60)
        return None if running else End.STOP

    def _ask_all_to_yield(self) -> None:
        for job in self._running():
            if not job.wish:
                self._queue.change(job.id, wish="yield")

    def _running(self) -> list[Job]:
        return [job for job in self._queue.unfinished() if job.state in (EntryState.STARTING, EntryState.RUNNING)]

    def _status(self) -> str:
        jobs = self._queue.unfinished()
        running = [job for job in jobs if job.state in (EntryState.STARTING, EntryState.RUNNING)]
        waiting = sum(job.state is EntryState.WAITING for job in jobs)
        shown = "; ".join(f"{job.name} (entry {job.id}) on {','.join(job.resources)}" for job in running)
        return f"{f'running {shown}' if shown else 'nothing runs'}; {waiting} waiting"

    def _drain(self) -> None:
        try:
            while os.read(self._wake_read, 4096):
                continue
        except BlockingIOError:
            return


def become_anew() -> None:
    """Replace this process by a daemon of what is installed now."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", "supervisor.cli", *sys.argv[1:]])
