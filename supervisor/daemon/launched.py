"""What became of a launch, told beyond doubt by two files of the job: a kernel lock, and who took it.

A launch is recorded in the queue before anything is started. The process that it starts takes the job's lock, looks
whether its launch is still wanted, writes who it is, and becomes the supervisor of the run, lock in hand. So a daemon
that was killed at any moment finds one of four things, and none of them lets it start a job twice or forget it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from supervisor.daemon.paths import JobPaths
from supervisor.process.identity import Identity
from supervisor.protocol.lock import lock_holder


class Started(msgspec.Struct, frozen=True):
    """The process that a launch became, written by itself while it holds the job's lock."""

    launch: int
    pid: int
    start_ticks: int
    boot_id: str

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.start_ticks, self.boot_id)


class Standing(enum.Enum):
    NOT_STARTED = "not started"
    """Nobody has the lock and the launch never got it."""
    UNDECIDED = "undecided"
    """Somebody has the lock who is not this launch: one that is about to say who it is, or to go."""
    ALIVE = "alive"
    ENDED = "ended"


@dataclass(frozen=True)
class Found:
    """``started``: set for ALIVE and ENDED."""

    standing: Standing
    started: Started | None = None


def find(paths: JobPaths, launch: int) -> Found:
    """What became of that launch."""
    # In this order: who writes the record holds the lock already, so a record and a free lock mean an end.
    started = read_started(paths)
    held = lock_holder(paths.lock) is not None
    if started is not None and started.launch == launch:
        return Found(Standing.ALIVE if held else Standing.ENDED, started)
    return Found(Standing.UNDECIDED if held else Standing.NOT_STARTED)


def read_started(paths: JobPaths) -> Started | None:
    try:
        return msgspec.json.decode(paths.started.read_bytes(), type=Started)
    except FileNotFoundError:
        return None
