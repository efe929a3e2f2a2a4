"""Why a question to the daemon got no answer, or not the one that was hoped for."""

from __future__ import annotations

from supervisor.problems import InputError


class NoDaemonError(InputError):
    """Nobody answers, or not to us."""


class DaemonRefusedError(InputError):
    """The daemon will not do it; the text is the daemon's. ``status``: of HTTP."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
