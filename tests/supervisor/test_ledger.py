"""The ledger of failures: nothing is repeated as it was, nothing goes on for ever, progress gives attempts back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_kind import SCRIPTED

from supervisor.config_sections import CustomRung
from supervisor.diagnosis.kinds import NOT_RETRYABLE, FailureKind
from supervisor.diagnosis.values import Diagnosis, fingerprint
from supervisor.jobs import Patch, Relief
from supervisor.relief.custom import own_rungs
from supervisor.relief.effective import effective_document, taken
from supervisor.relief.ledger import (
    forgiven,
    gains,
    most_launches,
    place,
    repeats,
    worth_an_attempt,
)
from supervisor.relief.policy import PolicyInput, Relaunch, StepBack, Stop, WaitForGpu, decide
from supervisor.state import Failure, Outcome, ReliefTaken

PLANNED, SAVE = 40, 2
LADDER = (
    "trim_retention", "wait_for_foreign_vram", "halve_micro_batch", "mine", "shorten_sequence", "switch_model",
)  # fmt: skip
MINE = CustomRung(name="mine", set={"train.learning_rate": 1e-5}, helps=("nan_loss", "hang"), price="slower")
DOCUMENT: dict[str, Any] = {
    "train": {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "max_length": 2048, "learning_rate": 1e-4,
    },
    "model": {"base": "big", "fallback": "small"},
    "relief": {"seq_len_rungs": [2048, 1024]},
    "checkpoint": {"keep": 3},
}  # fmt: skip
FROM_OUTSIDE = {
    FailureKind.KILLED, FailureKind.INTERRUPTED, FailureKind.PREEMPTED, FailureKind.CUDA_OOM_FOREIGN,
    FailureKind.NETWORK, FailureKind.PORT_IN_USE,
}  # fmt: skip
MISTAKES = NOT_RETRYABLE - {FailureKind.PROGRAM_ERROR, FailureKind.NAN_LOSS}


@dataclass(frozen=True)
class Mishap:
    """An attempt makes ``steps`` steps from where it resumed and dies of ``cause``."""

    kind: FailureKind
    cause: str
    steps: int
    freed: bool = True
    """Whether GPU memory that is waited for becomes free."""


@dataclass
class World:
    """A run around :func:`decide` without processes: what a loop would do with each decision."""

    cap: int
    strict: bool = False
    ladder: tuple[str, ...] = LADDER
    launches: int = 0
    lineage: int = 1
    verified: dict[int, list[int]] = field(default_factory=lambda: {1: []})
    failures: list[Failure] = field(default_factory=list)
    relief: list[ReliefTaken] = field(default_factory=list)
    unchanged: list[int] = field(default_factory=list)
    """Attempts after whose failure the next one started as it was."""
    waits: list[str] = field(default_factory=list)
    end: Stop | None = None

    def attempt(self, mishap: Mishap) -> None:
        self.launches += 1
        saved = self.verified[self.lineage]
        resumed = saved[-1] if saved else None
        step = min((resumed or 0) + mishap.steps, PLANNED - 1)
        saved += range((resumed or 0) + SAVE, step + 1, SAVE)
        found = Diagnosis(
            mishap.kind, 1.0, step, f"at step {step}", (), True, mishap.cause, fingerprint(mishap.kind, mishap.cause)
        )
        decision = decide(self.given(found, resumed, self.relief))
        if isinstance(decision, WaitForGpu):
            answers = place(found.fingerprint, step)
            self.waits.append(answers)
            entry = taken(
                Relief("wait_for_foreign_vram", (), "waited", lossless=True), self.launches + 1, found.kind.value,
                answers, in_vain=not mishap.freed,
            )  # fmt: skip
            self.relief.append(entry)
            if mishap.freed:
                decision = Relaunch(None, 0.0, "free")
            else:
                decision = decide(self.given(found, resumed, self.relief))
                assert not isinstance(decision, WaitForGpu)
        elif isinstance(decision, Relaunch) and decision.relief is None:
            self.unchanged.append(self.launches)
        self.failures.append(
            Failure(
                self.launches, found.kind.value, step, mishap.cause, found.fingerprint, 0.0, self.lineage, resumed,
                saved[-1] if saved else 0, PLANNED,
            )
        )  # fmt: skip
        if isinstance(decision, Stop):
            self.end = decision
        elif isinstance(decision, StepBack):
            saved.pop()
        elif decision.relief is not None:
            answers = place(found.fingerprint, step)
            self.relief.append(taken(decision.relief, self.launches + 1, found.kind.value, answers))
            if decision.relief.new_lineage:
                self.lineage += 1
                self.verified[self.lineage] = []

    def given(self, found: Diagnosis, resumed: int | None, relief: list[ReliefTaken]) -> PolicyInput:
        document = effective_document(DOCUMENT, {}, relief)
        saved = self.verified[self.lineage]
        trim = Relief("trim_retention", (Patch("checkpoint.keep", document["checkpoint"]["keep"], 1),), "frees", True)
        return PolicyInput(
            diagnosis=found,
            attempt=self.launches,
            first_attempt=1,
            launches=self.launches,
            max_attempts=self.cap,
            lineage=self.lineage,
            resumed_step=resumed,
            older_good=any(step < (resumed or 0) for step in saved),
            document=document,
            facts={},
            ladder=self.ladder,
            strict_order=self.strict,
            rungs={**SCRIPTED.rungs, **own_rungs([MINE], relief)},
            trim=trim if len(saved) > 1 else None,  # also when it was taken before: the policy has to notice
            failures=tuple(self.failures),
            relief=tuple(relief),
            backoff_seconds=0.0,
            backoff_max_seconds=0.0,
            verified_step=saved[-1] if saved else 0,
            planned_steps=PLANNED,
            foreign="somebody holds it" if found.kind is FailureKind.CUDA_OOM_FOREIGN else None,
            foreign_wait_seconds=60.0,
        )


mishaps = st.lists(
    st.builds(
        Mishap,
        st.sampled_from([kind for kind in FailureKind if kind is not FailureKind.COMPLETED]),
        st.sampled_from(["one", "two"]),
        st.integers(0, 5),
        st.booleans(),
    ),
    min_size=40,
    max_size=40,
)
worlds = st.builds(World, st.integers(1, 12), st.booleans(), st.permutations(LADDER).map(tuple))


# proves SUP-2, SUP-7: whatever fails in whatever order, there is an end; never a launch more than the stated bound, and
# none more than the cap but for those that progress gave back; never the same relief, or the same wait, for the same
# failure; never a repetition as it was; a user's mistake gets no relief
@given(world=worlds, script=mishaps)
def test_every_run_of_decisions_ends_within_its_bound(world: World, script: list[Mishap]) -> None:
    for mishap in script:
        world.attempt(mishap)
        if world.end is not None:
            break
    assert world.end is not None
    assert world.end.outcome in (Outcome.GAVE_UP, Outcome.FAILED_CONFIG)
    assert world.launches <= most_launches(world.cap)
    assert world.launches <= world.cap + forgiven(world.failures, 1, world.cap)
    reliefs = [(entry.rung, str(sorted(entry.patches.items()))) for entry in world.relief if entry.patches]
    assert len(reliefs) == len(set(reliefs))
    assert len(world.waits) == len(set(world.waits))
    for attempt in world.unchanged:
        now, before = world.failures[attempt - 1], world.failures[: attempt - 1]
        if FailureKind(now.kind) not in FROM_OUTSIDE:
            earlier = [each for each in before if not any(r.attempt > each.attempt for r in world.relief
                                                          if r.attempt <= attempt)]  # fmt: skip
            assert (now.fingerprint, now.step, now.lineage) not in {
                (each.fingerprint, each.step, each.lineage) for each in earlier
            }
    mistaken = [failure for failure in world.failures if failure.kind in MISTAKES]
    assert mistaken in ([], [world.failures[-1]])
    assert not any(FailureKind(entry.kind) in MISTAKES for entry in world.relief)


# proves SUP-7: symptoms that alternate end before the cap, unless every attempt gets further
@given(
    first=st.sampled_from([FailureKind.PROGRAM_ERROR, FailureKind.NATIVE_CRASH, FailureKind.HANG]),
    second=st.sampled_from([FailureKind.UNKNOWN, FailureKind.COMPLETED_EARLY, FailureKind.GPU_LOST]),
    steps=st.integers(0, SAVE - 1),
)
def test_alternating_symptoms_end(first: FailureKind, second: FailureKind, steps: int) -> None:
    world = World(cap=50, ladder=("trim_retention",))
    while world.end is None:
        world.attempt(Mishap((first, second)[world.launches % 2], "boom", steps))
    assert world.launches == 3
    assert "deterministic" in world.end.explanation


# proves SUP-7: one root cause, at another step each time and without a step that lasts, is met three times
def test_the_same_cause_without_progress_ends() -> None:
    world = World(cap=50)
    for steps in (0, 1, 0):
        world.attempt(Mishap(FailureKind.NATIVE_CRASH, "boom", steps))
        if world.end:
            break
    assert world.end is not None and "deterministic" in world.end.explanation
    roaming = World(cap=50)
    for number, steps in enumerate((3, 1, 0)):
        roaming.verified[1] = [2]
        roaming.attempt(Mishap(FailureKind.NATIVE_CRASH, "boom", steps if number else 3))
    assert roaming.end is not None
    assert "ended 3 attempts without one newly verified step" in roaming.end.explanation


# proves SUP-7: progress gives attempts back, within the stated bound and not for nothing
@pytest.mark.parametrize(
    ("cap", "steps", "launches"),
    [
        (1, 30, 1),  # one attempt allowed is one launch, whatever it achieved
        (3, 4, 5),  # a tenth of 40 steps each time: 2 x 3 - 1
        (3, 3, 3),  # two verified steps are less than a tenth
        (3, 0, 3),
        (5, 4, 9),
    ],
)
def test_progress_gives_attempts_back(cap: int, steps: int, launches: int) -> None:
    world = World(cap=cap)
    while world.end is None:
        world.attempt(Mishap(FailureKind.KILLED, "boom", steps))
    assert world.launches == launches
    assert f"All {cap} attempts allowed are used" in world.end.explanation
    assert ("more did not count" in world.end.explanation) is (launches > cap)


def failure(attempt: int, verified: int, resumed: int | None = None, lineage: int = 1, planned: int = 40) -> Failure:
    return Failure(attempt, "killed", verified + 1, "x", "killed:x", 0.0, lineage, resumed, verified, planned)


def test_gains_count_each_verified_step_once() -> None:
    listed = [failure(1, 10), failure(2, 10, 10), failure(3, 8, 6), failure(4, 12, 8), failure(5, 4, lineage=2)]
    assert gains(listed) == [10, 0, 0, 2, 4]
    # A snapshot in memory became a checkpoint after the failure was entered: the next attempt resumed from it.
    assert gains([failure(1, 0), failure(2, 0, 7)]) == [7, 0]
    assert forgiven(listed, 0, 9) == 2
    assert forgiven(listed, 0, 2) == 1
    assert forgiven(listed, 1, 9) == 1, "the first attempt of a call always counts"
    assert forgiven(listed, 5, 9) == 0
    assert forgiven([failure(1, 0, planned=0), failure(2, 30, planned=0)], 1, 5) == 0
    assert [worth_an_attempt(steps) for steps in (1, 10, 11, 40)] == [1, 1, 2, 4]


def test_what_relief_has_answered_is_no_repetition_unless_it_was_in_vain() -> None:
    first, again = failure(1, 0), failure(2, 0)
    wait = Relief("wait_for_foreign_vram", (), "waited", lossless=True)
    assert repeats(again, [first], ()) is not None
    assert repeats(again, [first], [taken(wait, 2, "killed")]) is None
    assert repeats(again, [first], [taken(wait, 2, "killed", in_vain=True)]) is not None
    assert repeats(again, [first], [taken(wait, 1, "killed")]) is not None
