"""Where everything of the daemon lives."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


def default_state_folder() -> Path:
    """What systemd gave (StateDirectory), else a folder of the user's own."""
    if given := os.environ.get("STATE_DIRECTORY"):
        return Path(given.split(":")[0])
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "mens-supervisor"


@dataclass(frozen=True)
class JobPaths:
    """What belongs to one entry of the queue besides its run directory, ``jobs/12/``."""

    root: Path

    @property
    def config(self) -> Path:
        """The configuration as it was when it was submitted, paths absolute; absent for what a schedule submitted."""
        return self.root / "config.yaml"

    @property
    def lock(self) -> Path:
        """Held by the supervisor of the run from before it starts until its death."""
        return self.root / "lock"

    @property
    def started(self) -> Path:
        """Which process the last launch became (:class:`supervisor.daemon.launched.Started`)."""
        return self.root / "started.json"

    def output(self, launch: int) -> Path:
        """What the supervisor of that launch said."""
        return self.root / f"output-{launch}.log"


@dataclass(frozen=True)
class DaemonPaths:
    """The daemon's state folder."""

    root: Path

    @property
    def queue(self) -> Path:
        return self.root / "queue.db"

    @property
    def lock(self) -> Path:
        """Held by the daemon: there is one for a state folder."""
        return self.root / "daemon.lock"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    def job(self, entry: int) -> JobPaths:
        return JobPaths(self.root / "jobs" / str(entry))
