"""Whose turn it is. Pure: who waits, what there is and who holds it go in; who starts, and why others don't, comes out.

The order is: what has begun before, then priority, then the order of coming. Whoever waits for a GPU keeps those that
are free from everybody after it, so that nobody who needs several is overtaken for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from supervisor.daemon.service import EntryState

CPU = "cpu"


@dataclass(frozen=True)
class Candidate:
    """A job in state waiting. ``after``: the states of the jobs that it shall follow, by id (None: there is none)."""

    id: int
    name: str
    priority: int
    resumed: bool
    device: str
    processes: int
    after: Mapping[int, EntryState | None]


@dataclass(frozen=True)
class Holding:
    """Who holds a resource. ``note``: why it is not free although its holder has ended; empty while that runs."""

    job: int
    name: str
    ended: bool
    note: str = ""


@dataclass(frozen=True)
class Resources:
    """``gpus``: None while it is not known which there are, ``unknown`` says why."""

    gpus: tuple[str, ...] | None
    held: Mapping[str, Holding]
    unknown: str = ""


@dataclass(frozen=True)
class Turn:
    """``resources``: what the job gets now; empty when it has to wait. ``blocked``: for another job to complete."""

    id: int
    resources: tuple[str, ...]
    blocked: bool
    why: str


def wanted(device: str, gpus: tuple[str, ...] | None) -> str | None:
    """``gpu`` or ``cpu``; None while that depends on what is not known. Who asks for a GPU where there is none gets
    the CPU, and its run says why it cannot work."""
    if device == CPU:
        return CPU
    if gpus is None:
        return None
    return "gpu" if gpus else CPU


def decide(candidates: Sequence[Candidate], resources: Resources) -> list[Turn]:
    """One turn for each, in the order in which they are looked at."""
    taken: dict[str, str] = {}
    turns = []
    for candidate in sorted(candidates, key=lambda each: (not each.resumed, -each.priority, each.id)):
        if why := unmet(candidate.after):
            turns.append(Turn(candidate.id, (), True, why))
        else:
            turns.append(_turn(candidate, resources, taken))
    return turns


def _turn(candidate: Candidate, resources: Resources, taken: dict[str, str]) -> Turn:
    what = wanted(candidate.device, resources.gpus)
    if what is None:
        return Turn(candidate.id, (), False, f"Which GPUs there are is not known: {resources.unknown}.")
    all_of_it = (CPU,) if what == CPU else resources.gpus or ()
    count = min(candidate.processes, len(all_of_it)) if what == "gpu" else 1
    free = [name for name in all_of_it if name not in resources.held and name not in taken][:count]
    taken.update(dict.fromkeys(free, f"entry {candidate.id} ({candidate.name}) is to have it"))
    if len(free) == count:
        return Turn(candidate.id, tuple(free), False, "")
    busy = [_busy(name, resources, taken) for name in all_of_it if name not in free]
    needs = f"It needs {count} GPUs. " if count > 1 else ""
    return Turn(candidate.id, (), False, f"{needs}{'; '.join(busy)}.")


def _busy(name: str, resources: Resources, taken: Mapping[str, str]) -> str:
    shown = "The CPU" if name == CPU else name
    holding = resources.held.get(name)
    if holding is None:
        return f"{shown}: {taken[name]}"
    if not holding.ended:
        return f"{shown} is held by entry {holding.job} ({holding.name})"
    return f"{shown} is not free yet after entry {holding.job}: {holding.note or 'its memory is being looked at'}"


def unmet(after: Mapping[int, EntryState | None]) -> str:
    """Why a job has to wait for those that it shall follow; empty when it has not."""
    sentences = []
    for job, state in after.items():
        if state is EntryState.COMPLETED:
            continue
        if state is EntryState.FAILED:
            sentences.append(f"It follows entry {job}, which failed. `mens-sup resume {job}` tries that again.")
        elif state is EntryState.CANCELLED:
            sentences.append(f"It follows entry {job}, which was cancelled. Cancel this one too, or submit it anew.")
        elif state is EntryState.PAUSED:
            sentences.append(f"It follows entry {job}, which is paused.")
        else:
            sentences.append(f"It follows entry {job}.")
    return " ".join(sentences)
