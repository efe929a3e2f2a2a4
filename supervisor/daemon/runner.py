"""Starting, watching, stopping and taking up the supervisors of runs. Called by the main loop alone.

What is decided stands in the queue before it is done, so that the next daemon goes on wherever this one was killed.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from pathlib import Path

import msgspec

from supervisor.daemon.launched import Found, Standing, Started, find
from supervisor.daemon.launcher import Launcher, LaunchError
from supervisor.daemon.paths import DaemonPaths
from supervisor.daemon.queue import Job, Queue
from supervisor.daemon.service import EntryState
from supervisor.daemon.verdict import Ended, Verdict, judge
from supervisor.process.adopted import AdoptedProcess
from supervisor.process.identity import boot_id
from supervisor.process.leftovers import processes_of
from supervisor.protocol.lock import FileLock, LockHeldError, lock_holder
from supervisor.protocol.paths import RunPaths
from supervisor.state import RunState, read_state

START_SECONDS = 60.0
"""How long a launch may take until its process has said who it is."""
MOST_LAUNCHES = 5
"""Launches in a row of which nothing is seen, before the job has failed."""
OPEN_SECONDS = 30.0
"""A supervisor that has not taken its run's lock by then is asked to stop all the same."""
_BETWEEN_SIGNALS = 0.05
"""Equal signals that are pending count as one."""
_WORDS = 2000
_PROGRESS = re.compile(r"\d\d:\d\d:\d\d ")
_log = logging.getLogger("mens-supervisor")


class Runner:
    def __init__(self, paths: DaemonPaths, queue: Queue, launcher: Launcher) -> None:
        self._paths = paths
        self._queue = queue
        self._launcher = launcher
        self._alive: dict[int, AdoptedProcess] = {}
        self._seen_at: dict[int, float] = {}
        self._asked: dict[int, str] = {}
        self._hurried: set[int] = set()
        self._launched_at: dict[int, float] = {}
        self._in_vain: dict[int, int] = {}
        self._not_before: dict[int, float] = {}
        self._children: set[int] = set()

    @property
    def descriptors(self) -> list[int]:
        """Readable when a supervisor has ended."""
        return [process.pidfd for process in self._alive.values()]

    @property
    def unsettled(self) -> bool:
        """Something is between two states, to be looked at again soon."""
        launched = (EntryState.STARTING, EntryState.RUNNING)
        jobs = [job for job in self._queue.unfinished() if job.state in launched]
        return any(job.wish or job.id not in self._alive for job in jobs)

    def begin(self, job: Job, resources: tuple[str, ...], before: str) -> None:
        """Give a waiting job what it needs and start it. One transaction, then the launch."""
        with self._queue.transaction():
            now = self._queue.job(job.id)
            if now.state is not EntryState.WAITING:
                return  # paused or cancelled since it was looked at
            self._queue.lend(job.id, resources, before)
            started = now.started_at or time.time()
            job = self._queue.change(
                job.id, state=EntryState.STARTING, launch=now.launch + 1, launched_at=time.time(), pid=0, wish="",
                started_at=started, explanation="", crashes=0, mark="",
            )  # fmt: skip
        self._launch(job)

    def tick(self) -> None:
        """Look at every job that was launched, and take the next step with each."""
        self._reap()
        for job in self._queue.unfinished():
            if job.state in (EntryState.STARTING, EntryState.RUNNING):
                self._look_at(job)

    def hurry(self, entry: int) -> None:
        """The next look kills its trainer instead of waiting for a checkpoint."""
        self._hurried.add(entry)

    def forget(self) -> None:
        """Let go of everything; what runs goes on running."""
        for process in self._alive.values():
            os.close(process.pidfd)
        self._alive.clear()

    def _look_at(self, job: Job) -> None:
        paths = self._paths.job(job.id)
        found = find(paths, job.launch)
        if found.standing is Standing.ALIVE:
            self._watch(job, found)
        elif found.standing is Standing.ENDED:
            self._ended(job, found.started)
        elif found.standing is Standing.NOT_STARTED:
            self._not_started(job)

    def _watch(self, job: Job, found: Found) -> None:
        assert found.started is not None
        if job.id not in self._alive:
            try:
                self._alive[job.id] = AdoptedProcess(found.started.identity)
            except ProcessLookupError:
                return  # it is ending just now: the lock will be free
            self._seen_at[job.id] = time.monotonic()
            self._in_vain.pop(job.id, None)
        if job.state is EntryState.STARTING or job.pid != found.started.pid:
            job = self._queue.change(job.id, state=EntryState.RUNNING, pid=found.started.pid)
            _log.info("entry %d (%s) runs as process %d on %s", job.id, job.name, job.pid, ", ".join(job.resources))
        if job.wish:
            self._ask_to_stop(job)

    def _ask_to_stop(self, job: Job) -> None:
        process = self._alive[job.id]
        opened = lock_holder(RunPaths(Path(job.run_dir)).supervisor_lock) == process.pid
        if not opened and time.monotonic() - self._seen_at[job.id] < OPEN_SECONDS:
            return  # a signal would kill it before it can pass it on to a trainer that may live
        if self._asked.get(job.id) != job.wish:
            self._asked[job.id] = job.wish
            process.send(signal.SIGTERM)
            process.send(signal.SIGCONT)
        if job.id in self._hurried:
            self._hurried.discard(job.id)
            process.send(signal.SIGINT)
            time.sleep(_BETWEEN_SIGNALS)
            process.send(signal.SIGINT)

    def _ended(self, job: Job, started: Started | None) -> None:
        self._drop(job.id)
        pid = started.pid if started is not None else 0
        run = run_state(Path(job.run_dir))
        alive = bool(self._of_the_run(job, run))
        end = Ended(
            wish=job.wish,
            run=run,
            pid=pid,
            output=last_words(self._paths.job(job.id).output(job.launch)),
            rebooted=started is not None and started.boot_id != boot_id(),
            trainer_alive=alive,
            crashes=job.crashes,
            mark=job.mark,
        )
        self._settle(job, judge(end))

    def _settle(self, job: Job, verdict: Verdict) -> None:
        if verdict.again:
            self._again(job, verdict)
            return
        with self._queue.transaction():
            now = self._queue.job(job.id)
            if now.wish != job.wish:
                return  # somebody has just asked for something else: judged anew at the next look
            self._queue.change(
                job.id,
                state=verdict.state,
                outcome=verdict.outcome,
                explanation=verdict.explanation,
                ended_at=time.time() if verdict.state.ended else None,
                resumed=1 if verdict.state is EntryState.WAITING else 0,
                wish="",
                pid=0,
            )
            self._queue.release_soon(job.id)
        self._asked.pop(job.id, None)
        _log.info("entry %d (%s): %s. %s", job.id, job.name, verdict.state, verdict.explanation)

    def _again(self, job: Job, verdict: Verdict) -> None:
        """A new launch of the same run, on the same resources. The old one, should it still come, sees it and goes."""
        if time.monotonic() < self._not_before.get(job.id, 0.0):
            return
        self._not_before[job.id] = time.monotonic() + min(2.0**verdict.crashes, 30.0)
        self._relaunch(job, crashes=verdict.crashes, mark=verdict.mark, explanation=verdict.explanation)

    def _not_started(self, job: Job) -> None:
        since = self._launched_at.get(job.id)
        if since is not None and time.monotonic() - since < START_SECONDS:
            return
        if job.wish:
            self._settle(job, judge(Ended(job.wish, run_state(Path(job.run_dir)), 0, "", False, False)))
            return
        tried = self._in_vain[job.id] = self._in_vain.get(job.id, 0) + 1
        if tried > MOST_LAUNCHES:
            text = (
                f"It was started {MOST_LAUNCHES} times and nothing was seen of it. Under systemd "
                "`journalctl -u 'mens-supervisor-job@*'` tells more."
            )
            self._settle(job, Verdict(EntryState.FAILED, f"{text} {job.explanation}".rstrip()))
            return
        self._relaunch(job)

    def _relaunch(self, job: Job, **changes: object) -> None:
        lock = FileLock(self._paths.job(job.id).lock)
        try:
            lock.acquire()
        except LockHeldError:
            return  # the launch that seemed lost has come: the next look finds it
        try:
            job = self._queue.change(
                job.id, state=EntryState.STARTING, launch=job.launch + 1, launched_at=time.time(), pid=0, **changes
            )
        finally:
            lock.release()
        _log.info("entry %d (%s) is started again", job.id, job.name)
        self._launch(job)

    def _launch(self, job: Job) -> None:
        self._drop(job.id)
        self._launched_at[job.id] = time.monotonic()
        folder = self._paths.job(job.id).root
        try:
            folder.mkdir(parents=True, exist_ok=True)
            child = self._launcher.start(self._paths.root, job.id, job.launch)
        except (LaunchError, OSError) as error:
            why = f"{folder}: {error.strerror}." if isinstance(error, OSError) else str(error)
            self._queue.change(job.id, explanation=why)
            self._launched_at[job.id] = time.monotonic() - START_SECONDS + 2.0 ** self._in_vain.get(job.id, 0)
            return
        if child is not None:
            self._children.add(child)

    def end_leftovers(self, job: Job) -> str:
        """Kill what is left of an ended run; who is still there, empty when nobody is."""
        left = self._of_the_run(job, run_state(Path(job.run_dir)))
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            except PermissionError:
                return f"process {pid}, which it left behind, belongs to another user"
        return f"process {left[0]}, which it left behind, has not ended yet" if left else ""

    @staticmethod
    def _of_the_run(job: Job, run: RunState | None) -> list[int]:
        """Living processes of the run's last attempt, unless somebody else supervises the run: then they are his."""
        if run is None:
            return []
        paths = RunPaths(Path(job.run_dir))
        if lock_holder(paths.supervisor_lock) is not None:
            return []
        numbers = {run.attempt, run.attempt + 1}  # the next one's warm standby
        return [pid for number in numbers if number for pid in processes_of(paths.attempt(number).spec)]

    def _drop(self, entry: int) -> None:
        process = self._alive.pop(entry, None)
        if process is not None:
            process.reap()
        self._asked.pop(entry, None)

    def _reap(self) -> None:
        """Collect launches that were our children and have ended."""
        for pid in tuple(self._children):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended = pid
            if ended:
                self._children.discard(pid)


def run_state(run_dir: Path) -> RunState | None:
    """What the run remembers; None without a run, or when it can't be read (its supervisor says why)."""
    try:
        return read_state(RunPaths(run_dir).state)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def last_words(path: Path) -> str:
    """The last paragraph of what a supervisor said, without the lines on how the run went, which begin with a time."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - _WORDS))
            text = file.read().decode(errors="replace").strip()
    except FileNotFoundError:
        return ""
    lines = text.split("\n\n")[-1].splitlines()
    progress = [number for number, line in enumerate(lines) if _PROGRESS.match(line)]
    return "\n".join(lines[progress[-1] + 1 :] or lines[-1:]) if progress else "\n".join(lines)
