"""Which run is meant: a folder, or the id or name of an entry of the daemon's queue."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.daemon.control.errors import NoDaemonError
from supervisor.daemon.service import Entry, EntryState
from supervisor.problems import InputError
from supervisor.protocol.paths import RunPaths
from supervisor.status import newest_run

if TYPE_CHECKING:
    from supervisor.daemon.control.client import DaemonClient

RUNS = Path("runs")
SEARCHED = 1000
"""Entries that ended: so many are searched for a name."""


@dataclass(frozen=True)
class Found:
    """A run. ``entry``: when it was found in the queue, by ``client``."""

    directory: Path
    entry: Entry | None = None
    client: DaemonClient | None = None

    @property
    def readable(self) -> bool:
        """Can this process read the run directory itself, without the daemon?"""
        return os.access(RunPaths(self.directory).state, os.R_OK)

    @property
    def hidden(self) -> bool:
        """Is there a run directory that this process may not read?"""
        try:
            return RunPaths(self.directory).state.exists() and not self.readable
        except PermissionError:
            return True

    @property
    def asked(self) -> tuple[DaemonClient, int] | None:
        """Whom to ask about it, when one can't look oneself."""
        if self.readable or self.entry is None or self.client is None:
            return None
        return self.client, self.entry.id


def find_run(text: str | None) -> Found:
    """``text``: a folder, the name of one under runs/, or an entry's id or name; the one with the highest id of a name.

    None: the newest under runs/ here, else what the daemon runs, or ran last. Raises InputError.
    """
    if text is None:
        return _newest()
    for folder in (Path(text), RUNS / text):
        if folder.is_dir():
            return Found(folder)
    client = _daemon()
    try:
        entry = find_entry(client, text)
    except NoDaemonError as error:
        raise InputError(f"{text}: there is no such folder, and nobody to ask for such a run: {error}") from None
    return Found(entry.run_dir, entry, client)


def find_entry(client: DaemonClient, text: str) -> Entry:
    """By id or name. Raises InputError."""
    if text.isdecimal() and len(text) < 16:
        return client.entry(int(text))
    folder = Path(text).absolute() if "/" in text else None
    meant = [
        each
        for each in client.entries(SEARCHED)
        if (each.run_dir == folder if folder else text in (each.name, each.run_dir.name))
    ]
    if not meant:
        raise InputError(f"The daemon at {client.path} knows no run {text}. See `mens-sup queue --all`.")
    return max(meant, key=lambda each: each.id)


def _daemon() -> DaemonClient:
    """Imported late: whoever names a folder needs no HTTP."""
    from supervisor.daemon.control.client import DaemonClient

    return DaemonClient()


def _newest() -> Found:
    if (directory := newest_run(RUNS)) is not None:
        return Found(directory)
    client = _daemon()
    try:
        known = client.entries(1)
    except NoDaemonError as error:
        raise InputError(f"There are no runs under {RUNS}/ here. Name the run's folder. {error}") from None
    started = [each for each in known if each.started_at is not None]
    if not started:
        raise InputError(f"There are no runs under {RUNS}/ here, and the daemon at {client.path} has started none yet.")
    entry = max(started, key=lambda each: (each.state is EntryState.RUNNING, each.started_at or 0.0))
    return Found(entry.run_dir, entry, client)
