"""A small fixed-size file that the trainer rewrites in place to say where it is.

48 bytes, little endian: magic ``MHB1``, phase (u32), pid (u64), optimiser step (u64), planned
steps (u64), CLOCK_MONOTONIC in nanoseconds (u64), sequence number (u64). The sequence number
is written last by one ``pwrite`` of the whole record; no fsync.
"""

from __future__ import annotations

import enum
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

_RECORD = struct.Struct("<4sIQQQQQ")
_MAGIC = b"MHB1"


class Phase(enum.IntEnum):
    STARTING = 0
    LOADING = 1
    COMPILING = 2
    WARMING_UP = 3
    TRAINING = 4
    EVALUATING = 5
    SAVING = 6
    FINISHED = 7


@dataclass(frozen=True)
class Heartbeat:
    phase: Phase
    pid: int
    step: int
    planned_steps: int
    monotonic_ns: int
    sequence: int

    @property
    def age_seconds(self) -> float:
        """Seconds since the beat; both clocks are CLOCK_MONOTONIC of the same boot."""
        return (time.monotonic_ns() - self.monotonic_ns) / 1e9


class HeartbeatWriter:
    """Keeps the descriptor open: one beat is one 48-byte ``pwrite``."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._sequence = 0
        self.phase = Phase.STARTING
        self.step = 0
        self.planned_steps = 0

    def beat(self, phase: Phase | None = None, step: int | None = None, planned_steps: int | None = None) -> None:
        if phase is not None:
            self.phase = phase
        if step is not None:
            self.step = step
        if planned_steps is not None:
            self.planned_steps = planned_steps
        self._sequence += 1
        record = _RECORD.pack(
            _MAGIC, self.phase, os.getpid(), self.step, self.planned_steps, time.monotonic_ns(), self._sequence
        )
        os.pwrite(self._fd, record, 0)

    def close(self) -> None:
        os.close(self._fd)


def read_heartbeat(path: Path) -> Heartbeat | None:
    """The last beat, or None when there is none yet or it isn't one."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < _RECORD.size:
        return None
    magic, phase, pid, step, planned, monotonic_ns, sequence = _RECORD.unpack(data[: _RECORD.size])
    if magic != _MAGIC or phase not in Phase.__members__.values():
        return None
    return Heartbeat(Phase(phase), pid, step, planned, monotonic_ns, sequence)
