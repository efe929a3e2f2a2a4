"""The ladder of relief: which rung comes next, and what became of each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from supervisor.config_sections import TRIM_RETENTION
from supervisor.diagnosis.kinds import FACTS, MEMORY_KINDS, FailureKind
from supervisor.jobs import Relief, Rung
from supervisor.state import ReliefTaken

_NAMED = frozenset(name for facts in FACTS.values() for name in facts.helps)


def offered(
    name: str, rungs: Mapping[str, Rung], document: Mapping[str, Any], facts: Mapping[str, Any], trim: Relief | None
) -> Relief | None:
    """What a rung would give now; None when it has nothing (more) to give."""
    if name == TRIM_RETENTION:
        return trim
    return rungs[name](document, facts) if name in rungs else None


def helps_with(relief: Relief, kind: FailureKind) -> bool:
    """Does this relief, in this configuration, help with a failure of ``kind``?"""
    if relief.helps:
        return kind.value in relief.helps
    if relief.rung in _NAMED:
        return relief.rung in FACTS[kind].helps
    # A rung of a kind of job that nothing is known about: rungs are for memory.
    return kind in MEMORY_KINDS


def next_relief(
    ladder: Sequence[str],
    rungs: Mapping[str, Rung],
    document: Mapping[str, Any],
    facts: Mapping[str, Any],
    trim: Relief | None,
    wanted: Callable[[Relief], bool],
) -> Relief | None:
    """The first rung of the ladder, in its order, that has something to give which is ``wanted``."""
    for name in ladder:
        relief = offered(name, rungs, document, facts, trim)
        if relief is not None and wanted(relief):
            return relief
    return None


def describe_ladder(
    ladder: Sequence[str],
    offers: Mapping[str, Relief | None],
    taken: Sequence[ReliefTaken],
    useful: Collection[str],
) -> str:
    """What was tried, what has nothing more to give, what is left: sentences for people.

    ``offers``: what each rung would give now. ``useful``: the rungs that help with the failure at hand.
    """
    if not ladder:
        return "The ladder of relief is empty (relief.ladder)."
    if taken:
        tried = "; ".join(f"{entry.rung} before attempt {entry.attempt} ({entry.price})" for entry in taken)
        text = f"Relief taken: {tried}."
    else:
        text = "No relief was taken."
    exhausted = [name for name in ladder if name in useful and offers.get(name) is None]
    left = [name for name in ladder if name in useful and offers.get(name) is not None]
    useless = [name for name in ladder if name not in useful]
    if exhausted:
        text += f" Rungs with nothing (more) to give: {', '.join(exhausted)}."
    if left:
        text += f" Rungs left: {', '.join(left)}."
    if useless:
        text += f" Rungs that do not help here: {', '.join(useless)}."
    return text
