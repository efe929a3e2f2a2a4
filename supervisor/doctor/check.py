"""What the doctor found, one check each."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class Verdict(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    """Something does without it, or will be slow or unsafe."""
    FAIL = "fail"
    """Nothing of use will run like this."""


@dataclass(frozen=True)
class Check:
    """``found``: one sentence. ``remedy``: what to do, empty for what is well."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""

    def plain(self) -> dict[str, Any]:
        return {"name": self.name, "verdict": self.verdict.value, "found": self.found, "remedy": self.remedy}


def ok(name: str, found: str) -> Check:
    return Check(name, Verdict.OK, found)


def warn(name: str, found: str, remedy: str) -> Check:
    return Check(name, Verdict.WARN, found, remedy)


def fail(name: str, found: str, remedy: str) -> Check:
    return Check(name, Verdict.FAIL, found, remedy)


def render(checks: Sequence[Check]) -> str:
    """A line for each check, its remedy below it, and what it comes to."""
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        lines.append(f"{check.verdict.value.upper() if check.verdict is Verdict.FAIL else check.verdict.value:<5}"
                     f"{check.name:<{width + 2}}{check.found}")  # fmt: skip
        if check.remedy:
            lines.append(f"{'':<{width + 7}}-> {check.remedy}")
    failed = sum(check.verdict is Verdict.FAIL for check in checks)
    warned = sum(check.verdict is Verdict.WARN for check in checks)
    if failed:
        end = f"{failed} of {len(checks)} checks failed" + (f", {warned} with a warning" if warned else "")
    else:
        end = f"{len(checks)} checks, none failed" + (f", {warned} with a warning" if warned else "")
    return "\n".join([*lines, "", f"{end}."])
