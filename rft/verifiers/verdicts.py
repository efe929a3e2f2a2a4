"""Making verdicts: what all verifiers do alike."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from rft.verifiers.verdict import MAX_DIAGNOSTIC, Isolation, Outcome, Verdict
from supervisor.redact import hide_secrets

_CUT = "\n[... {} characters cut ...]\n"


def version_of(code: int, settings: Mapping[str, Any], *parts: str) -> str:
    """A verifier's version: of its code, its settings, and of what it judges with."""
    return hashlib.sha256(msgspec.json.encode([code, settings, parts], order="sorted")).hexdigest()[:16]


def shortened(text: str) -> str:
    """A diagnostic fit to be kept: secrets hidden, at most MAX_DIAGNOSTIC characters, its beginning and its end."""
    # Hiding is not linear in the text's length, and nobody reads the middle of megabytes.
    text = text if len(text) <= 4 * MAX_DIAGNOSTIC else text[: 2 * MAX_DIAGNOSTIC] + "\n" + text[-2 * MAX_DIAGNOSTIC :]
    text = str(hide_secrets(text)).strip()
    if len(text) <= MAX_DIAGNOSTIC:
        return text
    half = (MAX_DIAGNOSTIC - len(_CUT) - 10) // 2
    return f"{text[:half]}{_CUT.format(len(text) - 2 * half)}{text[-half:]}"


def timed(verdict: Verdict, began: float) -> Verdict:
    """With the wall time since ``began``, by the monotonic clock."""
    return msgspec.structs.replace(verdict, seconds=time.monotonic() - began)


class Judgement:
    """Verdicts of one verifier, so that its name and version stand in one place."""

    def __init__(self, name: str, version: str, isolation: Isolation) -> None:
        self._name, self._version, self._isolation = name, version, isolation

    def accepted(self, **more: Any) -> Verdict:
        return self._verdict(Outcome.ACCEPTED, "accepted", "", more)

    def rejected(self, reason: str, diagnostic: str = "", **more: Any) -> Verdict:
        return self._verdict(Outcome.REJECTED, reason, diagnostic, more)

    def timeout(self, diagnostic: str = "", **more: Any) -> Verdict:
        return self._verdict(Outcome.TIMEOUT, "out of time", diagnostic, more)

    def error(self, diagnostic: str, **more: Any) -> Verdict:
        return self._verdict(Outcome.ERROR, "the judge failed", diagnostic, more)

    def _verdict(self, outcome: Outcome, reason: str, diagnostic: str, more: dict[str, Any]) -> Verdict:
        return Verdict(
            outcome,
            reason,
            self._name,
            self._version,
            more.pop("isolation", self._isolation),
            shortened(diagnostic),
            **more,
        )
