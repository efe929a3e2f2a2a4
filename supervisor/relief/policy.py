"""What to do after an attempt has ended. Pure: values in, one decision out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from supervisor.config_sections import TRIM_RETENTION, WAIT_FOR_FOREIGN_VRAM
from supervisor.diagnosis.kinds import ADVICE, MEMORY_KINDS, NOT_RETRYABLE, FailureKind
from supervisor.diagnosis.values import Diagnosis
from supervisor.jobs import Relief, Rung
from supervisor.relief.ladder import describe_ladder, helps_with, next_relief, offered
from supervisor.relief.ledger import forgiven, repeats, used_before, waited_for
from supervisor.state import Failure, Outcome, ReliefTaken


@dataclass(frozen=True)
class PolicyInput:
    """Everything that the decision depends on.

    ``launches``: attempts launched by this `mens-sup run`, the ended one included. ``failures`` and
    ``relief``: earlier ones of the run, without the present failure; ``first_attempt`` is the number
    of this `mens-sup run`'s first attempt, older failures are only history. ``trim``: what trimming
    retention would do now, None when it frees nothing. ``room``: free and needed space, for people. ``has_room``:
    whether that is enough by now.
    ``resumed_step``: the step of the checkpoint that the attempt resumed from, None for step 0.
    ``older_good``: whether there is a verified checkpoint before that one. ``verified_step``: the newest verified
    checkpoint now, 0 without one. ``foreign``: who else holds GPU memory, for people; None when that cannot be watched.
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
    verified_step: int = 0
    planned_steps: int = 0
    has_room: bool = False
    foreign: str | None = None
    foreign_wait_seconds: float = 0.0


@dataclass(frozen=True)
class Relaunch:
    """Try again from the newest verified checkpoint, with relief or unchanged, after a pause."""

    relief: Relief | None
    wait_seconds: float
    reason: str


@dataclass(frozen=True)
class WaitForGpu:
    """Wait until ``holders`` give GPU memory back, ``seconds`` at most; then decide anew if they did not."""

    holders: str
    seconds: float
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


_NOTHING_TO_WAIT_FOR = frozenset(
    {
        FailureKind.KILLED,
        FailureKind.INTERRUPTED,
        FailureKind.NATIVE_CRASH,
        FailureKind.WORKER_KILLED,
        FailureKind.HANG,
        FailureKind.PROGRAM_ERROR,
        FailureKind.COMPLETED_EARLY,
        FailureKind.UNKNOWN,
    }
)
"""Nobody and nothing outside the program has to recover before it can be tried again."""


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


def decide(given: PolicyInput) -> Decision | WaitForGpu:
    """One decision. Every chain of decisions ends: each Relaunch and StepBack costs a launch, and those are capped (see
    relief/ledger.py); a WaitForGpu is decided at most once for the same failure.
    """
    kind = given.diagnosis.kind
    if kind is FailureKind.COMPLETED:
        return Stop(Outcome.COMPLETED, given.diagnosis.explanation)
    if given.stop_requested:
        return Stop(Outcome.STOPPED, _stopped(given))
    own = _next(given, lambda relief: kind.value in relief.helps)
    if kind in _STOP_AT_ONCE and own is None:
        outcome = Outcome.FAILED_CONFIG if kind is FailureKind.CONFIG_ERROR else Outcome.GAVE_UP
        return Stop(outcome, give_up(given, "Trying again would meet the same thing."))
    if given.launches >= given.max_attempts + _forgiven(given):
        return Stop(Outcome.GAVE_UP, give_up(given, _all_used(given)))
    if given.strict_order and kind is not FailureKind.INTERRUPTED:
        decision = _literal(given)
        if decision is not None:
            return decision
    if kind is FailureKind.CUDA_OOM_FOREIGN:
        return _foreign(given)
    if kind in MEMORY_KINDS or kind is FailureKind.OOM_AT_LOAD:
        return _memory(given)
    if kind is FailureKind.DISK_FULL:
        return _disk(given)
    if own is not None:
        return _relieved(given, own)
    if kind is FailureKind.CHECKPOINT_CORRUPT and given.resumed_step is not None:
        return StepBack(given.backoff_seconds, "the trainer could not load it")
    if given.older_good and _checkpoint_kills(given):
        fault = f"the trainer failed twice in a row when it resumed from it, without a step beyond it ({kind.value})"
        return StepBack(given.backoff_seconds, fault)
    return _unchanged(given)


def _next(given: PolicyInput, wanted: Callable[[Relief], bool]) -> Relief | None:
    """The next rung that is wanted and not, change by change, one that was taken before."""
    return next_relief(
        given.ladder,
        given.rungs,
        given.document,
        given.facts,
        given.trim,
        lambda relief: wanted(relief) and not used_before(relief, given.relief),
    )


def _relieved(given: PolicyInput, relief: Relief) -> Relaunch:
    return Relaunch(relief, given.backoff_seconds, f"{given.diagnosis.kind.value}: {relief.rung}")


def _literal(given: PolicyInput) -> Decision | WaitForGpu | None:
    """Strict order: the first rung with anything to give, whatever the failure."""
    for name in given.ladder:
        if name == WAIT_FOR_FOREIGN_VRAM and _can_wait(given):
            return _wait(given)
        one = replace(given, ladder=(name,))
        if (relief := _next(one, lambda _: True)) is not None:
            reason = f"{given.diagnosis.kind.value}: {relief.rung}, next in strict order"
            return Relaunch(relief, given.backoff_seconds, reason)
    return None


def _memory(given: PolicyInput) -> Decision:
    kind = given.diagnosis.kind
    relief = _next(given, lambda relief: helps_with(relief, kind))
    if kind is FailureKind.HOST_OOM and not (relief and relief.lossless):
        # Main memory is shared with everybody on the machine: before anything is given up, see whether it was them.
        decision = _unchanged(given)
        if isinstance(decision, Relaunch):
            return decision
    if relief is None:
        return Stop(Outcome.GAVE_UP, give_up(given, "No rung of the ladder of relief is left that saves memory."))
    return _relieved(given, relief)


def _foreign(given: PolicyInput) -> Decision | WaitForGpu:
    """Wait for who holds the card; then what loses nothing, so that the rest of the card suffices."""
    if _can_wait(given):
        return _wait(given)
    waits = WAIT_FOR_FOREIGN_VRAM in given.ladder
    if waits and given.foreign is None and repeats(_now(given), _recent(given), given.relief) is None:
        return _unchanged(given)
    # Who takes waiting out of the ladder wants the run to make do with what is left of the card.
    relief = _next(given, lambda relief: _saves_gpu(relief) and (relief.lossless or not waits))
    if relief is not None:
        return _relieved(given, relief)
    why = "No rung of the ladder of relief is left that saves memory without degrading the run." if waits else ""
    return Stop(Outcome.GAVE_UP, give_up(given, why or "No rung of the ladder of relief is left that saves memory."))


def _saves_gpu(relief: Relief) -> bool:
    return helps_with(relief, FailureKind.CUDA_OOM) or FailureKind.CUDA_OOM_FOREIGN.value in relief.helps


def _can_wait(given: PolicyInput) -> bool:
    return (
        given.diagnosis.kind is FailureKind.CUDA_OOM_FOREIGN
        and WAIT_FOR_FOREIGN_VRAM in given.ladder
        and given.foreign is not None
        and given.foreign_wait_seconds > 0
        and not waited_for(given.diagnosis, given.relief, (WAIT_FOR_FOREIGN_VRAM,), given.first_attempt)
    )


def _wait(given: PolicyInput) -> WaitForGpu:
    who = given.foreign or "somebody else holds the card"
    return WaitForGpu(who, given.foreign_wait_seconds, f"{given.diagnosis.kind.value}: {WAIT_FOR_FOREIGN_VRAM}")


def _disk(given: PolicyInput) -> Decision:
    relief = _next(given, lambda relief: helps_with(relief, FailureKind.DISK_FULL))
    if relief is not None:
        return _relieved(given, relief)
    if given.has_room and repeats(_now(given), _recent(given), given.relief) is None:
        return Relaunch(None, backoff(given), "disk_full: there is room again, trying again unchanged")
    why = "Trimming checkpoint retention would free nothing more."
    if TRIM_RETENTION not in given.ladder:
        why = f"{TRIM_RETENTION} is not in relief.ladder."
    return Stop(Outcome.GAVE_UP, give_up(given, why))


def _unchanged(given: PolicyInput) -> Decision:
    kind = given.diagnosis.kind
    if kind not in _ONLY_CAPPED and (why := repeats(_now(given), _recent(given), given.relief)):
        return Stop(Outcome.GAVE_UP, give_up(given, why))
    return Relaunch(None, backoff(given), f"{kind.value}: trying again unchanged")


def _now(given: PolicyInput) -> Failure:
    """The present failure as the ledger will have it."""
    found = given.diagnosis
    return Failure(
        attempt=given.attempt,
        kind=found.kind.value,
        step=found.step,
        message=found.explanation,
        fingerprint=found.fingerprint,
        time=0.0,
        lineage=given.lineage,
        resumed_step=given.resumed_step,
        verified_step=given.verified_step,
        planned_steps=given.planned_steps,
    )


def _recent(given: PolicyInput) -> list[Failure]:
    """The earlier failures of this `mens-sup run`."""
    return [failure for failure in given.failures if failure.attempt >= given.first_attempt]


def _forgiven(given: PolicyInput) -> int:
    return forgiven((*given.failures, _now(given)), given.first_attempt, given.max_attempts)


def _all_used(given: PolicyInput) -> str:
    text = f"All {given.max_attempts} attempts allowed are used"
    if number := _forgiven(given):
        text += f"; {number} more did not count, because they got at least a tenth of the plan further"
    return f"{text}."


def _checkpoint_kills(given: PolicyInput) -> bool:
    """Did this attempt and the one before it both resume from the same checkpoint and fail before the next step?"""
    recent = _recent(given)
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
    """Seconds to wait: doubles with every failure in a row that got no further than the one before.

    None at all after the first one of a row when its attempt had got ahead and nothing outside has to recover.
    """
    row = 0
    step = given.diagnosis.step
    for failure in reversed(given.failures):
        if failure.attempt < given.first_attempt or failure.step < step:
            break
        step = failure.step
        row += 1
    ahead = given.diagnosis.step > (given.resumed_step or 0)
    if row == 0 and ahead and given.diagnosis.kind in _NOTHING_TO_WAIT_FOR:
        return 0.0
    return float(min(given.backoff_seconds * 2.0 ** min(row, 30), given.backoff_max_seconds))


def give_up(given: PolicyInput, why: str) -> str:
    """One paragraph: what failed, where, the evidence, what was tried, what to do now."""
    found = given.diagnosis
    cause = _sentence(found.explanation)
    lines = [" ".join(line.split()) for line in found.evidence]
    new = [line for line in lines if line and line not in cause and cause.rstrip(".") not in line]
    offers = _offers(given)
    ladder = describe_ladder(given.ladder, offers, given.relief, _useful(given, offers))
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


def _offers(given: PolicyInput) -> dict[str, Relief | None]:
    """What each rung of the ladder would give now."""
    offers: dict[str, Relief | None] = {}
    for name in given.ladder:
        relief = offered(name, given.rungs, given.document, given.facts, given.trim)
        if name == WAIT_FOR_FOREIGN_VRAM and _can_wait(given):
            relief = Relief(name, (), "", lossless=True)
        offers[name] = relief if relief is None or not used_before(relief, given.relief) else None
    return offers


def _useful(given: PolicyInput, offers: Mapping[str, Relief | None]) -> frozenset[str]:
    """The rungs that help with this failure."""
    kind = given.diagnosis.kind
    if kind in _STOP_AT_ONCE:
        return frozenset()
    if given.strict_order:
        return frozenset(given.ladder)
    known = {name: offers.get(name) or Relief(name, (), "", lossless=True) for name in given.ladder}
    useful = {name for name, relief in known.items() if helps_with(relief, kind)}
    if kind is FailureKind.CUDA_OOM_FOREIGN:
        useful |= {name for name, relief in known.items() if _saves_gpu(relief) and relief.lossless}
    return frozenset(useful)


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
