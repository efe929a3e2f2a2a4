"""`mens-sup run` says before the first attempt whether it will fit, and refuses only what certainly cannot.
proves TRN-16."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripted_kind import ScriptedKind
from scripted_runs import document, events, run, state

from supervisor.config import load_document
from supervisor.state import Outcome

GIB = 1 << 30
ANSWER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    micro = asked["document"]["train"]["per_device_train_batch_size"]
    print(json.dumps({"base": "b", "peak_bytes": int(sys.argv[1]) * micro}), flush=True)
"""
"""So many bytes for each row of the micro-batch, which is 4."""


class ForeseeingKind(ScriptedKind):
    """The scripted kind of job with a program that foresees what it is told to."""

    def __init__(self, *program: str) -> None:
        self.program = list(program)

    def forecaster(self) -> list[str]:
        return self.program

    def device(self, sections: Any) -> str:
        return "cpu"

    def speed_key(self, sections: Any) -> str:
        return "scripted"


def supervised(place: Path, kind: ForeseeingKind, *faults: dict[str, Any], **limits: Any) -> Outcome:
    return run(load_document(document(*faults, limits=limits), kind), place / "run")


def memory(gib: float) -> ForeseeingKind:
    return ForeseeingKind("-c", ANSWER, str(int(gib * GIB / 4)))


@pytest.fixture(autouse=True)
def machine_of_16_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    from supervisor.planning import room
    from supervisor.planning.fit import Room

    monkeypatch.setattr(room, "host_room", lambda: Room("cpu", 16 * GIB, "this machine's memory"))


def admission(place: Path) -> tuple[str, dict[str, Any]]:
    (event,) = events(place / "run", "admission")
    return event.message, event.data


def test_what_fits_is_said_and_run(tmp_path: Path) -> None:
    assert supervised(tmp_path, memory(12)) is Outcome.COMPLETED
    message, data = admission(tmp_path)
    assert message == "Fits: predicted peak 12.0 GiB of 16.0 GiB (this machine's memory)."
    assert data["fits"] is True and data["predicted_bytes"] == 12 * GIB and data["room_bytes"] == 16 * GIB


def test_what_is_a_little_too_much_is_tried(tmp_path: Path) -> None:
    assert supervised(tmp_path, memory(18)) is Outcome.COMPLETED
    message, data = admission(tmp_path)
    assert message.startswith("Does not fit") and message.endswith("relief is taken.")
    assert data["relief"] == ["halve_micro_batch"]


def test_what_relief_brings_near_is_tried(tmp_path: Path) -> None:
    assert supervised(tmp_path, memory(60)) is Outcome.COMPLETED
    assert admission(tmp_path)[1]["relief"] == ["halve_micro_batch", "halve_micro_batch"]


def test_what_certainly_cannot_fit_is_refused(tmp_path: Path) -> None:
    assert supervised(tmp_path, memory(600)) is Outcome.FAILED_CONFIG
    reached = state(tmp_path / "run")
    assert reached.attempt == 0
    assert "more than 1.3 times" in reached.explanation and "limits.admission: warn" in reached.explanation


def test_a_warning_is_only_a_warning(tmp_path: Path) -> None:
    assert supervised(tmp_path, memory(600), admission="warn") is Outcome.COMPLETED
    assert admission(tmp_path)[0].startswith("Does not fit")


def test_off_asks_nobody(tmp_path: Path) -> None:
    assert supervised(tmp_path, memory(600), admission="off") is Outcome.COMPLETED
    assert not events(tmp_path / "run", "admission")


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit('no torch here')",
        f"input(); print({json.dumps(json.dumps({'unknown': 'an architecture of the future.'}))})",
    ],
)
def test_what_is_not_known_keeps_no_run_from_starting(tmp_path: Path, code: str) -> None:
    assert supervised(tmp_path, ForeseeingKind("-c", code)) is Outcome.COMPLETED
    message, data = admission(tmp_path)
    assert message.startswith("Not known whether it fits") and data["fits"] is None
    assert data["predicted_bytes"] is None


def test_what_has_trained_already_is_not_refused(tmp_path: Path) -> None:
    """A verified checkpoint of this very configuration says more than any prediction."""
    fault = {"at": 8, "do": "exit", "code": 1, "attempt": 1}
    few = {"max_attempts": 1}
    assert supervised(tmp_path, memory(12), fault, **few) is not Outcome.COMPLETED
    assert state(tmp_path / "run").last_checkpoint is not None
    assert supervised(tmp_path, memory(600), fault, **few) is Outcome.COMPLETED
    assert [event.data["fits"] for event in events(tmp_path / "run", "admission")] == [True, False]


def test_what_has_trained_with_other_settings_may_be_refused(tmp_path: Path) -> None:
    fault = {"at": 8, "do": "exit", "code": 1, "attempt": 1}
    assert supervised(tmp_path, memory(12), fault, max_attempts=1) is not Outcome.COMPLETED
    assert supervised(tmp_path, memory(600), fault, max_attempts=2) is Outcome.FAILED_CONFIG


def test_it_is_asked_once_in_a_call(tmp_path: Path) -> None:
    fault = {"at": 3, "do": "exit", "code": 1, "attempt": 1}
    assert supervised(tmp_path, memory(12), fault) is Outcome.COMPLETED
    assert state(tmp_path / "run").attempt > 1
    assert len(events(tmp_path / "run", "admission")) == 1
