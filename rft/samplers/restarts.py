"""How often a sampler that died is started again, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rft.samplers.sampler import SamplerLostError, SamplerUnusableError
from supervisor.redact import hide_secrets

Announce = Callable[[str], None]
"""Receives one sentence for people about what happened to a sampler."""
EVIDENCE_LINES = 200
"""Of a log's end, that are looked at for a cause."""
_SHOWN = 300


class Restarts:
    """``allowed`` of them for the sampler ``name``, whose output is in ``log``.

    ``hint``: of the log's last lines, why a start that failed would fail again, in a paragraph; None when it may not.
    Once it has sampled, its log holds many a word of memory or missing modules that had no consequences.
    """

    def __init__(
        self,
        name: str,
        allowed: int,
        log: Path,
        announce: Announce,
        hint: Callable[[Sequence[str]], str | None] = lambda lines: None,
    ) -> None:
        self._name = name
        self._left = allowed
        self._log = log
        self._announce = announce
        self._hint = hint
        self._was_ready = False
        self._failed_starts = 0

    def ready(self) -> None:
        """It has been able to sample."""
        self._was_ready = True

    def spend(self, how: str, said: Sequence[str], owed: int) -> None:
        """It died: ``how`` in a few words, ``said`` the end of its log, ``owed`` samples that it had not given.

        Returns when it may be started again, which is announced. Raises SamplerUnusableError when that would not help:
        by the log, or because it died twice before it was ever ready; SamplerLostError when it was the last time.
        """
        if not self._was_ready and (problem := self._hint(said)) is not None:
            raise SamplerUnusableError(str(hide_secrets(problem)))
        words = _telling(said)
        last = f" Its last words in {self._log}: {hide_secrets(words)}" if words else ""
        self._failed_starts += not self._was_ready
        if self._failed_starts > 1:
            raise SamplerUnusableError(f"sampler.type: the {self._name} {how}, twice before it was ready.{last}")
        if self._left == 0:
            raise SamplerLostError(
                f"The {self._name} {how}, and sampler.restarts allows it to be started no more often.{last}"
            )
        self._left -= 1
        asked = f"; {owed} samples are asked for again" if owed else ""
        self._announce(
            f"the {self._name} {how} and is started again ({self._left} more times allowed){asked}.{last}"
        )


def _telling(said: Sequence[str]) -> str:
    """The last line that names an error, else the last one."""
    errors = [line for line in said if "Error" in line]
    return " ".join((errors or list(said) or [""])[-1].split())[-_SHOWN:]
