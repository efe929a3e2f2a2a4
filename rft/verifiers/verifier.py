"""What a verifier is. They register by name in :mod:`rft.verifiers.registry`; strangers add theirs as entry points in
the group ``mens_supervisor.verifiers``."""

from __future__ import annotations

from typing import Protocol

from rft.tasks.task import Task
from rft.verifiers.verdict import Verdict


class VerifierUnusableError(Exception):
    """A verifier cannot judge on this machine or with this specification; one sentence with the remedy."""


class Verifier(Protocol):
    """Judges completions, many at a time from several threads."""

    name: str
    version: str
    """Changes whenever verdicts could: a digest over the verifier's code version and its specification. Part of the key
    under which verdicts are cached."""

    def open(self) -> None:
        """Start what it needs (a pool of sandboxes) and probe that it works. Raises VerifierUnusableError."""

    def close(self) -> None:
        """End everything it started. May be called twice, or without open."""

    def problem(self, task: Task) -> str | None:
        """Why this task cannot be judged (no tests, an invalid schema), in a sentence; None when it can. Runs nothing
        of the task."""

    def judge(self, task: Task, completion: str) -> Verdict:
        """Blocks until there is a verdict, within the verifier's own time limit. Never raises for what the completion
        does; a failure of its own is Outcome.ERROR."""
