"""A table of logs over every kind, each with the verdict that a person would give."""

from __future__ import annotations

import functools
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from supervisor.diagnosis.diagnose import diagnose
from supervisor.diagnosis.kinds import FACTS, FailureKind
from supervisor.diagnosis.values import Diagnosis, Evidence

CASES = Path(__file__).parent / "diagnosis_cases"
RIGHT_KIND = 0.98
"""Share of the cases whose kind must be right; "try again or not" must be right in all of them."""


@functools.cache
def cases() -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(CASES.glob("*.jsonl")) for line in file.read_text().splitlines()]


@functools.cache
def verdicts() -> list[tuple[dict[str, Any], Diagnosis]]:
    return [(case, verdict(case)) for case in cases()]


def verdict(case: dict[str, Any]) -> Diagnosis:
    return diagnose(
        Evidence(
            report=None,
            exit_code=case.get("exit_code"),
            signal=int(signal.Signals[case["signal"]]) if "signal" in case else None,
            stderr_tail=case["log"],
            heartbeat=None,
            kernel_log=case.get("kernel_log"),
            first_hand=False,
        )
    )


# proves SUP-6: the kind and the answer to "try again?" for logs of many trainers, launchers and schedulers
def test_the_table() -> None:
    wrong_kind, wrong_answer = [], []
    table = cases()
    for case, found in verdicts():
        told = f"{case['id']}: {found.kind} instead of {case['kind']} ({found.explanation[:120]})"
        if found.kind != case["kind"]:
            wrong_kind.append(told)
            if case["kind"] not in found.also and found.kind not in case.get("also", []):
                wrong_kind[-1] += ", not even among the others"
        if found.retryable != case["retryable"]:
            wrong_answer.append(told)
    print("\n".join(wrong_kind))
    assert not wrong_answer, "\n".join(wrong_answer)
    assert len(wrong_kind) <= (1 - RIGHT_KIND) * len(table), "\n".join(wrong_kind)


def test_the_table_has_every_kind() -> None:
    table = cases()
    assert len(table) >= 1400
    assert {case["kind"] for case in table} == {kind.value for kind in FailureKind}
    assert len({case["id"] for case in table}) == len(table)
    assert all(case["retryable"] is FACTS[FailureKind(case["kind"])].retryable for case in table)


# proves SUP-6: remarks at a program's start and farewells at its end are not taken for the cause
@pytest.mark.parametrize(
    "table", [pytest.param(cases()[::4], id="every fourth"), pytest.param(cases(), id="all", marks=pytest.mark.slow)]
)
def test_the_table_in_noise(table: list[dict[str, Any]]) -> None:
    noise = json.loads((CASES / "noise.json").read_text())
    before, after = ("".join(f"{line}\n" for line in noise[part]) for part in ("before", "after"))
    wrong = [
        f"{case['id']}: {found.kind} ({found.explanation[:120]})"
        for case in table
        if (found := verdict({**case, "log": f"{before}{case['log']}{after}"})).kind != case["kind"]
    ]
    assert len(wrong) <= (1 - RIGHT_KIND) * len(table), "\n".join(wrong)


def test_evidence_is_short_and_there() -> None:
    for case, found in verdicts():
        assert len(found.evidence) <= 12, case["id"]
        assert found.evidence or not case["log"].strip(), case["id"]
        assert all(len(line) <= 500 for line in found.evidence), case["id"]
        assert found.explanation, case["id"]
