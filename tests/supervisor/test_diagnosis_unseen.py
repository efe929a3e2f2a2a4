from pathlib import Path
from typing import Any

import pytest

from supervisor.diagnosis.diagnose import diagnose
from supervisor.diagnosis.kinds import FailureKind
from supervisor.diagnosis.values import Evidence, Hang
from supervisor.protocol.attempt import ExitKind, ExitReport
from supervisor.protocol.heartbeat import Heartbeat, Phase
from supervisor.sensors.kernel_log import past_events
from supervisor.sensors.snapshot import Unknown

DONE = {"steps": 12, "tokens": 1200, "rows": 96}
BEAT = Heartbeat(Phase.TRAINING, 77, 7, 12, 0, 9)
VICTIM = "Memory cgroup out of memory: Killed process 77 (python3) total-vm:9000kB, anon-rss:8000kB"


def unseen(**known: Any) -> Evidence:
    """An attempt that ended while nobody could see how."""
    given: dict[str, Any] = {"report": None, "stderr_tail": "", "heartbeat": BEAT, **known}
    return Evidence(exit_code=None, signal=None, **given)


# proves SUP-10: without a status the trainer's own report is believed like any other
def test_a_report_counts_without_an_exit_status() -> None:
    done = ExitReport(ExitKind.COMPLETED, "done", step=12, planned=DONE, done=DONE)
    assert diagnose(unseen(report=done, final_verified=True)).kind is FailureKind.COMPLETED
    early = diagnose(unseen(report=done, final_verified=False))
    assert early.kind is FailureKind.COMPLETED_EARLY and "None" not in early.explanation
    bad = diagnose(unseen(report=ExitReport(ExitKind.DATA_ERROR, "rows.jsonl:17: no answer", step=7)))
    assert (bad.kind, bad.retryable) == (FailureKind.DATA_ERROR, False)
    asked = unseen(report=ExitReport(ExitKind.INTERRUPTED, "asked to stop"), stop_requested=True)
    assert diagnose(asked).kind is FailureKind.INTERRUPTED


# proves SUP-6, SUP-10: without either, nothing is claimed that nobody saw
@pytest.mark.parametrize(
    ("known", "kind", "surest"),
    [
        ({}, FailureKind.KILLED, 0.4),
        ({"stderr_tail": "{'loss': 1.2}\n 58%|#####     | 7/12\n"}, FailureKind.KILLED, 0.4),
        ({"stderr_tail": "Training completed. 12/12\n"}, FailureKind.KILLED, 0.4),
        ({"stderr_tail": "Fatal Python error: Segmentation fault\n"}, FailureKind.NATIVE_CRASH, 0.7),
        ({"kernel_log": VICTIM}, FailureKind.HOST_OOM, 0.7),
        ({"oom_kills": 1}, FailureKind.HOST_OOM, 0.7),
        ({"stop_requested": True}, FailureKind.INTERRUPTED, 0.7),
        ({"rebooted": True}, FailureKind.KILLED, 0.8),
    ],
)
def test_an_end_that_nobody_saw(known: dict[str, Any], kind: FailureKind, surest: float) -> None:
    found = diagnose(unseen(**known))
    assert (found.kind, found.step) == (kind, 7)
    assert found.confidence <= surest
    assert found.retryable


# proves SUP-10: a power failure is called one
def test_the_machine_went_down() -> None:
    assert "The machine went down" in diagnose(unseen(rebooted=True)).explanation


# proves SUP-8: a hang is what we ended the trainer for, whatever it said or died of afterwards
def test_a_hang_is_a_hang_however_it_was_ended() -> None:
    hang = Hang("It stopped making progress while training: silent for 601 s.", 7, "training", ("in step (sft.py:9)",))
    killed = Evidence(report=None, exit_code=None, signal=9, stderr_tail="", heartbeat=BEAT, hang=hang)
    polite = Evidence(
        report=ExitReport(ExitKind.INTERRUPTED, "stopped on request", step=8), exit_code=3, signal=None,
        stderr_tail="", heartbeat=BEAT, hang=hang,
    )  # fmt: skip
    for evidence in (killed, polite):
        found = diagnose(evidence)
        assert (found.kind, found.step, found.where) == (FailureKind.HANG, 7, "at step 7 while training")
        assert found.evidence == ("in step (sft.py:9)",)
        assert found.retryable
    assert diagnose(killed).fingerprint == diagnose(polite).fingerprint


# proves SUP-8, SUP-15: wedged in its teardown after all work was done, it has completed
def test_a_hang_after_the_work_was_done() -> None:
    done = ExitReport(ExitKind.COMPLETED, "done", step=12, planned=DONE, done=DONE)
    hang = Hang("It stopped making progress while finished.", 12, "finished")
    evidence = Evidence(done, None, 9, "", BEAT, final_verified=True, hang=hang)
    assert diagnose(evidence).kind is FailureKind.COMPLETED


# proves SUP-10: what the kernel said about a trainer that died unseen is still there to be read
def test_the_kernels_past_words(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(f"3,1,5000000,-;{VICTIM}\n")
    found = past_events(4.0, log)
    assert not isinstance(found, Unknown)
    assert [(event.what, event.pid) for event in found] == [("oom_kill", 77)]
    assert past_events(6.0, log) == ()
    assert isinstance(past_events(0.0, tmp_path / "none"), Unknown)
