import signal
from pathlib import Path
from typing import Any

import pytest

from supervisor.diagnosis.diagnose import diagnose
from supervisor.diagnosis.evidence import TAIL_BYTES, log_tail
from supervisor.diagnosis.kinds import ADVICE, FailureKind
from supervisor.diagnosis.values import Evidence
from supervisor.protocol.attempt import EXIT_CODES, ExitKind, ExitReport
from supervisor.protocol.heartbeat import Heartbeat, Phase

DONE = {"steps": 12, "tokens": 1200, "rows": 96}
BEAT = Heartbeat(Phase.TRAINING, 1, 7, 12, 0, 9)


def evidence(**known: Any) -> Evidence:
    values: dict[str, Any] = {
        "report": None,
        "exit_code": None,
        "signal": None,
        "stderr_tail": "",
        "heartbeat": BEAT,
        **known,
    }
    return Evidence(**values)


def report(kind: ExitKind, **known: Any) -> ExitReport:
    return ExitReport(**{"kind": kind, "message": "its words", "step": 7, "phase": "training", **known})


def completed(**known: Any) -> ExitReport:
    return report(ExitKind.COMPLETED, **{"planned": DONE, "done": DONE, **known})


# proves SUP-15: completed is believed only with the plan fulfilled and the last checkpoint verified
@pytest.mark.parametrize(
    ("known", "kind"),
    [
        ({"report": completed(), "exit_code": 0, "final_verified": True}, FailureKind.COMPLETED),
        ({"report": completed(), "exit_code": 0, "final_verified": False}, FailureKind.COMPLETED_EARLY),
        (
            {"report": completed(done={**DONE, "steps": 6}), "exit_code": 0, "final_verified": True},
            FailureKind.COMPLETED_EARLY,
        ),
        (
            {"report": completed(done={**DONE, "tokens": 6}), "exit_code": 0, "final_verified": True},
            FailureKind.COMPLETED_EARLY,
        ),
        (
            {"report": completed(done={**DONE, "rows": 97}), "exit_code": 0, "final_verified": True},
            FailureKind.COMPLETED_EARLY,
        ),
        ({"report": completed(planned={}), "exit_code": 0, "final_verified": True}, FailureKind.COMPLETED_EARLY),
        ({"report": completed(), "signal": signal.SIGABRT, "final_verified": True}, FailureKind.COMPLETED),
        ({"report": completed(), "signal": signal.SIGABRT, "final_verified": False}, FailureKind.COMPLETED_EARLY),
        ({"exit_code": 0, "final_verified": True}, FailureKind.COMPLETED_EARLY),
    ],
)
def test_honest_completion(known: dict[str, Any], kind: FailureKind) -> None:
    assert diagnose(evidence(**known)).kind is kind


# proves SUP-6 (its first form): report before signal before exit code before text
@pytest.mark.parametrize(
    ("known", "kind"),
    [
        ({"report": report(ExitKind.DATA_ERROR), "signal": signal.SIGKILL}, FailureKind.DATA_ERROR),
        ({"report": report(ExitKind.INTERRUPTED), "exit_code": 3}, FailureKind.INTERRUPTED),
        ({"signal": signal.SIGKILL, "stderr_tail": "CUDA out of memory"}, FailureKind.KILLED),
        ({"signal": signal.SIGKILL, "stop_requested": True, "killed_by_us": True}, FailureKind.INTERRUPTED),
        ({"signal": signal.SIGTERM}, FailureKind.INTERRUPTED),
        ({"signal": signal.SIGSEGV}, FailureKind.NATIVE_CRASH),
        ({"signal": signal.SIGABRT, "stderr_tail": "c10: CUDA out of memory"}, FailureKind.CUDA_OOM),
        ({"signal": 64}, FailureKind.UNKNOWN),
        ({"exit_code": 1}, FailureKind.UNKNOWN),
        (
            {"exit_code": 1, "stderr_tail": "torch.OutOfMemoryError: CUDA out of memory. Tried\nwandb: bye"},
            FailureKind.CUDA_OOM,
        ),
        ({"exit_code": 1, "stderr_tail": "OSError: [Errno 28] No space left on device: 'x'"}, FailureKind.DISK_FULL),
        ({"exit_code": 1, "stderr_tail": "ModuleNotFoundError: No module named 'x'"}, FailureKind.DEPENDENCY_ERROR),
        ({"exit_code": 1, "stderr_tail": "see ModuleNotFoundError: in the docs"}, FailureKind.UNKNOWN),
    ],
)
def test_trust_order(known: dict[str, Any], kind: FailureKind) -> None:
    assert diagnose(evidence(**known)).kind is kind


@pytest.mark.parametrize("kind", [kind for kind in ExitKind if kind is not ExitKind.COMPLETED])
def test_every_exit_kind_is_known_by_report_and_by_code(kind: ExitKind) -> None:
    assert diagnose(evidence(report=report(kind), exit_code=EXIT_CODES[kind])).kind.value == kind.value
    assert diagnose(evidence(exit_code=EXIT_CODES[kind])).kind.value == kind.value


def test_every_failure_has_advice() -> None:
    assert set(FailureKind) - {FailureKind.COMPLETED, FailureKind.INTERRUPTED} <= set(ADVICE)


# proves SUP-7 (its first form): the fingerprint forgets numbers, not causes
def test_fingerprint() -> None:
    def seen(message: str) -> str:
        return diagnose(evidence(report=report(ExitKind.PROGRAM_ERROR, message=message), exit_code=70)).fingerprint

    assert seen("index 17 is out of bounds at 0x7f01") == seen("index 4 is out of bounds at 0xdead")
    assert seen("index 17 is out of bounds") != seen("division by zero")


def test_place_is_named() -> None:
    assert diagnose(evidence(exit_code=1)).where == "at step 7 while training"
    assert diagnose(evidence(exit_code=1, heartbeat=None)).where == "before its first heartbeat"


def test_log_tail_is_clean_text_of_bounded_size(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    assert log_tail(log) == ""
    log.write_bytes(b"x" * TAIL_BYTES + b"\x1b[31mred\x1b[0m 10%\r20%\r\n\x07\xff\x1b]0;title\x07end\tof\n")
    tail = log_tail(log)
    assert tail.endswith("red 10%\n20%\n\ufffdend\tof\n")
    assert len(tail) <= TAIL_BYTES
