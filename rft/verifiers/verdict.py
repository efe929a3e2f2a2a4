"""A verdict about one completion."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

MAX_DIAGNOSTIC = 4000
"""Characters of a diagnostic that are kept: its beginning and its end."""


class Outcome(StrEnum):
    """ACCEPTED: it solves the task. REJECTED: it does not, and ``reason`` says why. TIMEOUT: it used up its time, which
    counts as not solved. ERROR: the judge itself failed (no sandbox, no memory, a killed worker); the completion is
    unscored, is judged again, and is never a rejection."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    TIMEOUT = "timeout"
    ERROR = "error"


class Isolation(StrEnum):
    """Where a completion ran while it was judged. NOT_RUN: nothing of it was executed."""

    BUBBLEWRAP = "bubblewrap"
    NONE = "none"
    NOT_RUN = "not run"


class Verdict(msgspec.Struct, frozen=True):
    """What a verifier found.

    ``reason`` is a few words that are the same for equal cases, to be counted (``assertion failed``); ``diagnostic`` is
    for people and for error-correction data: a traceback, a compiler's message, at most MAX_DIAGNOSTIC characters,
    secrets scrubbed. ``passed`` of ``expected`` tests, None where nothing is counted. ``score`` from 0 to 1 where a
    verifier grades; else 1 for accepted and 0 for rejected and timeout, None for error. ``seconds`` of wall time.
    ``metrics``: more that was found, each from 0 to 1, by names that every verdict of a verifier has but for errors.
    """

    outcome: Outcome
    reason: str
    verifier: str
    version: str
    isolation: Isolation
    diagnostic: str = ""
    passed: int | None = None
    expected: int | None = None
    score: float | None = None
    seconds: float = 0.0
    metrics: Mapping[str, float] = {}

    @property
    def reward(self) -> float | None:
        """The score of the completion; None when it is unscored."""
        if self.outcome is Outcome.ERROR:
            return None
        if self.score is not None:
            return self.score
        return 1.0 if self.outcome is Outcome.ACCEPTED else 0.0
