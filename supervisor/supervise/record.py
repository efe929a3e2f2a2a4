"""Writing an attempt's end down: its diagnosis, its events, its place in the ledger."""

from __future__ import annotations

import time

import msgspec

from supervisor.diagnosis.kinds import FailureKind
from supervisor.diagnosis.values import Diagnosis, Evidence
from supervisor.protocol.atomic import write_atomic
from supervisor.sensors.disk import FULL_ERRORS
from supervisor.state import Failure
from supervisor.supervise.opening import Run


def record(run: Run, found: Diagnosis, evidence: Evidence, status: str, leftovers: int) -> None:
    """Write the diagnosis down: diagnosis.json, and the events of the attempt's end."""
    state = run.state
    try:
        data = msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
        write_atomic(run.paths.attempt(state.attempt).diagnosis, data)
    except OSError as error:
        if error.errno not in FULL_ERRORS:
            raise
        run.journal.event("warning", f"diagnosis.json could not be written: {error.strerror}")
    if leftovers:
        run.journal.event("leftovers_killed", f"{leftovers} process(es) that the trainer left behind were ended")
    run.journal.event("attempt_ended", f"attempt {state.attempt} ended: {status}", step=found.step, status=status)
    asked = evidence.stop_requested and found.kind is FailureKind.INTERRUPTED
    if found.kind is FailureKind.COMPLETED or asked:
        return
    run.journal.event(
        "failure",
        f"{found.kind.value} {found.where}: {found.explanation}",
        step=found.step,
        failure=found.kind.value,
        confidence=found.confidence,
        evidence=list(found.evidence),
        fingerprint=found.fingerprint,
    )


def enter_failure(run: Run, found: Diagnosis, resumed_step: int | None, verified_step: int) -> None:
    """Into the ledger. ``verified_step``: of the newest good checkpoint, 0 when there is none."""
    state = run.state
    state.failures.append(
        Failure(
            attempt=state.attempt,
            kind=found.kind.value,
            step=found.step,
            message=found.explanation,
            fingerprint=found.fingerprint,
            time=time.time(),
            lineage=state.lineage,
            resumed_step=resumed_step,
            verified_step=verified_step,
            planned_steps=state.planned_steps,
        )
    )
