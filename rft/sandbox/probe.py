"""Whether this machine can isolate."""

from __future__ import annotations


class SandboxUnusableError(Exception):
    """Nothing can be isolated here; one paragraph with the remedy."""


def probe() -> None:
    pass
