"""Starting a sampler's process, and starting it again when it died: how often, and what is said about it.

Nothing here waits for longer than it is told to: a model takes minutes to load, and whoever asks has other work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from rft.samplers.kept import Kept
from rft.samplers.sampler import SamplerLostError, SamplerUnusableError
from supervisor.redact import hide_secrets

Announce = Callable[[str], None]
"""Receives one sentence for people about what happened to a sampler."""
EVIDENCE_LINES = 200
"""Of a log's end, that are looked at for a cause."""
_SHOWN = 300
POLL_SECONDS = 0.5
LAST_WORDS_SECONDS = 10.0
"""For a process whose line is gone to be reaped, which tells how it ended."""


class Server(Protocol):
    """What a sampler does about its process."""

    def launch(self) -> Kept:
        """Start it."""

    def answers(self, seconds: float) -> bool:
        """Whether it can sample by now; waits about ``seconds`` at most for that. Raises SamplerUnusableError."""

    def gone(self) -> bool:
        """Whether it cannot be spoken with any more, although its process may be there."""

    def drop(self) -> None:
        """Let go of what leads to the process, which is ended."""


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


class Lifeline:
    """The process of one sampler, from its first start to its end. ``owed``: how many samples it has not given yet."""

    def __init__(
        self, server: Server, restarts: Restarts, name: str, start_seconds: float, log: Path, owed: Callable[[], int]
    ) -> None:
        self._server, self._restarts, self._owed = server, restarts, owed
        self._name, self._start_seconds, self._log = name, start_seconds, log
        self._kept: Kept | None = None
        self._until = 0.0
        self.loading = False
        """Started, and not able to sample yet."""

    @property
    def pid(self) -> int | None:
        return self._kept.pid if self._kept else None

    def start(self, beat: Callable[[], None]) -> None:
        """Start it and wait until it can sample. Raises SamplerUnusableError, SamplerLostError."""
        self._begin()
        while not self.advance(POLL_SECONDS):
            beat()

    def advance(self, seconds: float) -> bool:
        """While it is loading: wait for it for about ``seconds``, and start it again if it dies; True when it can
        sample. Raises SamplerUnusableError, SamplerLostError."""
        if self._server.answers(seconds):
            self._restarts.ready()
            self.loading = False
            return True
        if self.dead():
            self.lost("was ended")
        elif time.monotonic() > self._until:
            self.close()
            raise SamplerLostError(
                f"The {self._name} was not ready within sampler.start_seconds ({self._start_seconds:g}); "
                f"see {self._log}."
            )
        return False

    def dead(self) -> bool:
        return self._server.gone() or (self._kept is not None and self._kept.ended() is not None)

    def lost(self, how: str) -> None:
        """End what is left of it and begin to start it again; ``how`` in a few words, where its process does not tell.

        Raises SamplerUnusableError, SamplerLostError when it must not or need not be started again.
        """
        assert self._kept is not None, "started"
        kept = self._kept
        how = kept.ended(LAST_WORDS_SECONDS) or how
        self.close()
        self._restarts.spend(how, kept.tail(EVIDENCE_LINES), self._owed())
        self._begin()

    def close(self) -> None:
        """End it and everything it started; may be called twice."""
        self.loading = False
        self._server.drop()
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _begin(self) -> None:
        self._until = time.monotonic() + self._start_seconds
        self._kept = self._server.launch()
        self.loading = True


def _telling(said: Sequence[str]) -> str:
    """The last line that names an error, else the last one."""
    errors = [line for line in said if "Error" in line]
    return " ".join((errors or list(said) or [""])[-1].split())[-_SHOWN:]
