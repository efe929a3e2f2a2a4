"""Where the daemon takes requests: every method changes the queue and wakes the main loop, which does the rest."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from supervisor.daemon.cron import trigger_of
from supervisor.daemon.intake import Accepted, accept
from supervisor.daemon.paths import DaemonPaths
from supervisor.daemon.queue import Job, Queue
from supervisor.daemon.scheduler import first_time
from supervisor.daemon.service import (
    Entry,
    EntryState,
    Health,
    Lease,
    NoSuchEntryError,
    NotPossibleError,
    Schedule,
    Submission,
)
from supervisor.daemon.turns import CPU, Turn, unmet
from supervisor.protocol.atomic import write_atomic

Accept = Callable[..., Accepted]
_NAME = "mens-supervisor"


@dataclass
class LoopView:
    """What the main loop shows to the desk; replaced as wholes, never changed in place."""

    turns: Mapping[int, Turn] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    started: float = field(default_factory=time.monotonic)
    ticked: float = field(default_factory=time.monotonic)


class Desk:
    """Implements :class:`supervisor.daemon.service.DaemonService`. Its methods may be called from any thread.

    ``wake``: makes the main loop look at once. ``hurry``: has the trainer of an entry killed instead of waited for.
    """

    def __init__(
        self,
        paths: DaemonPaths,
        runs: Path,
        queue: Queue,
        view: LoopView,
        wake: Callable[[], None],
        hurry: Callable[[int], None],
        accept: Accept = accept,
    ) -> None:
        self._paths = paths
        self._runs = runs
        self._queue = queue
        self._view = view
        self._wake = wake
        self._hurry = hurry
        self._accept = accept

    def submit(self, submission: Submission) -> Entry:
        self._known(submission.after)
        # What it follows may bring what its configuration names.
        accepted = self._accept(submission.config, submission.arguments, preflight=not submission.after)
        name = submission.name or accepted.name
        with self._queue.transaction():
            self._known(submission.after)
            if submission.run_dir is not None:
                self._refuse_twice(submission.run_dir)
            entry = self._queue.add(
                name=name,
                config=str(submission.config),
                run_dir=str(submission.run_dir or ""),
                kind=accepted.kind,
                arguments=accepted.arguments,
                after=submission.after,
                priority=submission.priority,
                device=accepted.device,
                processes=accepted.processes,
            )
            if submission.run_dir is None:
                self._queue.change(entry, run_dir=str(new_run_dir(self._runs, name, entry)))
            # Before the commit: an entry without its configuration must never be seen.
            paths = self._paths.job(entry)
            paths.root.mkdir(parents=True, exist_ok=True)
            write_atomic(paths.config, accepted.document.encode(), mode=0o600)
        self._wake()
        return self.entry(entry)

    def entries(self, ended: int | None = None) -> tuple[Entry, ...]:
        jobs = (*self._queue.unfinished(), *self._queue.ended(ended))
        return tuple(self._entry(job) for job in sorted(jobs, key=lambda job: job.id))

    def entry(self, entry_id: int) -> Entry:
        return self._entry(self._queue.job(entry_id))

    def cancel(self, entry_id: int) -> Entry:
        with self._queue.transaction():
            job = self._queue.job(entry_id)
            if job.state.ended:
                raise NotPossibleError(f"Entry {entry_id} has ended already: it is {job.state}.")
            if job.state in (EntryState.STARTING, EntryState.RUNNING):
                if job.wish == "cancel":
                    self._hurry(entry_id)
                self._queue.change(entry_id, wish="cancel")
            else:
                self._queue.change(
                    entry_id, state=EntryState.CANCELLED, ended_at=time.time(), explanation="Cancelled.", resumed=0
                )
        self._wake()
        return self.entry(entry_id)

    def pause(self, entry_id: int) -> Entry:
        with self._queue.transaction():
            job = self._queue.job(entry_id)
            if job.state.ended:
                raise NotPossibleError(f"Entry {entry_id} has ended already: it is {job.state}.")
            if job.wish == "cancel":
                raise NotPossibleError(f"Entry {entry_id} is being cancelled.")
            if job.state in (EntryState.STARTING, EntryState.RUNNING):
                self._queue.change(entry_id, wish="pause")
            elif job.state is EntryState.WAITING:
                words = "Paused while it waited. `mens-sup resume` puts it back."
                self._queue.change(entry_id, state=EntryState.PAUSED, explanation=words)
        self._wake()
        return self.entry(entry_id)

    def resume(self, entry_id: int) -> Entry:
        with self._queue.transaction():
            job = self._queue.job(entry_id)
            if job.wish == "pause":
                raise NotPossibleError(f"Entry {entry_id} is still saving its checkpoint. Resume it once it is paused.")
            if job.state not in (EntryState.PAUSED, EntryState.FAILED):
                raise NotPossibleError(
                    f"Entry {entry_id} is {job.state}; only one that is paused or has failed can be resumed."
                )
            self._queue.change(
                entry_id, state=EntryState.WAITING, outcome=None, ended_at=None, explanation="", crashes=0, mark=""
            )
        self._wake()
        return self.entry(entry_id)

    def schedules(self) -> tuple[Schedule, ...]:
        return tuple(
            Schedule(id=each.id, config=Path(each.config), cron=each.cron, kind=each.kind, next_at=each.next_at)
            for each in self._queue.schedules()
        )

    def add_schedule(self, config: Path, cron: str) -> Schedule:
        trigger_of(cron)
        accepted = self._accept(config, (), preflight=True)
        identifier = self._queue.add_schedule(
            config=str(config),
            cron=cron,
            kind=accepted.kind,
            name=accepted.name,
            device=accepted.device,
            processes=accepted.processes,
            next_at=first_time(cron),
        )
        self._wake()
        return next(each for each in self.schedules() if each.id == identifier)

    def remove_schedule(self, schedule_id: str) -> None:
        if not self._queue.remove_schedule(schedule_id):
            raise NoSuchEntryError(f"There is no schedule {schedule_id}. `mens-sup schedule list` shows them.")
        self._wake()

    def health(self) -> Health:
        holders = {held.resource: held.job for held in self._queue.held()}
        names = dict.fromkeys((*self._view.gpus, CPU, *holders))
        now = time.monotonic()
        return Health(
            version=version(_NAME),
            pid=os.getpid(),
            uptime_seconds=now - self._view.started,
            tick_age_seconds=now - self._view.ticked,
            runs=self._runs,
            leases=tuple(Lease(resource=name, entry=holders.get(name)) for name in names),
        )

    def _known(self, after: tuple[int, ...]) -> None:
        if missing := sorted(set(after) - set(self._queue.states(after))):
            raise NoSuchEntryError(f"There is no entry {missing[0]} in the queue. `mens-sup queue` lists them.")

    def _refuse_twice(self, run_dir: Path) -> None:
        for job in self._queue.unfinished():
            if job.run_dir == str(run_dir):
                raise NotPossibleError(f"{run_dir} is in the queue already, as entry {job.id} ({job.state}).")

    def _entry(self, job: Job) -> Entry:
        state, explanation, resource = job.state, job.explanation, ",".join(job.resources)
        if state is EntryState.WAITING:
            resource = ""
            if why := unmet({each: self._queue.states((each,)).get(each) for each in job.after}):
                state, explanation = EntryState.BLOCKED, why
            elif (turn := self._view.turns.get(job.id)) is not None:
                explanation = turn.why or explanation
        elif job.wish and job.state is EntryState.RUNNING:
            explanation = {
                "pause": "It saves a checkpoint and pauses.",
                "cancel": "It saves a checkpoint and ends.",
                "yield": "The daemon stops: it saves a checkpoint and waits.",
            }[job.wish]
        return Entry(
            id=job.id,
            name=job.name,
            config=Path(job.config),
            run_dir=Path(job.run_dir),
            kind=job.kind,
            state=state,
            priority=job.priority,
            after=job.after,
            resource=resource or (CPU if job.device == CPU or not self._view.gpus else "gpu"),
            submitted_at=job.submitted_at,
            started_at=job.started_at,
            ended_at=job.ended_at,
            outcome=job.outcome,
            explanation=explanation,
            arguments=job.arguments,
        )


def new_run_dir(runs: Path, name: str, entry: int) -> Path:
    """A folder that no other entry has."""
    return runs / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{entry}"
