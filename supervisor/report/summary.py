"""How many runs stand, from their state files alone: no event log is read, so that a long history stays cheap."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from supervisor.protocol.heartbeat import Phase, read_heartbeat
from supervisor.protocol.lock import lock_holder
from supervisor.protocol.paths import RunPaths
from supervisor.state import Outcome, RunState

_decoder = msgspec.json.Decoder(RunState)


@dataclass(frozen=True)
class RunSummary:
    """One run in a line. ``state`` is None when state.json is damaged; ``problem`` then says how.

    ``step`` is that of the heartbeat while a trainer is at work. ``alive``: whether somebody supervises a run whose
    outcome is running.
    """

    directory: Path
    state: RunState | None
    step: int = 0
    alive: bool = False
    problem: str = ""

    @property
    def name(self) -> str:
        return self.state.id if self.state else self.directory.name

    @property
    def running(self) -> bool:
        return self.state is not None and self.state.outcome is Outcome.RUNNING

    @property
    def standing(self) -> str:
        """In words: the outcome, ``unattended`` for a run that nobody supervises, ``damaged``."""
        if self.state is None:
            return "damaged"
        return "unattended" if self.running and not self.alive else self.state.outcome.value.replace("_", " ")


class Summaries:
    """Summaries that are read again only when state.json has changed, or while the run is running."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int, int], RunSummary]] = {}

    def of(self, directories: Iterable[Path]) -> list[RunSummary]:
        """In the order given; folders without a state.json are left out."""
        found: dict[Path, tuple[tuple[int, int, int], RunSummary]] = {}
        for directory in directories:
            path = directory / "state.json"
            try:
                seen = path.stat()
            except OSError:
                continue
            mark = (seen.st_mtime_ns, seen.st_size, seen.st_ino)
            known = self._known.get(directory)
            if known is not None and known[0] == mark and not known[1].running:
                found[directory] = known
            elif (summary := read_summary(directory)) is not None:
                found[directory] = (mark, summary)
        self._known = found
        return [summary for _, summary in found.values()]


def read_summary(directory: Path) -> RunSummary | None:
    """One run's summary, None when there is no run (any more)."""
    paths = RunPaths(directory)
    try:
        state = _decoder.decode(paths.state.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return RunSummary(directory, None, problem=f"state.json cannot be read: {error}")
    if state.outcome is not Outcome.RUNNING:
        return RunSummary(directory, state, state.step)
    return RunSummary(directory, state, _live_step(paths, state), lock_holder(paths.supervisor_lock) is not None)


def run_directories(runs: Path) -> list[Path]:
    """The run directories in the folder ``runs``, by name; empty when there is no such folder."""
    try:
        with os.scandir(runs) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    except OSError:
        return []
    return [runs / name for name in names if os.path.exists(runs / name / "state.json")]  # noqa: PTH110 - no error


def _live_step(paths: RunPaths, state: RunState) -> int:
    beat = read_heartbeat(paths.attempt(state.attempt).heartbeat) if state.attempt and state.trainer_pid else None
    return state.step if beat is None or beat.phase <= Phase.LOADING else beat.step
