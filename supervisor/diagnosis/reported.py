"""What a trainer's own exit report says, and whether what it says is so."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.diagnosis.kinds import FailureKind, observed
from supervisor.diagnosis.values import Evidence, Verdict
from supervisor.diagnosis.weigh import weigh
from supervisor.protocol.attempt import EXIT_CODES, ExitKind, ExitReport

PLANNED_FIGURES = ("steps", "tokens", "rows")
_ALL_DONE = "All planned steps, tokens and rows are done."


def from_report(evidence: Evidence, report: ExitReport) -> Verdict:
    if report.kind is ExitKind.COMPLETED:
        return _completion(evidence, report)
    if report.kind is ExitKind.INTERRUPTED and not evidence.stop_requested:
        return Verdict(FailureKind.INTERRUPTED, 1.0, "Somebody else asked the trainer to stop.", report.evidence)
    if report.kind is ExitKind.PROGRAM_ERROR and (named := _named_by_exception(report)) is not None:
        return Verdict(named, 0.9, report.message, report.evidence, (FailureKind.PROGRAM_ERROR,))
    return Verdict(observed(report.kind), 0.95, report.message, report.evidence)


_OUTSIDE_THE_PROGRAM = frozenset(
    {
        FailureKind.CUDA_OOM,
        FailureKind.DEPENDENCY_ERROR,
        FailureKind.DEVICE_ASSERT,
        FailureKind.DISK_FULL,
        FailureKind.DRIVER_MISMATCH,
        FailureKind.ENGINE_DEATH,
        FailureKind.FILESYSTEM_ERROR,
        FailureKind.GPU_LOST,
        FailureKind.HOST_OOM,
        FailureKind.NCCL_ERROR,
        FailureKind.NETWORK,
        FailureKind.NO_GPU,
        FailureKind.PERMISSION_DENIED,
        FailureKind.PORT_IN_USE,
        FailureKind.SHM_FULL,
        FailureKind.TOO_MANY_FILES,
        FailureKind.WORKER_KILLED,
    }
)


def _named_by_exception(report: ExitReport) -> FailureKind | None:
    """What an exception that the trainer has no kind for says of the world outside; None when it says nothing."""
    traceback = "\n".join(("Traceback (most recent call last):", *report.evidence))
    best = weigh(traceback, EXIT_CODES[report.kind], None, None, first_hand=True).best
    return best.kind if best is not None and best.kind in _OUTSIDE_THE_PROGRAM else None


def outlived(evidence: Evidence, report: ExitReport) -> bool:
    """Did a program go on after the training that its report calls completed, and fail then?"""
    failed = evidence.signal is not None or evidence.exit_code not in (0, None)
    return evidence.bare and failed and report.kind is ExitKind.COMPLETED


def _bare_completion(report: ExitReport) -> Verdict:
    """Planned steps are to be done ones; tokens and rows only where the program counts them."""
    figures = [name for name in PLANNED_FIGURES if name == "steps" or name in report.planned]
    if short := unfulfilled(report, figures):
        cause = f"The command says completed, but {'; '.join(short)}."
        return Verdict(FailureKind.COMPLETED_EARLY, 1.0, cause, report.evidence)
    if report.stopped_early:
        return Verdict(FailureKind.COMPLETED, 0.95, _sentence(report))
    unknown = [name for name in PLANNED_FIGURES if name not in figures]
    not_told = f" Planned {' and '.join(unknown)} are not known here." if unknown else ""
    return Verdict(FailureKind.COMPLETED, 0.95, f"All planned {', '.join(figures)} are done.{not_told}")


def _own_completion(evidence: Evidence, report: ExitReport) -> Verdict:
    """A program that keeps its own state says what it has done in its own words; its planned steps are to be done."""
    short = unfulfilled(report, [name for name in PLANNED_FIGURES if name == "steps" or name in report.planned])
    if not evidence.unseen and (evidence.signal is not None or evidence.exit_code != 0):
        ended = f"signal {evidence.signal}" if evidence.signal is not None else f"exit code {evidence.exit_code}"
        short.append(f"it ended with {ended}")
    if short:
        cause = f"The job says completed, but {'; '.join(short)}."
        return Verdict(FailureKind.COMPLETED_EARLY, 1.0, cause, report.evidence)
    words = [_as_sentence(text) for text in (report.stopped_early, report.message) if text]
    return Verdict(FailureKind.COMPLETED, 1.0, " ".join(words))


def _sentence(report: ExitReport) -> str:
    return _as_sentence(report.stopped_early)


def _as_sentence(text: str) -> str:
    text = text.strip()
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _completion(evidence: Evidence, report: ExitReport) -> Verdict:
    if evidence.bare:
        return _bare_completion(report)
    if evidence.own_state:
        return _own_completion(evidence, report)
    short = unfulfilled(report)
    if not evidence.unseen and (evidence.signal is not None or evidence.exit_code != 0):
        ended = f"signal {evidence.signal}" if evidence.signal is not None else f"exit code {evidence.exit_code}"
        if not short and evidence.final_verified:
            return Verdict(
                FailureKind.COMPLETED, 0.9, f"All planned work is done; the trainer then ended with {ended}."
            )
        short = [*short, f"it ended with {ended}"]
    elif not short and evidence.final_verified:
        done = f"{_sentence(report)} Everything up to there is done." if report.stopped_early else _ALL_DONE
        return Verdict(FailureKind.COMPLETED, 1.0, done)
    if not evidence.final_verified:
        short = [*short, "there is no verified checkpoint of the last planned step"]
    return Verdict(
        FailureKind.COMPLETED_EARLY, 1.0, f"The trainer says completed, but {'; '.join(short)}.", report.evidence
    )


def unfulfilled(report: ExitReport, figures: Sequence[str] = PLANNED_FIGURES) -> list[str]:
    """What of the plan was not done; a figure that was not reported is not done either."""
    problems = []
    for name in figures:
        planned, done = report.planned.get(name), report.done.get(name)
        if planned is None or done is None:
            problems.append(f"it does not say how many {name} were planned and done")
        elif planned != done:
            problems.append(
                f"only {done} of {planned} planned {name} were done"
                if done < planned
                else f"{done} {name} were done where {planned} were planned"
            )
    return problems
