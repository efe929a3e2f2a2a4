"""Which process is meant: a pid alone may belong to somebody else tomorrow."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcStat:
    """What ``/proc/PID/stat`` tells. ``start_ticks``: clock ticks from boot to the start; ``cpu_ticks``: used since."""

    state: str
    parent: int
    group: int
    session: int
    cpu_ticks: int
    start_ticks: int


@dataclass(frozen=True)
class Identity:
    """A process for ever: no other has the same three."""

    pid: int
    start_ticks: int
    boot_id: str


def read_stat(pid: int) -> ProcStat | None:
    """None when there is no such process."""
    return parse_stat(Path(f"/proc/{pid}/stat"))


def parse_stat(path: Path) -> ProcStat | None:
    """A ``stat`` file of a process or of one of its threads; None when it is gone."""
    try:
        text = path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name may hold anything; the fields after it begin with the state
    return ProcStat(
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        start_ticks=int(fields[19]),
    )


def boot_id() -> str:
    """Changes with every boot; empty where the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def identity_of(pid: int) -> Identity | None:
    """None when there is no such process."""
    stat = read_stat(pid)
    return None if stat is None else Identity(pid, stat.start_ticks, boot_id())


def still_lives(known: Identity) -> bool:
    """Is the very process alive (a zombie is not)?"""
    stat = read_stat(known.pid)
    return (
        stat is not None
        and stat.state not in ("Z", "X")
        and stat.start_ticks == known.start_ticks
        and bool(known.boot_id)
        and known.boot_id == boot_id()
    )


def leads_its_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False
