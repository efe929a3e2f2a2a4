"""The ladder of relief: which rung comes next, and what became of each. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from supervisor.config_sections import TRIM_RETENTION
from supervisor.jobs import Relief, Rung
from supervisor.state import ReliefTaken


def next_memory_relief(
    ladder: Sequence[str], rungs: Mapping[str, Rung], document: Mapping[str, Any], facts: Mapping[str, Any]
) -> Relief | None:
    """The first rung of the ladder, in its order, that still has something to give for memory."""
    for name in ladder:
        if name in rungs and (relief := rungs[name](document, facts)) is not None:
            return relief
    return None


def next_literal_relief(
    ladder: Sequence[str],
    rungs: Mapping[str, Rung],
    document: Mapping[str, Any],
    facts: Mapping[str, Any],
    trim: Relief | None,
) -> Relief | None:
    """Like :func:`next_memory_relief`, with the trimming of retention as a rung among the others."""
    for name in ladder:
        relief = trim if name == TRIM_RETENTION else (rungs[name](document, facts) if name in rungs else None)
        if relief is not None:
            return relief
    return None


def describe_ladder(
    ladder: Sequence[str],
    rungs: Mapping[str, Rung],
    document: Mapping[str, Any],
    facts: Mapping[str, Any],
    trim: Relief | None,
    taken: Sequence[ReliefTaken],
    useful: Collection[str],
) -> str:
    """What was tried, what has nothing more to give, what is left: sentences for people.

    ``useful``: the rungs that help with the failure at hand.
    """
    if not ladder:
        return "The ladder of relief is empty (relief.ladder)."
    if taken:
        tried = "; ".join(f"{entry.rung} before attempt {entry.attempt} ({entry.price})" for entry in taken)
        text = f"Relief taken: {tried}."
    else:
        text = "No relief was taken."
    offers = {name: next_literal_relief([name], rungs, document, facts, trim) for name in ladder}
    exhausted = [name for name in ladder if name in useful and offers[name] is None]
    left = [name for name in ladder if name in useful and offers[name] is not None]
    useless = [name for name in ladder if name not in useful]
    if exhausted:
        text += f" Rungs with nothing (more) to give: {', '.join(exhausted)}."
    if left:
        text += f" Rungs left: {', '.join(left)}."
    if useless:
        text += f" Rungs that do not help here: {', '.join(useless)}."
    return text
