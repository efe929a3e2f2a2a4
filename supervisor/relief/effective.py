"""The configuration of an attempt: as submitted, then accepted changes, then relief. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from supervisor.config import set_key
from supervisor.jobs import Relief
from supervisor.state import ReliefTaken


def effective_document(
    submitted: Mapping[str, Any], overrides: Mapping[str, Any], relief: Sequence[ReliefTaken]
) -> dict[str, Any]:
    """A new document; the order of the layers is the order in which they win: relief last."""
    document = copy.deepcopy(dict(submitted))
    for key, value in overrides.items():
        set_key(document, key, copy.deepcopy(value))
    for taken in relief:
        for key, value in taken.patches.items():
            set_key(document, key, copy.deepcopy(value))
    return document


def taken(relief: Relief, attempt: int, kind: str, answers: str = "", *, in_vain: bool = False) -> ReliefTaken:
    """The record of a rung that is applied before ``attempt`` because of a failure of ``kind``.

    ``answers``: the failure's :func:`supervisor.relief.ledger.place`.
    """
    return ReliefTaken(
        attempt=attempt,
        rung=relief.rung,
        kind=kind,
        price=relief.price,
        lossless=relief.lossless,
        patches={patch.key: patch.new for patch in relief.patches},
        accepts=relief.accepts,
        new_lineage=relief.new_lineage,
        answers=answers,
        in_vain=in_vain,
    )
