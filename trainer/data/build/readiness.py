"""The readiness gate: what was measured of a source or a corpus, against what its mix asks for. Pure."""

from __future__ import annotations

import msgspec


class Thresholds(msgspec.Struct, frozen=True, omit_defaults=True):
    """What must hold. None: not asked for. Shares are between 0 and 1."""

    min_rows: int = 1
    min_unique_responses: float | None = None
    """Different answers (whitespace and case aside) per row."""
    min_oracle_pass_rate: float | None = None
    """Answers that the oracle passed per answer that it was asked about."""
    max_over_length: float | None = None
    """Share of rows that are longer than the window."""


class Measured(msgspec.Struct, frozen=True):
    """What is the case. ``over_length`` is None when nobody counted tokens, ``judged`` 0 without an oracle.

    ``undecided``: of the judged, those on which the oracle took too long or crashed.
    """

    rows: int
    unique_responses: int
    judged: int = 0
    passed: int = 0
    over_length: int | None = None
    max_length: int | None = None
    undecided: int = 0


def shortfalls(asked: Thresholds, found: Measured) -> list[str]:
    """Every threshold that is not met, as a phrase with both numbers; what is not known is not met."""
    missing = []
    if found.rows < asked.min_rows:
        missing.append(f"{found.rows} rows where min_rows asks for {asked.min_rows}")
    if asked.min_unique_responses is not None:
        ratio = found.unique_responses / found.rows if found.rows else 0.0
        if ratio < asked.min_unique_responses:
            missing.append(
                f"{ratio:.3f} different answers per row ({found.unique_responses} of {found.rows}) where "
                f"min_unique_responses asks for {asked.min_unique_responses:g}"
            )
    if asked.min_oracle_pass_rate is not None:
        if not found.judged:
            missing.append("no answer was judged by an oracle, but min_oracle_pass_rate is set")
        elif found.passed / found.judged < asked.min_oracle_pass_rate:
            missing.append(
                f"an oracle pass rate of {found.passed / found.judged:.3f} ({found.passed} of {found.judged}) where "
                f"min_oracle_pass_rate asks for {asked.min_oracle_pass_rate:g}"
            )
    if asked.max_over_length is not None:
        if found.over_length is None:
            missing.append("no token was counted, but max_over_length is set")
        elif found.rows and found.over_length / found.rows > asked.max_over_length:
            missing.append(
                f"{found.over_length} of {found.rows} rows ({found.over_length / found.rows:.1%}) are longer than "
                f"{found.max_length} tokens where max_over_length allows {asked.max_over_length:.1%}"
            )
    return missing
