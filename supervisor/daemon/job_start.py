"""The process that a job begins as: it makes sure that it is wanted, then becomes the supervisor of the run.

``python -m supervisor.daemon.job_start STATE_DIR ENTRY LAUNCH``, or with ``-`` alone the three on standard input, as
a unit that systemd starts for a connection gets them.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import NoReturn

import msgspec

from supervisor.daemon.launched import Started
from supervisor.daemon.paths import DaemonPaths, JobPaths
from supervisor.daemon.queue import Job, launch_in_queue
from supervisor.daemon.service import EntryState
from supervisor.process.identity import identity_of
from supervisor.protocol.atomic import write_atomic
from supervisor.protocol.lock import FileLock, LockHeldError

LOCK_SECONDS = 5.0
"""How long another process may keep the lock before this launch counts as one too many."""
OOM_SCORE = 300
"""So that the kernel, short of memory, takes a job before the daemon."""
_MOST_BYTES = 8192


def main(arguments: list[str]) -> int:
    state_dir, entry, launch = _given(arguments)
    daemon = DaemonPaths(Path(state_dir))
    paths = daemon.job(int(entry))
    lock = FileLock(paths.lock)
    if not _take(lock):
        return 0
    job = launch_in_queue(daemon.queue, int(entry))
    if job is None or job.launch != int(launch) or job.state is not EntryState.STARTING:
        return 0  # another launch has taken its place, or it was called off
    _say_who(paths, job.launch)
    os.set_inheritable(lock.descriptor, True)
    _write_to(paths.output(job.launch))
    _offer_ourselves_first()
    return _become(job, paths)


def _become(job: Job, paths: JobPaths) -> NoReturn:
    command = [sys.executable, *run_command(job, paths)]
    os.execve(sys.executable, command, environment(job, dict(os.environ)))


def run_command(job: Job, paths: JobPaths) -> list[str]:
    """Arguments after the interpreter. A run that is there already goes on as it is."""
    config = paths.config if paths.config.exists() else Path(job.config)
    known = (Path(job.run_dir) / "run.yaml").exists() and job.launch > 1
    given = [] if known else [str(config)]
    return ["-P", "-m", "supervisor.cli", "run", *given, "--run-dir", job.run_dir, "--no-live", *job.arguments]


def environment(job: Job, inherited: dict[str, str]) -> dict[str, str]:
    """Only the leased GPUs are visible; who asked for the CPU sees none."""
    found = {key: value for key, value in inherited.items() if key not in ("NOTIFY_SOCKET", "WATCHDOG_USEC")}
    if job.resources != ("cpu",):
        found["CUDA_VISIBLE_DEVICES"] = ",".join(job.resources)
    elif job.device == "cpu":
        found["CUDA_VISIBLE_DEVICES"] = ""
    return found


def _given(arguments: list[str]) -> list[str]:
    if arguments != ["-"]:
        return arguments
    data = b""
    while not data.endswith(b"\n") and len(data) < _MOST_BYTES:
        chunk = os.read(0, _MOST_BYTES)
        if not chunk:
            break
        data += chunk
    quiet = os.open(os.devnull, os.O_RDONLY)
    os.dup2(quiet, 0)  # the daemon's end of the connection is told that we have heard
    os.close(quiet)
    return data.decode().rstrip("\n").split("\0")


def _take(lock: FileLock) -> bool:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            lock.acquire()
        except LockHeldError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def _say_who(paths: JobPaths, launch: int) -> None:
    who = identity_of(os.getpid())
    assert who is not None
    write_atomic(paths.started, msgspec.json.encode(Started(launch, who.pid, who.start_ticks, who.boot_id)))


def _write_to(path: Path) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _offer_ourselves_first() -> None:
    score = Path("/proc/self/oom_score_adj")
    if int(score.read_text()) < OOM_SCORE:
        score.write_text(str(OOM_SCORE))  # raising one's own is always allowed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
