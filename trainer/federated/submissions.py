"""When ``federate serve`` stops submitting rounds that come to nothing."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.federated.coordinator import State

FAILURES = 3
"""In a row, each said by the coordinator's process itself: what it dies of will not go away."""
IN_VAIN = 20
"""In a row, for whatever reason: killed, or never begun."""


@dataclass
class Submissions:
    """Of the rounds, since something last came of one."""

    tried: int = 0
    failed: int = 0
    _standing: tuple[int, int, int] | None = None

    def why_not(self, state: State | None, failure: str) -> str | None:
        """Asked before the next one. ``failure``: what the last one died of, empty where it didn't say.

        None: it is to be submitted, and counts as tried.
        """
        standing = None if state is None else (state.done, state.waited, len(state.told))
        if standing != self._standing:
            self.tried, self.failed, self._standing = 0, 0, standing
        elif failure:
            self.failed += 1
        if self.failed >= FAILURES:
            return f"the rounds have failed {self.failed} times and nothing came of them: {failure}"
        if self.tried >= IN_VAIN:
            return f"the rounds were submitted {self.tried} times and nothing came of them"
        self.tried += 1
        return None
