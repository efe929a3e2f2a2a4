"""Whether a task set can be judged at all, found out before a token is spent: right answers must be accepted, and an
answer that says nothing must not."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rft.judging import PAUSES
from rft.tasks.task import Task
from rft.verifiers.answers import EMPTY_ANSWERS
from rft.verifiers.in_order import in_order
from rft.verifiers.verdict import Outcome, Verdict
from rft.verifiers.verifier import Verifier

SHOWN = 5
"""Tasks of each kind that a refusal names."""

VerifierOf = Callable[[Task], Verifier]


class State(StrEnum):
    """VALID: the gold answer is accepted and empty ones are not. UNCHECKED: there is no gold answer, and empty ones are
    not accepted. INVALID: the gold answer is rejected, or an empty one accepted, or the task cannot be judged. TIMEOUT:
    the gold answer takes too long. ERROR: the judge failed, which says nothing of the task."""

    VALID = "valid"
    UNCHECKED = "unchecked"
    INVALID = "invalid"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True)
class TaskCheck:
    """What was found out about a task: ``problem`` in a few words, ``diagnostic`` of the verdict that shows it."""

    task: Task
    state: State
    problem: str = ""
    diagnostic: str = ""


@dataclass
class GoldReport:
    """Counts of all tasks by state, and the first ones that are not well."""

    counts: Counter[State] = field(default_factory=Counter)
    bad: dict[State, list[TaskCheck]] = field(default_factory=dict)

    def add(self, check: TaskCheck) -> None:
        self.counts[check.state] += 1
        shown = self.bad.setdefault(check.state, [])
        if check.state not in (State.VALID, State.UNCHECKED) and len(shown) < SHOWN:
            shown.append(check)

    @property
    def good(self) -> bool:
        return not any(self.counts[state] for state in (State.INVALID, State.TIMEOUT, State.ERROR))

    def refusal(self) -> str | None:
        """One paragraph for each kind of trouble; None when the tasks can be sampled from."""
        paragraphs = []
        for state, what, remedy in _TROUBLES:
            if count := self.counts[state]:
                named = "; ".join(_named(check) for check in self.bad[state])
                more = f"; and {count - SHOWN} more" if count > SHOWN else ""
                paragraphs.append(f"{count} of {self.counts.total()} tasks {what}: {named}{more}. {remedy}")
        return "\n".join(paragraphs) or None


_TROUBLES = (
    (
        State.INVALID,
        "cannot be judged rightly",
        "Correct or remove them: what is accepted there proves nothing, or nothing ever will be accepted.",
    ),
    (State.TIMEOUT, "take longer than the verifier allows with their own gold answer", "Raise its time limit."),
    (State.ERROR, "could not be judged because the judge itself failed", "This says nothing of the tasks; try again."),
)


def check_gold(
    tasks: Iterable[Task], verifier_of: VerifierOf, workers: int, beat: Callable[[], None] = lambda: None
) -> GoldReport:
    """Judge the gold answer and the empty answers of every task, ``workers`` at a time, by verifiers that are open."""
    report = GoldReport()
    for check in task_checks(tasks, verifier_of, workers):
        report.add(check)
        beat()
    return report


def task_checks(tasks: Iterable[Task], verifier_of: VerifierOf, workers: int) -> Iterator[TaskCheck]:
    """One check per task, in order; streams."""
    work = ((task, verifier_of(task)) for task in tasks)
    for _, check in in_order(work, lambda pair: check_task(*pair), workers):
        yield check


def check_task(task: Task, verifier: Verifier) -> TaskCheck:
    if problem := verifier.problem(task):
        return TaskCheck(task, State.INVALID, problem)
    for answer in empty_answers(verifier):
        verdict = patient(verifier, task, answer)
        if verdict.outcome is Outcome.ACCEPTED:
            shown = f"the answer {answer[:80]!r}, which must not pass" if answer else "an empty answer"
            return TaskCheck(task, State.INVALID, f"the verifier {verifier.name} accepts {shown}")
        if verdict.outcome is Outcome.ERROR:
            return TaskCheck(task, State.ERROR, verdict.reason, verdict.diagnostic)
    if task.gold is None:
        return TaskCheck(task, State.UNCHECKED)
    verdict = patient(verifier, task, task.gold)
    state = {
        Outcome.ACCEPTED: State.VALID,
        Outcome.REJECTED: State.INVALID,
        Outcome.TIMEOUT: State.TIMEOUT,
        Outcome.ERROR: State.ERROR,
    }[verdict.outcome]
    if state is State.VALID:
        return TaskCheck(task, state)
    return TaskCheck(task, state, f"its gold answer: {verdict.reason}", verdict.diagnostic)


def empty_answers(verifier: Verifier) -> Sequence[str]:
    inner = getattr(verifier, "inner", verifier)  # a cache around it
    found: Sequence[str] = getattr(inner, "empty_answers", EMPTY_ANSWERS)
    return found


def patient(verifier: Verifier, task: Task, completion: str) -> Verdict:
    """A verdict, asked for again after a pause while the judge itself fails."""
    verdict = verifier.judge(task, completion)
    for pause in PAUSES:
        if verdict.outcome is not Outcome.ERROR:
            break
        time.sleep(pause)
        verdict = verifier.judge(task, completion)
    return verdict


def _named(check: TaskCheck) -> str:
    place = f" ({check.task.file}:{check.task.line})" if check.task.file else ""
    lines = check.diagnostic.strip().splitlines()
    detail = f" ({lines[-1].strip()[:160]})" if lines else ""
    return f"{check.task.id}{place}: {check.problem.rstrip('.')}{detail}"
