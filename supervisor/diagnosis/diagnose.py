"""From the evidence of one ended attempt, or of any program's log, to a kind of failure. Pure."""

from __future__ import annotations

import signal
from dataclasses import replace

from supervisor.diagnosis.foreign_gpu import blamed
from supervisor.diagnosis.gpu_memory import is_foreign, read_gpu_memory
from supervisor.diagnosis.kernel_log import read_kernel_log
from supervisor.diagnosis.kinds import FACTS, FailureKind, observed
from supervisor.diagnosis.loglines import read_lines
from supervisor.diagnosis.no_room import no_room
from supervisor.diagnosis.progress import read_progress
from supervisor.diagnosis.reported import from_report, outlived
from supervisor.diagnosis.values import Diagnosis, Evidence, Verdict, fingerprint
from supervisor.diagnosis.weigh import Candidate, Weighed, signal_name, weigh
from supervisor.protocol.attempt import EXIT_CODES, ExitKind
from supervisor.redact import hide_secrets
from supervisor.sensors.holders import holders_text

EVIDENCE_LINES = 12
CAUSE_CHARACTERS = 500
OTHERS = 3
_TELLS_ENOUGH = 0.5
"""The least score of a log's words that is believed when the exit status is not known."""


def diagnose(evidence: Evidence) -> Diagnosis:
    """Trust, in this order: the trainer's own report, signal and counters, the kernel's log, the text."""
    verdict = _whose_gpu_memory(_verdict(evidence), evidence)
    if verdict.kind is FailureKind.UNKNOWN and (full := no_room(evidence.snapshots)):
        verdict = replace(verdict, kind=FailureKind.DISK_FULL, confidence=0.7, cause=full, summary=False)
    step, where = _place(evidence)
    facts = FACTS[verdict.kind]
    # A report brings its own evidence, or needs none; without one the log is all there is.
    lines = verdict.evidence if evidence.report else verdict.evidence or _last_lines(evidence.stderr_tail)
    return Diagnosis(
        kind=verdict.kind,
        confidence=round(verdict.confidence, 2),
        step=step,
        where=where,
        evidence=tuple(hide_secrets(line) for line in lines[-EVIDENCE_LINES:]),
        retryable=facts.retryable,
        explanation=hide_secrets(_explain(facts.summary, verdict)),
        fingerprint=fingerprint(verdict.kind, verdict.cause),
        helps=facts.helps,
        also=verdict.also,
    )


def _explain(summary: str, verdict: Verdict) -> str:
    """The kind's sentence before the cause, unless the cause only says it again."""
    if not verdict.summary or summary.startswith(verdict.cause.rstrip(".")):
        return summary if verdict.summary else verdict.cause
    return f"{summary} {verdict.cause}"


def _verdict(evidence: Evidence) -> Verdict:
    done = evidence.report is not None and evidence.report.kind is ExitKind.COMPLETED
    if evidence.hang is not None and not done:
        # What it reported afterwards (interrupted, as a rule) is our doing.
        return Verdict(FailureKind.HANG, 0.9, evidence.hang.cause, evidence.hang.lines)
    if evidence.bare and (verdict := _bare_end(evidence)) is not None:
        return verdict
    if evidence.report is not None and not outlived(evidence, evidence.report):
        return from_report(evidence, evidence.report)
    if evidence.signal is not None and evidence.stop_requested:
        name = signal_name(evidence.signal)
        how = "it did not react in time and was killed" if evidence.killed_by_us else f"it ended by {name}"
        return Verdict(FailureKind.INTERRUPTED, 1.0, f"The trainer was asked to stop; {how}.")
    if evidence.unseen and not evidence.bare:
        return _from_unseen_end(evidence)
    if evidence.first_hand and not evidence.bare and evidence.exit_code in _KIND_OF_CODE:
        kind = observed(_KIND_OF_CODE[evidence.exit_code])
        return Verdict(
            kind, 0.8, f"The trainer ended with exit code {evidence.exit_code} ({kind.value}) and left no report."
        )
    return _from_signs(evidence)


_ON_ITS_WORD = (
    "The command ended with exit code 0. That is its own word: its planned steps are not known here, so nobody checked "
    "that all of them were done."
)


def _bare_end(evidence: Evidence) -> Verdict | None:
    """Asked to stop, a program that reports nothing has stopped, whatever its exit code is."""
    if evidence.report is None and evidence.stop_requested and evidence.exit_code is not None:
        cause = f"The command was asked to stop; it ended with exit code {evidence.exit_code}."
        return Verdict(FailureKind.INTERRUPTED, 1.0, cause)
    return None


_LOADING_PHASES = ("starting", "loading")


def _whose_gpu_memory(verdict: Verdict, evidence: Evidence) -> Verdict:
    """Full GPU memory is somebody else's doing when the sensors or the figures of the message say so."""
    if verdict.kind not in (FailureKind.CUDA_OOM, FailureKind.OOM_AT_LOAD, FailureKind.CUDA_OOM_FOREIGN):
        return verdict
    also = tuple(kind for kind in (verdict.kind, *verdict.also) if kind is not FailureKind.CUDA_OOM_FOREIGN)
    if holders := blamed(verdict.cause, evidence.snapshots):
        cause = f"{holders_text(holders)}, which the trainer lacked. {verdict.cause}"
        return replace(verdict, kind=FailureKind.CUDA_OOM_FOREIGN, cause=cause, also=also)
    report = evidence.report
    if report is None or verdict.kind is not FailureKind.CUDA_OOM:
        return verdict
    if is_foreign(read_gpu_memory(verdict.cause)):
        return replace(verdict, kind=FailureKind.CUDA_OOM_FOREIGN, also=also)
    if report.phase in _LOADING_PHASES:
        return replace(verdict, kind=FailureKind.OOM_AT_LOAD, also=(FailureKind.CUDA_OOM,))
    return verdict


_KIND_OF_CODE = {code: kind for kind, code in EXIT_CODES.items() if code != 0}


def _from_signs(evidence: Evidence) -> Verdict:
    if evidence.signal == signal.SIGKILL and evidence.oom_kills:
        return Verdict(
            FailureKind.HOST_OOM,
            0.95,
            "The kernel's out-of-memory killer ended the trainer (its control group's counter rose).",
        )
    found = weigh(
        evidence.stderr_tail,
        evidence.exit_code,
        evidence.signal,
        None if evidence.kernel_log is None else read_kernel_log(evidence.kernel_log),
        first_hand=evidence.first_hand,
    )
    may_be_well = found.ending.code == 0 or (found.ending.code is None and found.ending.signal is None)
    if may_be_well and (verdict := _ended_well(evidence, found)):
        return verdict
    if found.best is None:
        return _nothing_tells(found)
    return Verdict(
        found.best.kind,
        _confidence(found.best, found),
        _told(found.best),
        _lines(found.best, found),
        _also(found),
        summary=True,
    )


def _from_unseen_end(evidence: Evidence) -> Verdict:
    """Neither a report nor a status: what the log and the kernel tell, trusted less, or nothing but the silence.

    A Python program that fails by itself leaves a report or at least a traceback, so silence speaks for SIGKILL.
    """
    if evidence.stop_requested:
        return Verdict(FailureKind.INTERRUPTED, 0.7, "The trainer was asked to stop; how it ended was not seen.")
    if evidence.rebooted:
        cause = "The machine went down and took the trainer with it; it has been started anew since."
        return Verdict(FailureKind.KILLED, 0.8, cause)
    if evidence.oom_kills:
        return Verdict(
            FailureKind.HOST_OOM, 0.7, "The kernel killed a process of the trainer's control group for want of memory."
        )
    kernel = None if evidence.kernel_log is None else read_kernel_log(evidence.kernel_log)
    found = weigh(evidence.stderr_tail, None, None, kernel, first_hand=True)
    if found.best is not None and found.best.score >= _TELLS_ENOUGH:
        confidence = min(0.7, _confidence(found.best, found))
        return Verdict(
            found.best.kind, confidence, _told(found.best), _lines(found.best, found), _also(found), summary=True
        )
    cause = "The trainer ended without a report, and how it ended was not seen; that is what SIGKILL looks like."
    return Verdict(FailureKind.KILLED, 0.4, cause, found.last_lines, (FailureKind.NATIVE_CRASH, FailureKind.HOST_OOM))


def _ended_well(evidence: Evidence, found: Weighed) -> Verdict | None:
    """Completed or completed early; None when an error ended the program or nothing tells how it ended."""
    progress = found.progress
    enough = 0.3 if found.ending.code is None else 0.47  # helpers may die loudly while a good program leaves
    last_error = (
        found.best if found.best and found.best.score >= enough and found.best.index > progress.finished else None
    )
    if progress.short >= 0 and not (last_error and last_error.index > progress.short):
        return Verdict(
            FailureKind.COMPLETED_EARLY, 0.9, FACTS[FailureKind.COMPLETED_EARLY].summary, found.last_lines, _also(found)
        )
    if last_error is not None:
        return None
    behind = 0 < progress.done < progress.total * 0.98 and not progress.stopped_early
    if progress.nothing_done or (behind and progress.finished < 0 and found.ending.code == 0):
        cause = (
            f"It ended after {progress.done} of {progress.total} steps."
            if behind
            else "It ended without a single step."
        )
        return Verdict(FailureKind.COMPLETED_EARLY, 0.85, cause, found.last_lines, (FailureKind.COMPLETED,))
    if found.ending.code == 0 and evidence.bare:
        beat = evidence.heartbeat
        if beat is not None and beat.step < beat.planned_steps:
            cause = f"The command ended with exit code 0 after {beat.step} of {beat.planned_steps} planned steps."
            return Verdict(FailureKind.COMPLETED_EARLY, 0.9, cause, found.last_lines)
        return Verdict(FailureKind.COMPLETED, 0.6, _ON_ITS_WORD)
    if found.ending.code == 0 and evidence.first_hand:
        return Verdict(
            FailureKind.COMPLETED_EARLY, 0.9, "The trainer ended with exit code 0 but left no report that it completed."
        )
    if progress.finished >= 0 or (found.ending.code == 0 and progress.total and progress.done == progress.total):
        return Verdict(
            FailureKind.COMPLETED, 0.9, "The log says that the work was finished.", found.last_lines, _also(found)
        )
    if found.ending.code == 0:
        return Verdict(
            FailureKind.COMPLETED, 0.5, "It ended with exit code 0; the log shows no error and no unfinished work.",
            found.last_lines, (FailureKind.COMPLETED_EARLY,),
        )  # fmt: skip
    return None


def _nothing_tells(found: Weighed) -> Verdict:
    ending = found.ending
    if ending.signal is not None:
        return Verdict(
            FailureKind.UNKNOWN,
            0.5,
            f"The trainer was ended by {signal_name(ending.signal)}.",
            found.last_lines,
            _also(found),
        )
    how = (
        f"The trainer ended with exit code {ending.code} and left no report."
        if ending.code is not None
        else "The log does not tell."
    )
    return Verdict(FailureKind.UNKNOWN, 0.3, how, found.last_lines, _also(found))


def _told(best: Candidate) -> str:
    return best.cause.strip()[:CAUSE_CHARACTERS]


def _lines(best: Candidate, found: Weighed) -> tuple[str, ...]:
    """What speaks for the best candidate and, before it, for the runners-up."""
    lines: list[str] = []
    for entry in (*reversed(found.others[:OTHERS]), best):
        lines += [line for line in entry.lines if line not in lines]
    return tuple(lines) or found.last_lines


def _confidence(best: Candidate, found: Weighed) -> float:
    """The score itself, lowered when another kind comes close."""
    rival = max((entry.score for entry in found.others), default=0.0)
    return min(0.95, max(best.score * (1.0 if rival < 0.8 * best.score else 0.85), 0.2))


_KIN: dict[FailureKind, tuple[FailureKind, ...]] = {
    FailureKind.CUDA_OOM_FOREIGN: (FailureKind.CUDA_OOM,),
    FailureKind.OOM_AT_LOAD: (FailureKind.CUDA_OOM,),
    FailureKind.KILLED: (FailureKind.HOST_OOM,),
    FailureKind.WORKER_KILLED: (FailureKind.HOST_OOM,),
    FailureKind.PROGRAM_ERROR: (FailureKind.CONFIG_ERROR, FailureKind.DATA_ERROR),
}
"""Kinds that only a figure or a word of the same message tells apart, or that may hide behind an untelling one."""


def _also(found: Weighed) -> tuple[FailureKind, ...]:
    best = found.best
    kinds = [entry.kind for entry in found.others if best is None or entry.score >= 0.3 * best.score]
    for kin in _KIN.get(best.kind, ()) if best else ():
        if kin not in kinds:
            kinds.append(kin)
    return tuple(kinds[:OTHERS])


def _last_lines(tail: str) -> tuple[str, ...]:
    lines = [line.rstrip() for line in tail.splitlines() if line.strip()]
    return tuple(line[:500] for line in lines[-EVIDENCE_LINES:])


def _place(evidence: Evidence) -> tuple[int, str]:
    beat = evidence.heartbeat
    report = evidence.report
    if (hang := evidence.hang) is not None and hang.phase:  # however far it came while it was being ended
        return max(hang.step, evidence.resumed_step), f"at step {hang.step} while {hang.phase.replace('_', ' ')}"
    step = max(report.step if report else 0, beat.step if beat else 0, evidence.resumed_step)
    phase = (report.phase if report else "") or (beat.phase.name.lower() if beat else "")
    if beat is None and report is None and evidence.bare:
        step = max(step, read_progress(read_lines(evidence.stderr_tail)).done)
        return step, f"at step {step} by its log" if step else "at a step that is not known"
    if beat is None and report is None:
        return step, "before its first heartbeat"
    return step, f"at step {step}" + (f" while {phase.replace('_', ' ')}" if phase else "")
