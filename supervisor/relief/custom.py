"""Rungs that the user wrote into relief.ladder. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from supervisor.config_sections import CustomRung
from supervisor.jobs import Patch, Relief, Rung
from supervisor.state import ReliefTaken


def own_rungs(settings: Sequence[CustomRung], taken: Sequence[ReliefTaken]) -> dict[str, Rung]:
    """The user's rungs that were not taken yet; each can be taken once."""
    used = {entry.rung for entry in taken}
    return {rung.name: _as_rung(rung) for rung in settings if rung.name not in used}


def _as_rung(settings: CustomRung) -> Rung:
    def rung(document: Mapping[str, Any], facts: Mapping[str, Any]) -> Relief | None:
        changes = [Patch(key, _at(document, key), copy.deepcopy(value)) for key, value in settings.set.items()]
        patches = tuple(patch for patch in changes if patch.old != patch.new)
        if not patches:
            return None
        return Relief(
            settings.name,
            patches,
            settings.price,
            lossless=settings.lossless,
            new_lineage=settings.new_lineage,
            # What the user wrote down is accepted; a trainer still refuses what can never change on the way.
            accepts=tuple(settings.set),
            helps=settings.helps,
        )

    return rung


def _at(document: Mapping[str, Any], key: str) -> Any:
    value: Any = document
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
