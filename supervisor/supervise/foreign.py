"""Trainers that need not speak the run directory's contract: start them, stop them, know their checkpoints."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from supervisor.checkpoints import CheckpointInfo, inspect_lineage
from supervisor.jobs import AttemptFacts, ForeignKind, keeps_own_state
from supervisor.process.adopted import RunningTrainer
from supervisor.process.leftovers import end_leftovers, processes_of
from supervisor.process.spawn import ExitStatus, spawn_trainer
from supervisor.protocol.attempt import read_spec
from supervisor.protocol.heartbeat import read_heartbeat
from supervisor.protocol.lock import FileLock
from supervisor.protocol.paths import AttemptPaths
from supervisor.sensors.disk import tree_bytes
from supervisor.supervise.opening import Run

QUARANTINE = "quarantine"
_LOOK_SECONDS = 0.1


def foreign_kind(run: Run) -> ForeignKind | None:
    """The run's kind if its program need not speak the contract, else None."""
    kind = run.kind
    return kind if isinstance(kind, ForeignKind) else None


def attempt_facts(run: Run, resume_from: Path | None = None) -> AttemptFacts:
    own = run.config.own
    return AttemptFacts(
        run_dir=run.paths.root,
        attempt=run.state.attempt,
        lineage=run.state.lineage,
        resume_from=resume_from,
        python=own.launch.python or sys.executable,
        save_steps=own.checkpoint.save_steps,
        keep=own.checkpoint.keep,
    )


def start_foreign(run: Run, kind: ForeignKind, paths: AttemptPaths, environment: Mapping[str, str]) -> RunningTrainer:
    """Start the program; it holds ``trainer.lock`` for as long as it lives, without knowing.

    Both its streams go into one log, so that their order, which tells what came first, is kept. Raises OSError when it
    cannot be started, LockHeldError when something that was not ended still holds the lock.
    """
    resume_from = read_spec(paths.spec).resume_from
    program = kind.program(run.config.sections, attempt_facts(run, Path(resume_from) if resume_from else None))
    with FileLock(run.paths.trainer_lock) as lock:
        inherited = (lock.descriptor,)
        process = spawn_trainer(
            program.arguments, environment, paths.stderr, paths.stderr, folder=program.folder, inherited=inherited
        )
        try:
            lock.hand_over(process.pid)
        except BaseException:  # nobody would know of the program
            process.kill_group()
            process.reap()
            end_leftovers(paths.spec)
            raise
    return ForeignTrainer(process, paths)


def still_locked(lock: Path) -> str:
    """What to do when a process that is not known holds the lock of the run's trainer."""
    return (
        f"{lock} is still held by a process that is no trainer of this run's last attempt. Find it with `fuser -v` on "
        "that file, end it, then run again."
    )


class ForeignTrainer:
    """Any program as a running trainer.

    Who launches what is not known: the program may be a launcher that dies on SIGTERM while its child still saves. So
    the one that beats is asked to stop or, without heartbeat, everybody; and the end waits for all of them.
    """

    def __init__(self, process: RunningTrainer, paths: AttemptPaths) -> None:
        self._process = process
        self._paths = paths
        self._asked = False
        self.pid = process.pid
        self.pidfd = process.pidfd

    def ended(self) -> bool:
        if not self._process.ended():
            return False
        if self._asked and processes_of(self._paths.spec):
            time.sleep(_LOOK_SECONDS)  # the pidfd is readable already and would let nobody wait
            return False
        return True

    def send(self, number: int) -> None:
        self._asked = True
        members = processes_of(self._paths.spec)
        beat = read_heartbeat(self._paths.heartbeat)
        if beat is not None and beat.pid in members and number == signal.SIGTERM:
            members = [beat.pid]
        for pid in members:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def kill_group(self) -> None:
        self._asked = False  # whoever is left is ended by force
        self._process.kill_group()

    def reap(self) -> ExitStatus:
        return self._process.reap()


def watched(run: Run, process: RunningTrainer) -> RunningTrainer:
    """A running trainer as its kind of job wants it to be stopped."""
    if foreign_kind(run) is None or isinstance(process, ForeignTrainer):
        return process
    return ForeignTrainer(process, run.paths.attempt(run.state.attempt))


def inspect_checkpoints(run: Run) -> list[CheckpointInfo]:
    """All checkpoints of the run's lineage, verified, oldest step first.

    Those of a foreign trainer that lie outside the run directory count as 0 bytes: they take no room in it.
    """
    kind = foreign_kind(run)
    if keeps_own_state(run.kind):
        return []
    if kind is None:
        return inspect_lineage(run.paths.checkpoints(run.state.lineage))
    found = kind.own_checkpoints(run.config.sections, attempt_facts(run))
    return [
        CheckpointInfo(
            entry.path,
            entry.step,
            tree_bytes(entry.path) if entry.path.is_relative_to(run.paths.root) and entry.path.is_dir() else 0,
            None,
            entry.faults,
        )
        for entry in found
    ]


def note_newest_checkpoint(run: Run) -> None:
    """Enter the newest whole checkpoint of a foreign trainer, which nobody follows while it runs."""
    if foreign_kind(run) is None:
        return
    try:
        good = [info for info in inspect_checkpoints(run) if info.good]
    except OSError as error:  # the run ends all the same
        run.journal.event("warning", f"the checkpoints cannot be looked at: {error.strerror} ({error.filename})")
        return
    if good:
        run.state.last_checkpoint = shown_place(run, good[-1].path)


def how_it_goes_on(run: Run) -> str:
    """What the next `mens-sup run` does, a verb and where."""
    if keeps_own_state(run.kind):
        return "goes on with what is done already"
    if run.state.last_checkpoint:
        return f"goes on from {run.state.last_checkpoint}"
    return "starts from step 0" if foreign_kind(run) is None else "starts the command again"


def quarantine_folder(run: Run, checkpoint: Path) -> Path:
    """Where a distrusted checkpoint goes: a program's own stay on their file system, under names that it ignores."""
    if foreign_kind(run) is None:
        return run.paths.quarantine(run.state.lineage)
    return checkpoint.parent / QUARANTINE


def shown_place(run: Run, path: Path) -> str:
    """A path for state and events: relative to the run directory where it lies in there."""
    return path.relative_to(run.paths.root).as_posix() if path.is_relative_to(run.paths.root) else str(path)
