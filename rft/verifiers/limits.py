"""How much is judged at a time, and where."""

from __future__ import annotations

import os

from rft.config import JudgeSection
from rft.verifiers.verdict import Isolation


def judges_at_a_time(judge: JudgeSection) -> int:
    """``judge.workers``, or as many as there are cores for this process."""
    return judge.workers or len(os.sched_getaffinity(0))


def isolation_of(judge: JudgeSection) -> Isolation:
    return Isolation.NONE if judge.isolation == "none" else Isolation.BUBBLEWRAP
