"""Judging a program by what it prints: the inputs go into the sandbox, the right outputs never do. Pure.

A program can print whatever it likes, also marks that look like ours; without computing them it cannot print outputs
that it has never seen.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

SCRIPT = ".mens-judge.sh"
_INPUT = ".mens-input-{}"
_SHOWN = 600


def problem(cases: Any) -> str | None:
    """Why a task's cases can't be judged by, in a sentence."""
    if not isinstance(cases, list) or not cases:
        return "check.data.cases is missing: proof output needs at least one case with input and output"
    for number, case in enumerate(cases):
        if not isinstance(case, dict) or not all(isinstance(case.get(key, ""), str) for key in ("input", "output")):
            return f"check.data.cases[{number}] must have input and output, both text"
        if not case.get("output", "").strip():
            return f"check.data.cases[{number}].output is empty, so a program that does nothing would pass"
    return None


def script(
    build: Sequence[str], command: Sequence[str], cases: Sequence[Mapping[str, str]], nonce: str
) -> tuple[bytes, dict[str, bytes]]:
    """A shell script that builds, then runs the command on each input; and the files that it reads."""
    lines = []
    if build:
        # The mark comes before what may follow it, and a failed build leaves no outputs at all.
        lines.append(f"{shlex.join(build)} >&2 </dev/null || {{ echo {nonce} unbuilt; exit 1; }}")
    inputs = {}
    for number, case in enumerate(cases):
        inputs[_INPUT.format(number)] = case.get("input", "").encode("utf-8", "surrogatepass")
        lines.append(f"echo {nonce} case")
        lines.append(f"{shlex.join(command)} <{_INPUT.format(number)}")
        lines.append(f"code=$?; echo; echo {nonce} ended $code")
    return ("\n".join(lines) + "\n").encode(), inputs


def compare(
    stdout: bytes, stderr: bytes, cases: Sequence[Mapping[str, str]], nonce: str
) -> tuple[int, str | None, str]:
    """How many cases are right, and reason and diagnostic of the first that is not; reason None when all are."""
    said = stderr.decode(errors="replace").strip()
    text = stdout.decode(errors="replace")
    parts = text.split(f"{nonce} case\n")
    if f"{nonce} unbuilt" in parts[0]:
        return 0, "does not build", said
    passed = 0
    first: tuple[str, str] | None = None
    for number, case in enumerate(cases):
        part = parts[number + 1] if number + 1 < len(parts) else ""
        shown, _, ending = part.rpartition(f"\n{nonce} ended ")
        wanted, got = _comparable(case.get("output", "")), _comparable(shown)
        if wanted and got == wanted and ending.strip() == "0":
            passed += 1
        elif first is None:
            if ending.strip() not in ("", "0"):
                first = ("the program fails", f"case {number + 1}: exit code {ending.strip()}\n{said}")
            else:
                given = _short(case.get("input", ""))
                first = (
                    "wrong output",
                    f"case {number + 1}, input {given!r}: expected {_short(wanted)!r}, got {_short(got)!r}\n{said}",
                )
    if first is None and len(parts) != len(cases) + 1:
        first = ("breaks the protocol", "its output has marks of the judge")
    return (passed, None, "") if first is None else (passed, *first)


def _comparable(text: str) -> str:
    """Lines without trailing blanks, and no blank lines at the end."""
    return "\n".join(line.rstrip() for line in text.replace("\r\n", "\n").split("\n")).strip("\n")


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
