"""Judges with a class of the user's; loaded by judge_server.py, with the class's file beside it."""

from __future__ import annotations

import importlib.util
import math
from typing import Any


def make(argument: dict[str, Any]) -> Plugin:
    spec = importlib.util.spec_from_file_location("verifier_plugin", argument["file"])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Plugin(getattr(module, argument["name"])(argument["settings"]))


class Plugin:
    def __init__(self, judge: Any) -> None:
        self._judge = judge

    def __call__(self, request: dict[str, Any]) -> Any:
        if "completion" not in request:
            found = self._judge.problem(request["task"]) if hasattr(self._judge, "problem") else None
            return None if found is None else str(found)
        return verdict(self._judge.judge(request["task"], request["completion"]))


def verdict(found: Any) -> dict[str, Any]:
    """What a plug-in may say: true or false, a score from 0 to 1, or an object with accepted and perhaps score, reason
    and diagnostic. Raises TypeError, ValueError."""
    if found is True or found is False:
        return {"accepted": found}
    if isinstance(found, (int, float)):
        found = {"accepted": found >= 1, "score": found}
    if not isinstance(found, dict) or not isinstance(found.get("accepted"), bool):
        raise TypeError(f"judge must return true, false, a score or an object with accepted, not {found!r}"[:500])
    score = found.get("score")
    if score is not None:
        score = float(score)
        if not math.isfinite(score) or not 0 <= score <= 1:
            raise ValueError(f"the score must be from 0 to 1, not {score}")
    return {
        "accepted": found["accepted"],
        "score": score,
        "reason": str(found.get("reason") or "")[:100],
        "diagnostic": str(found.get("diagnostic") or "")[:20_000],
    }
