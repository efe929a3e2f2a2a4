"""The attempt loop: observe, diagnose, decide, act."""

from supervisor.supervise.loop import supervise
from supervisor.supervise.opening import RunRefused, RunRequest

__all__ = ["RunRefused", "RunRequest", "supervise"]
