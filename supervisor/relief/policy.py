"""What to do after an attempt has ended. Pure: values in, one decision out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.config_sections import TRIM_RETENTION
from supervisor.diagnosis.diagnose import Diagnosis
from supervisor.diagnosis.kinds import ADVICE, FACTS, MEMORY_KINDS, NOT_RETRYABLE, FailureKind
from supervisor.jobs import Relief, Rung
from supervisor.relief.ladder import describe_ladder, next_literal_relief, next_memory_relief
from supervisor.state import Failure, Outcome, ReliefTaken


@dataclass(frozen=True)
class PolicyInput:
    """Everything that the decision depends on.

    ``launches``: attempts launched by this `mens-sup run`, the ended one included. ``failures`` and
    ``relief``: earlier ones of the run, without the present failure; ``first_attempt`` is the number
    of this `mens-sup run`'s first attempt, older failures are only history. ``trim``: what trimming
    retention would do now, None when it frees nothing. ``room``: free and needed space, for people.
    ``resumed_step``: the step of the checkpoint that the attempt resumed from, None for step 0.
    ``older_good``: whether there is a verified checkpoint before that one.
    """

    diagnosis: Diagnosis
    attempt: int
    first_attempt: int
    launches: int
    max_attempts: int
    lineage: int
    resumed_step: int | None
    older_good: bool
    document: Mapping[str, Any]
    facts: Mapping[str, Any]
    ladder: tuple[str, ...]
    strict_order: bool
    rungs: Mapping[str, Rung]
    trim: Relief | None
    failures: tuple[Failure, ...]
    relief: tuple[ReliefTaken, ...]
    backoff_seconds: float
    backoff_max_seconds: float
    room: str = ""
    stop_requested: bool = False


@dataclass(frozen=True)
class Relaunch:
    """Try again from the newest verified checkpoint, with relief or unchanged, after a pause."""

    relief: Relief | None
    wait_seconds: float
    reason: str


@dataclass(frozen=True)
class StepBack:
    """Distrust the newest checkpoint for ``fault``, then try again from the one before it."""

    wait_seconds: float
    fault: str

    @property
    def reason(self) -> str:
        return f"the newest checkpoint is not trusted any more: {self.fault}"


@dataclass(frozen=True)
class Stop:
    outcome: Outcome
    explanation: str


Decision = Relaunch | StepBack | Stop

_STOP_AT_ONCE = NOT_RETRYABLE - {FailureKind.PROGRAM_ERROR}
"""An error in a program's code gets one more attempt: only the second at the same step proves that it's no accident."""

_ONLY_CAPPED = frozenset(
    {
        FailureKind.KILLED,
        FailureKind.INTERRUPTED,
        FailureKind.PREEMPTED,
        FailureKind.CUDA_OOM_FOREIGN,
        FailureKind.NETWORK,
        FailureKind.PORT_IN_USE,
    }
)
"""Caused from outside, so meeting one twice at the same step proves nothing about the trainer."""


_NOT_THE_CHECKPOINT = (
    NOT_RETRYABLE - {FailureKind.PROGRAM_ERROR}
    | _ONLY_CAPPED
    | MEMORY_KINDS
    | {
        FailureKind.OOM_AT_LOAD,
        FailureKind.DISK_FULL,
        FailureKind.SHM_FULL,
        FailureKind.TOO_MANY_FILES,
        FailureKind.FILESYSTEM_ERROR,
        FailureKind.GPU_LOST,
    }
)
"""Failures that name another cause: the user, somebody outside, the machine and its limits."""


def decide(given: PolicyInput) -> Decision:
    """One decision. Every chain of decisions ends: each Relaunch and StepBack costs a launch, and those are capped."""
    kind = given.diagnosis.kind
    if kind is FailureKind.COMPLETED:
        return Stop(Outcome.COMPLETED, given.diagnosis.explanation)
    if given.stop_requested:
        return Stop(Outcome.STOPPED, _stopped(given))
    if kind in _STOP_AT_ONCE:
        outcome = Outcome.FAILED_CONFIG if kind is FailureKind.CONFIG_ERROR else Outcome.GAVE_UP
        return Stop(outcome, give_up(given, "Trying again would meet the same thing."))
    if given.launches >= given.max_attempts:
        return Stop(Outcome.GAVE_UP, give_up(given, f"All {given.max_attempts} attempts allowed are used."))
    if given.strict_order and kind is not FailureKind.INTERRUPTED:
        relief = next_literal_relief(given.ladder, given.rungs, given.document, given.facts, given.trim)
        if relief is not None:
            return Relaunch(relief, given.backoff_seconds, f"{kind.value}: {relief.rung}, next in strict order")
    if kind in MEMORY_KINDS or kind is FailureKind.OOM_AT_LOAD:
        return _memory(given)
    if kind is FailureKind.DISK_FULL:
        return _disk(given)
    if kind is FailureKind.CHECKPOINT_CORRUPT and given.resumed_step is not None:
        return StepBack(given.backoff_seconds, "the trainer could not load it")
    if given.older_good and _checkpoint_kills(given):
        fault = f"the trainer failed twice in a row when it resumed from it, without a step beyond it ({kind.value})"
        return StepBack(given.backoff_seconds, fault)
    return _unchanged(given)


def _memory(given: PolicyInput) -> Decision:
    ladder = given.ladder
    if given.diagnosis.kind is FailureKind.OOM_AT_LOAD:  # what only makes a step smaller does not help there
        ladder = tuple(name for name in ladder if name in FACTS[FailureKind.OOM_AT_LOAD].helps)
    relief = next_memory_relief(ladder, given.rungs, given.document, given.facts)
    if relief is None:
        return Stop(Outcome.GAVE_UP, give_up(given, "No rung of the ladder of relief is left that saves memory."))
    return Relaunch(relief, given.backoff_seconds, f"{given.diagnosis.kind.value}: {relief.rung}")


def _disk(given: PolicyInput) -> Decision:
    if TRIM_RETENTION in given.ladder and given.trim is not None:
        return Relaunch(given.trim, given.backoff_seconds, f"disk_full: {TRIM_RETENTION}")
    why = "Trimming checkpoint retention would free nothing more."
    if TRIM_RETENTION not in given.ladder:
        why = f"{TRIM_RETENTION} is not in relief.ladder."
    return Stop(Outcome.GAVE_UP, give_up(given, why))


def _unchanged(given: PolicyInput) -> Decision:
    kind = given.diagnosis.kind
    if kind not in _ONLY_CAPPED and _repeats(given):
        return Stop(
            Outcome.GAVE_UP,
            give_up(given, "The same thing happened at the same step twice in a row, so it is deterministic."),
        )
    return Relaunch(None, backoff(given), f"{kind.value}: trying again unchanged")


def _repeats(given: PolicyInput) -> bool:
    """Is this the last failure once more: same root cause, same step, no relief in between?"""
    recent = [failure for failure in given.failures if failure.attempt >= given.first_attempt]
    if not recent:
        return False
    last = recent[-1]
    relieved = any(last.attempt < entry.attempt <= given.attempt for entry in given.relief)
    same = (last.fingerprint, last.step, last.lineage) == (
        given.diagnosis.fingerprint,
        given.diagnosis.step,
        given.lineage,
    )
    return same and not relieved


def _checkpoint_kills(given: PolicyInput) -> bool:
    """Did this attempt and the one before it both resume from the same checkpoint and fail before the next step?"""
    recent = [failure for failure in given.failures if failure.attempt >= given.first_attempt]
    if given.resumed_step is None or given.diagnosis.kind in _NOT_THE_CHECKPOINT or not recent:
        return False
    last = recent[-1]
    return (
        (last.resumed_step, last.lineage) == (given.resumed_step, given.lineage)
        and max(last.step, given.diagnosis.step) <= given.resumed_step
        and last.attempt == given.attempt - 1
        and last.kind not in _NOT_THE_CHECKPOINT
    )


def backoff(given: PolicyInput) -> float:
    """Seconds to wait: doubles with every failure in a row that got no further than the one before."""
    row = 0
    step = given.diagnosis.step
    for failure in reversed(given.failures):
        if failure.attempt < given.first_attempt or failure.step < step:
            break
        step = failure.step
        row += 1
    return float(min(given.backoff_seconds * 2.0 ** min(row, 30), given.backoff_max_seconds))


def give_up(given: PolicyInput, why: str) -> str:
    """One paragraph: what failed, where, the evidence, what was tried, what to do now."""
    found = given.diagnosis
    cause = _sentence(found.explanation)
    lines = [" ".join(line.split()) for line in found.evidence]
    new = [line for line in lines if line and line not in cause and cause.rstrip(".") not in line]
    ladder = describe_ladder(
        given.ladder, given.rungs, given.document, given.facts, given.trim, given.relief, _useful(given)
    )
    parts = (
        f"{found.kind.value} {found.where}, after {_count(given.launches, 'attempt')}.",
        cause,
        given.room,
        f"Evidence: {' | '.join(new[-3:])}." if new else "",
        why,
        # A mistake of the user's is not answered by relief; listing the rungs would only distract.
        ladder if given.relief or found.kind not in _STOP_AT_ONCE else "",
        f"What to do now: {ADVICE.get(found.kind, ADVICE[FailureKind.UNKNOWN])}",
    )
    return " ".join(part for part in parts if part)


def _useful(given: PolicyInput) -> frozenset[str]:
    """The rungs that help with this failure."""
    if given.diagnosis.kind in _STOP_AT_ONCE:
        return frozenset()
    if given.strict_order:
        return frozenset(given.ladder)
    if given.diagnosis.kind in MEMORY_KINDS:
        return frozenset(given.rungs)
    if given.diagnosis.kind is FailureKind.OOM_AT_LOAD:
        return frozenset(given.rungs) & frozenset(FACTS[FailureKind.OOM_AT_LOAD].helps)
    return frozenset({TRIM_RETENTION}) if given.diagnosis.kind is FailureKind.DISK_FULL else frozenset()


def _stopped(given: PolicyInput) -> str:
    found = given.diagnosis
    text = f"Stopped on request {found.where}."
    if found.kind is not FailureKind.INTERRUPTED:
        text += f" While stopping, the trainer failed: {found.kind.value}, {_sentence(found.explanation)}"
    return text


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if not text or text[-1] in ".!?" else f"{text}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
