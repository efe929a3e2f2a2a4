"""How fast runs like this one were: a small file in the user's cache, for estimates before the first step.

Runs are alike when their configurations are, but for what nothing learnt depends on and, where the kind of job tells
the planned steps, their number; and when they run on the same machine. An estimate from here says where it is from.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel

from supervisor.jobs import JobKind, PlansSteps
from supervisor.protocol.atomic import write_atomic

NOT_ALIKE = ("name", "limits", "relief", "notify", "checkpoint", "launch")
ALIKE_IN_LAUNCH = ("processes", "strategy")
KEPT = 200


class KnownPace(msgspec.Struct, frozen=True):
    seconds_per_step: float
    planned_steps: int
    time: float


def pace_file() -> Path:
    """``$MENS_CACHE``, else ``$XDG_CACHE_HOME/mens-supervisor``, else ``~/.cache/mens-supervisor``."""
    if chosen := os.environ.get("MENS_CACHE"):
        return Path(chosen) / "pace.json"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mens-supervisor" / "pace.json"


def likeness(kind: JobKind, document: Mapping[str, Any]) -> str:
    """Equal for runs that should be equally fast here."""
    kept = copy.deepcopy({key: value for key, value in document.items() if key not in NOT_ALIKE})
    launch = document.get("launch", {})
    if launch.get("processes", 1) > 1:
        kept["launch"] = {key: launch[key] for key in ALIKE_IN_LAUNCH if key in launch}
    if isinstance(kind, PlansSteps):
        section, _, key = kind.steps_key.partition(".")
        if isinstance(kept.get(section), dict):
            kept[section].pop(key, None)
    text = json.dumps([platform.node(), os.cpu_count(), kept], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def known_pace(kind: JobKind, sections: BaseModel, document: Mapping[str, Any]) -> KnownPace | None:
    """The pace of an earlier run like this one, with the steps that this one plans."""
    found = _read().get(likeness(kind, document))
    if found is None:
        return None
    planned = kind.planned_steps(sections) if isinstance(kind, PlansSteps) else None
    return msgspec.structs.replace(found, planned_steps=planned or found.planned_steps)


def remember_pace(kind: JobKind, document: Mapping[str, Any], seconds_per_step: float, planned_steps: int) -> None:
    """Raises OSError."""
    known = _read()
    known[likeness(kind, document)] = KnownPace(seconds_per_step, planned_steps, time.time())
    newest = dict(sorted(known.items(), key=lambda entry: entry[1].time)[-KEPT:])
    file = pace_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, msgspec.json.encode(newest))


def _read() -> dict[str, KnownPace]:
    try:
        return msgspec.json.decode(pace_file().read_bytes(), type=dict[str, KnownPace])
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):  # only ever an estimate: begin anew
        return {}
