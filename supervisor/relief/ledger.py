"""The ledger of failures: what repeats, what progress earns, how many launches there are in all. Pure.

The bound. The first launch of a `mens-sup run` counts against ``max_attempts``, and every further one unless it
*gained*: unless it added verified optimiser steps, beyond everything verified before in its lineage, that are worth a
tenth of the planned ones (at least one step). At most ``max_attempts - 1`` launches are forgiven in this way, so one
call never makes more than ``2 * max_attempts - 1`` launches whatever happens, and one attempt allowed is one launch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from supervisor.diagnosis.values import Diagnosis
from supervisor.jobs import Relief
from supervisor.state import Failure, ReliefTaken

GAIN_SHARE = 10
"""One part in so many of the planned steps is progress that gives an attempt back."""
SAME_CAUSE_LIMIT = 3
"""So many failures of one root cause without a newly verified step, at whatever steps, are one too many."""


def place(fingerprint: str, step: int) -> str:
    """The key of the ledger by root cause and step."""
    return f"{fingerprint}@{step}"


def cause_of(answers: str) -> str:
    """The root cause in a key made by :func:`place`."""
    return answers.rpartition("@")[0]


def most_launches(max_attempts: int) -> int:
    """The bound on launches of one `mens-sup run`."""
    return 2 * max_attempts - 1


def worth_an_attempt(planned_steps: int) -> float:
    """Newly verified optimiser steps that give an attempt back; no number of them while the plan is unknown."""
    return max(1, -(-planned_steps // GAIN_SHARE)) if planned_steps > 0 else math.inf


def gains(failures: Sequence[Failure]) -> list[int]:
    """For each failure, the optimiser steps that its attempt newly verified in its lineage.

    What the next attempt could resume from counts as verified: a snapshot in memory may become a checkpoint only then.
    """
    highest: dict[int, int] = {}
    found = []
    for index, failure in enumerate(failures):
        before = max(highest.get(failure.lineage, 0), failure.resumed_step or 0)
        after = max(failure.verified_step, before)
        following = failures[index + 1] if index + 1 < len(failures) else failure
        if following.lineage == failure.lineage:
            after = max(after, following.resumed_step or 0)
        found.append(after - before)
        highest[failure.lineage] = after
    return found


def forgiven(failures: Sequence[Failure], first_attempt: int, max_attempts: int) -> int:
    """How many attempts after ``first_attempt`` do not count because of what they gained since the failure before."""
    attempts = {
        failure.attempt
        for failure, gain in zip(failures, gains(failures), strict=True)
        if failure.attempt > first_attempt and gain >= worth_an_attempt(failure.planned_steps)
    }
    return min(len(attempts), max_attempts - 1)


def repeats(now: Failure, before: Sequence[Failure], relief: Sequence[ReliefTaken]) -> str | None:
    """Why trying again as it was would be a mere repetition, a sentence; None when it would not.

    ``before``: earlier failures of this `mens-sup run`. A failure that relief has answered since is another matter.
    """
    unanswered = [
        failure
        for failure in before
        if failure.lineage == now.lineage
        and failure.fingerprint == now.fingerprint
        and not any(failure.attempt < entry.attempt <= now.attempt and not entry.in_vain for entry in relief)
    ]
    same_place = [failure for failure in unanswered if failure.step == now.step]
    if same_place and before and same_place[-1] is before[-1]:
        return "The same thing happened at the same step twice in a row, so it is deterministic."
    if same_place:
        return (
            f"The same thing happened at the same step in attempt {same_place[-1].attempt} already and nothing was "
            "changed since, so it is deterministic."
        )
    futile = [failure for failure in unanswered if _reached(failure) >= _reached(now)]
    if len(futile) >= SAME_CAUSE_LIMIT - 1:
        return (
            f"The same root cause has now ended {len(futile) + 1} attempts without one newly verified step, so another "
            "attempt would end so as well."
        )
    return None


def _reached(failure: Failure) -> int:
    return max(failure.verified_step, failure.resumed_step or 0)


def used_before(relief: Relief, taken: Sequence[ReliefTaken]) -> bool:
    """Whether this very relief, change by change, was taken already: then it did not help."""
    patches = {patch.key: patch.new for patch in relief.patches}
    return any(entry.rung == relief.rung and entry.patches == patches for entry in taken)


def waited_for(found: Diagnosis, taken: Sequence[ReliefTaken], rungs: Collection[str], first_attempt: int) -> bool:
    """Whether waiting was tried for this failure: at this very place, or in vain for the same root cause."""
    return any(
        entry.rung in rungs
        and entry.attempt >= first_attempt
        and (
            entry.answers == place(found.fingerprint, found.step)
            or (entry.in_vain and cause_of(entry.answers) == found.fingerprint)
        )
        for entry in taken
    )
