"""The values of a diagnosis: what is known, and the verdict."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import msgspec

from supervisor.diagnosis.kinds import FailureKind
from supervisor.protocol.attempt import ExitReport
from supervisor.protocol.heartbeat import Heartbeat
from supervisor.sensors.snapshot import Snapshot


@dataclass(frozen=True)
class Hang:
    """The trainer had to be ended because it stopped making progress at ``step`` in ``phase`` (empty: unknown).

    ``lines``: where it stood, for people.
    """

    cause: str
    step: int
    phase: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """What is known about an ended attempt. At most one of ``exit_code`` and ``signal`` is set; neither where nobody
    saw how it ended: not our child, or it ended while no supervisor lived.

    ``stderr_tail``: the log or its end. ``stop_requested``: we asked it to stop. ``killed_by_us``: the last
    resort that we used. ``resumed_step``: where the attempt started. ``final_verified``: the checkpoint
    of the planned step is there and good. ``kernel_log``: the kernel's lines of that time, None when unread.
    ``oom_kills``: by which the control group's counter rose, None when unknown. ``first_hand``: a supervised
    attempt, whose trainer speaks our protocol and whose end we saw; False for somebody's log.
    ``snapshots``: of the sensors, the attempt's first and its last ones, the very last after its end. ``bare``: a
    supervised program that need not speak our protocol: what it leaves unsaid is unknown, its exit codes are its own.
    ``own_state``: it has no checkpoints, but keeps what it has done itself.
    ``hang``: why we ended it without having been asked to. ``rebooted``: the machine was started anew meanwhile.
    """

    report: ExitReport | None
    exit_code: int | None
    signal: int | None
    stderr_tail: str
    heartbeat: Heartbeat | None
    stop_requested: bool = False
    killed_by_us: bool = False
    final_verified: bool = False
    resumed_step: int = 0
    kernel_log: str | None = None
    oom_kills: int | None = None
    first_hand: bool = True
    snapshots: tuple[Snapshot, ...] = ()
    bare: bool = False
    own_state: bool = False
    hang: Hang | None = None
    rebooted: bool = False

    @property
    def unseen(self) -> bool:
        """A supervised attempt whose exit status nobody could tell us."""
        return self.first_hand and self.exit_code is None and self.signal is None


class Diagnosis(msgspec.Struct, frozen=True):
    """The verdict on one attempt. ``confidence`` is 0..1; ``where`` says step and phase for people.

    ``fingerprint`` is equal for two failures with the same root cause, wherever in the run they struck.
    ``helps``: relief by name. ``also``: other kinds for which something speaks, likeliest first.
    """

    kind: FailureKind
    confidence: float
    step: int
    where: str
    evidence: tuple[str, ...]
    retryable: bool
    explanation: str
    fingerprint: str
    helps: tuple[str, ...] = ()
    also: tuple[FailureKind, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """A verdict before it is worded for people."""

    kind: FailureKind
    confidence: float
    cause: str
    evidence: tuple[str, ...] = ()
    also: tuple[FailureKind, ...] = ()
    summary: bool = False
    """The cause is a line of the log, which people understand better after the kind's sentence."""


def fingerprint(kind: FailureKind, cause: str) -> str:
    """Kind and a digest of the cause with everything that varies between attempts (numbers) left out."""
    normal = re.sub(r"0x[0-9a-fA-F]+|\d+(\.\d+)?", "#", cause)
    return f"{kind.value}:{hashlib.sha256(normal.encode(errors='replace')).hexdigest()[:12]}"
