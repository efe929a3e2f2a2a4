"""Does the ladder of relief fit the kind of job? Names that exist, and own rungs whose keys the schema takes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from supervisor.config_errors import suggest
from supervisor.config_sections import TRIM_RETENTION, WAIT_FOR_FOREIGN_VRAM, CustomRung, SupervisorSections
from supervisor.jobs import JobKind, Problem

SUPERVISORS_RUNGS = (TRIM_RETENTION, WAIT_FOR_FOREIGN_VRAM)
"""Known whatever the kind of job: they change nothing that a trainer sees."""
NOT_FOR_RUNGS = ("kind", "name", "limits", "relief", "notify")
"""Sections that say how relief itself works; a rung may not change them."""

Check = Callable[[Mapping[str, Any]], Sequence[Problem]]
Setter = Callable[[dict[str, Any], str, Any], None]


def fit_ladder(
    own: SupervisorSections, kind: JobKind, document: Mapping[str, Any], check: Check, set_key: Setter
) -> tuple[SupervisorSections, list[Problem]]:
    """A default ladder is cut to what the kind understands; one that was written must fit it.

    ``check``: the problems of a whole document by the schema.
    """
    known = [*SUPERVISORS_RUNGS, *kind.rungs]
    if "ladder" not in own.relief.model_fields_set:
        ladder = tuple(rung for rung in own.relief.ladder if rung in known)
        return own.model_copy(update={"relief": own.relief.model_copy(update={"ladder": ladder})}), []
    problems: list[Problem] = []
    seen: dict[str, int] = {}
    for index, rung in enumerate(own.relief.ladder):
        place = f"relief.ladder.{index}"
        name = rung if isinstance(rung, str) else rung.name
        if isinstance(rung, CustomRung):
            problems += _own_rung(place, rung, known, document, check, set_key)
        elif rung not in known:
            meant = suggest(rung, known)
            remedy = f"Did you mean {meant}?" if meant else f"Rungs of kind {kind.name}: {', '.join(known)}."
            problems.append(Problem(place, f"relief.ladder: there is no rung {rung!r}", remedy))
        if name in seen:
            message = f"relief.ladder names {name} twice, first at position {seen[name] + 1}"
            problems.append(Problem(place, message, "Keep one of the two: a rung is taken as often as it helps."))
        seen.setdefault(name, index)
    return own, problems


def _own_rung(
    place: str, rung: CustomRung, known: Sequence[str], document: Mapping[str, Any], check: Check, set_key: Setter
) -> Iterator[Problem]:
    if rung.name in known:
        yield Problem(f"{place}.name", f"{place}.name: {rung.name} is a rung already", "Choose another name.")
    changed = copy.deepcopy(dict(document))
    for key, value in rung.set.items():
        where = f"{place}.set.{key}"
        if key.partition(".")[0] in NOT_FOR_RUNGS:
            message = f"{where}: relief cannot change {key}"
            yield Problem(where, message, "A rung sets keys of the job, launch.env or checkpoint.")
            return
        try:
            set_key(changed, key, value)
        except ValueError as error:
            yield Problem(where, f"{where}: {error}")
            return
    for problem in check(changed):
        # A rule over several keys is nobody's own: then all that was set is to blame.
        blamed = next((f".{name}" for name in rung.set if _same_branch(name, problem.key)), "")
        key = f"{place}.set{blamed}"
        yield replace(problem, key=key, message=f"{key}: {problem.message}")


def _same_branch(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")
