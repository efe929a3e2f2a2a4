"""A daemon service in memory: entries change state at once, nothing is started."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import msgspec

from supervisor.config import load_config
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
from supervisor.problems import InputError


class ToyService:
    """``looks_through``: configurations are validated before they are queued."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.queue: dict[int, Entry] = {}
        self.plan: dict[str, Schedule] = {}
        self.looks_through = False
        self._lock = threading.Lock()
        self._begun = time.monotonic()

    def submit(self, submission: Submission) -> Entry:
        with self._lock:
            missing = [each for each in submission.after if each not in self.queue]
            if missing:
                raise NoSuchEntryError(f"There is no entry {missing[0]} in the queue.")
            if self.looks_through:
                _look_through(submission.config)
            number = len(self.queue) + 1
            name = submission.name or submission.config.stem
            entry = Entry(
                id=number,
                name=name,
                config=submission.config,
                run_dir=submission.run_dir or self.runs / f"{name}-{number}",
                kind=submission.kind,
                state=EntryState.BLOCKED if submission.after else EntryState.WAITING,
                priority=submission.priority,
                after=submission.after,
                resource="cpu",
                submitted_at=time.time(),
                arguments=submission.arguments,
            )
            self.queue[number] = entry
            return entry

    def entries(self, ended: int | None = None) -> tuple[Entry, ...]:
        over = [each for each in self.queue.values() if each.state.ended]
        over = over if ended is None else over[len(over) - min(ended, len(over)) :]
        return tuple(each for each in self.queue.values() if not each.state.ended or each in over)

    def entry(self, entry_id: int) -> Entry:
        if entry_id not in self.queue:
            raise NoSuchEntryError(f"There is no entry {entry_id} in the queue.")
        return self.queue[entry_id]

    def cancel(self, entry_id: int) -> Entry:
        return self._change(entry_id, EntryState.CANCELLED)

    def pause(self, entry_id: int) -> Entry:
        return self._change(entry_id, EntryState.PAUSED)

    def resume(self, entry_id: int) -> Entry:
        return self._change(entry_id, EntryState.WAITING)

    def schedules(self) -> tuple[Schedule, ...]:
        return tuple(self.plan.values())

    def add_schedule(self, config: Path, cron: str) -> Schedule:
        if len(cron.split()) != 5:
            raise NotPossibleError(f"{cron!r} is no schedule.")
        with self._lock:
            number = str(len(self.plan) + 1)
            self.plan[number] = Schedule(id=number, config=config, cron=cron, kind="sft", next_at=time.time() + 60)
            return self.plan[number]

    def remove_schedule(self, schedule_id: str) -> None:
        with self._lock:
            if self.plan.pop(schedule_id, None) is None:
                raise NoSuchEntryError(f"There is no schedule {schedule_id}.")

    def health(self) -> Health:
        running = next((each.id for each in self.queue.values() if each.state is EntryState.RUNNING), None)
        return Health(
            version="0",
            pid=os.getpid(),
            uptime_seconds=time.monotonic() - self._begun,
            tick_age_seconds=0.0,
            runs=self.runs,
            leases=(Lease(resource="cpu", entry=running),),
        )

    def _change(self, entry_id: int, state: EntryState) -> Entry:
        entry = self.entry(entry_id)
        if entry.state.ended:
            raise NotPossibleError(f"Entry {entry_id} has ended ({entry.state}).")
        with self._lock:
            self.queue[entry_id] = msgspec.structs.replace(entry, state=state)
        return self.queue[entry_id]


def _look_through(config: Path) -> None:
    try:
        load_config(config)
    except InputError as error:
        raise NotPossibleError(str(error)) from None
