"""How numbers and names are written, in tables and on pages alike."""

from __future__ import annotations

from evalsuite.gate_result import CheckResult, GateVerdict
from evalsuite.scores import ModelIdentity


def score(value: float) -> str:
    return f"{value:.4f}"


def signed(value: float) -> str:
    return f"{value:+.4f}"


def percent(value: float) -> str:
    return f"{100 * value:.4g} %"


def model_name(model: ModelIdentity) -> str:
    adapter = "" if model.adapter is None else f" with adapter {model.adapter[:12]}"
    return f"{model.base}{f'@{model.base_revision}' if model.base_revision else ''}{adapter}"


def rule(check: CheckResult) -> str:
    return "better" if check.margin is None else f"not worse by {check.margin:g}"


def judged_name(verdict: GateVerdict) -> str:
    return "COULD NOT BE JUDGED" if verdict is GateVerdict.UNJUDGED else verdict.value.upper()
