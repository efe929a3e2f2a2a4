"""What a sign in a log is: words, and how much they tell."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.diagnosis.kinds import FailureKind as K

ROOT = 1.0
"""Names the cause itself."""
LIKELY = 0.8
"""Names the cause unless something clearer is there."""
WEAK = 0.45
"""A general error, or a word that often has another reason."""
LOUD = 0.8
"""Standing of words that count also in a warning or an info line."""


@dataclass(frozen=True)
class Sign:
    """Words, what they tell, how strongly. ``least``: how much they count at least, whatever kind of
    line they stand in (0..1)."""

    kind: K
    weight: float
    words: str
    least: float = 0.0


def sign(kind: K, weight: float, *patterns: str, least: float = 0.0) -> Sign:
    return Sign(kind, weight, "|".join(patterns), least)
