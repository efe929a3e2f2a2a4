"""The other processes of a training of several: siblings of the one that beats, started by the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from supervisor.process.identity import read_stat
from supervisor.protocol.attempt import LAUNCHER_VARIABLE


def other_ranks(trainer: int, beating: int, attempt: Sequence[int]) -> dict[int, int]:
    """The rank of each process of ``attempt`` that the trainer started beside the one that beats, by pid."""
    if beating == trainer:
        return {}
    found = {}
    for pid in attempt:
        stat = read_stat(pid)
        if pid != beating and stat is not None and stat.parent == trainer:
            environment = _environment(pid)
            if environment.get(LAUNCHER_VARIABLE) == str(trainer) and environment.get("RANK", "").isdigit():
                found[pid] = int(environment["RANK"])
    return dict(sorted(found.items(), key=lambda entry: entry[1]))


def _environment(pid: int) -> dict[str, str]:
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # gone meanwhile
        return {}
    entries = (entry.partition("=") for entry in raw.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in entries}
