"""How many samples a task gets. Pure.

Samples of a task are drawn in rounds: ``first_round``, then half as many as there are but at most an eighth of
``samples_per_task``, up to that. Whether there is a next round depends on the verdicts of the task's earlier rounds
and, for leaving it as hopeless, on how the first round of its source's first tasks went (the pilot); on nothing else.
So the samples that a job ends with do not depend on which verdict came first, nor on how often the job was killed.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rft.config import BudgetSection
from rft.store import REFUSED, State
from rft.verifiers.verdict import Outcome

PILOT_TASKS = 64
"""First tasks of a source whose first rounds say what to expect of its other tasks."""
MOST_LOST = 0.025
"""The share of a source's wanted answers that its tasks without any after so many samples may be expected to hold when
they are left. It keeps about 97 % of them also where most tasks are hard."""
BEYOND = 0.1
"""Of budget.hopeless_below: tasks below that are left whatever they hold, for it would take too many samples."""
MAX_TRIES = 9
"""Judge's failures on one sample after which it stays unscored."""

_ACCEPTED, _ERROR = Outcome.ACCEPTED.value, Outcome.ERROR.value
_MEANS = (0.002, 0.005, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
_STRENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_STRENGTH_SPREAD = 0.7
"""Strengths far from 1 (tasks solved always or never, tasks that are all alike) need evidence: two samples of a task
hardly tell how often tasks are solved now and then, and those are the ones to lose."""


class Why(enum.StrEnum):
    """Why a task gets no further sample, or what it waits for."""

    ENOUGH = "enough"
    HOPELESS = "hopeless"
    ALL = "all"
    REFUSED = "refused"
    ROUND = "round"
    PILOT = "pilot"


@dataclass(frozen=True)
class Need:
    """Samples 0 to ``samples`` - 1 of a task are wanted. ``why``: ROUND while some of them are missing or not judged,
    PILOT while the next round depends on the pilot, otherwise why the task is done."""

    samples: int
    why: Why

    @property
    def done(self) -> bool:
        return self.why not in (Why.ROUND, Why.PILOT)


class Prior:
    """What the pilot of a source says about its tasks' chances: a beta distribution whose parameters are unknown,
    weighed by the pilot on a grid of means and strengths."""

    def __init__(self, pilot: Mapping[tuple[int, int], int]) -> None:
        """``pilot``: how many tasks had ``(accepted, scored)``."""
        self._points = [(mean * strength, (1 - mean) * strength) for mean in _MEANS for strength in _STRENGTHS]
        self._weights = [
            math.fsum(tasks * _log_chance(a, b, *counts) for counts, tasks in sorted(pilot.items()))
            - math.log(a + b) ** 2 / (2 * _STRENGTH_SPREAD**2)
            for a, b in self._points
        ]
        top = max(self._weights)
        self._likely = [math.exp(weight - top) for weight in self._weights]
        self._known: dict[tuple[int, int], float] = {}
        self._known_lost: dict[tuple[int, int, int], float] = {}

    def chance(self, accepted: int, scored: int) -> float:
        """The probability that a task's next sample is accepted, after ``accepted`` of ``scored``."""
        found = self._known.get((accepted, scored))
        if found is None:
            logs = [
                weight + _log_chance(a, b, accepted, scored)
                for (a, b), weight in zip(self._points, self._weights, strict=True)
            ]
            top = max(logs)
            likely = [math.exp(log - top) for log in logs]
            means = [(a + accepted) / (a + b + scored) for a, b in self._points]
            found = math.fsum(w * m for w, m in zip(likely, means, strict=True)) / math.fsum(likely)
            self._known[accepted, scored] = found
        return found


    def lost(self, scored: int, most: int, wanted: int) -> float:
        """The share of all wanted answers (up to ``wanted`` of a task among ``most`` samples) that is not found when
        every task without any in ``scored`` samples is left there."""
        found = self._known_lost.get((scored, most, wanted))
        if found is None:
            here = everywhere = 0.0
            for (a, b), weight in zip(self._points, self._likely, strict=True):
                to_come = _expected(a, b + scored, most - scored, wanted)
                here += weight * math.exp(_log_chance(a, b, 0, scored)) * to_come
                everywhere += weight * _expected(a, b, most, wanted)
            found = self._known_lost[scored, most, wanted] = here / everywhere
        return found


def rounds(budget: BudgetSection, most: int) -> list[int]:
    """The numbers of samples at which a task is looked at, the last of them ``most``."""
    if not budget.adaptive:
        return [most]
    found = [min(budget.first_round, most)]
    while found[-1] < most:
        more = max(1, min(found[-1] // 2, max(2, most // 8)))
        found.append(min(found[-1] + more, most))
    return found


def need(budget: BudgetSection, most: int, samples: Mapping[int, State], prior: Prior | None) -> Need:
    """What a task wants. ``prior`` is None until its source's pilot is complete.

    Samples beyond the round at which the task is done are not looked at. A refused sample is settled and says nothing;
    a task whose first samples are all refused is left.
    """
    keys: Counter[str | None] = Counter()
    scored = refused = looked_at = 0
    missing = False
    for bound in rounds(budget, most):
        for index in range(looked_at, bound):
            state = samples.get(index)
            outcome = None if state is None else state.outcome
            if state is None or outcome is None:
                missing = True
            elif outcome == _ACCEPTED:
                keys[state.key] += 1
                scored += 1
            elif outcome == REFUSED:
                refused += 1
            elif outcome != _ERROR:
                scored += 1
            elif state.tries < MAX_TRIES:
                missing = True
        looked_at = bound
        if missing:
            return Need(bound, Why.ROUND)
        if refused == bound:
            return Need(bound, Why.REFUSED)
        if bound == most:
            return Need(bound, Why.ALL)
        if len(keys) >= budget.accepted_per_task:
            return Need(bound, Why.ENOUGH)
        if prior is None:
            return Need(bound, Why.PILOT)
        if _is_hopeless(budget, most, keys, scored, prior):
            return Need(bound, Why.HOPELESS)
    raise AssertionError("the last round always decides")


def is_settled(state: State) -> bool:
    """Whether nothing more will be learnt about a sample: judged, refused, or given up by the judge."""
    return state.outcome is not None and (state.outcome != _ERROR or state.tries >= MAX_TRIES)


def tally(states: Iterable[State]) -> tuple[int, int]:
    """``(accepted, scored)``."""
    outcomes = Counter(state.outcome for state in states)
    accepted = outcomes[Outcome.ACCEPTED]
    return accepted, accepted + outcomes[Outcome.REJECTED] + outcomes[Outcome.TIMEOUT]


def pilot_tally(budget: BudgetSection, most: int, samples: Mapping[int, State]) -> tuple[int, int] | None:
    """``(accepted, scored)`` of the first round; None while it is not complete."""
    first = rounds(budget, most)[0]
    within = [samples[index] for index in range(first) if index in samples]
    if len(within) < first or not all(is_settled(state) for state in within):
        return None
    return tally(within)


def _is_hopeless(budget: BudgetSection, most: int, keys: Counter[str | None], scored: int, prior: Prior) -> bool:
    chance = prior.chance(keys.total(), scored) * _new_answer(keys)
    if chance >= budget.hopeless_below:
        return False
    if keys or chance < BEYOND * budget.hopeless_below:
        return True
    return prior.lost(scored, most, budget.accepted_per_task) < MOST_LOST


def _expected(a: float, b: float, samples: int, wanted: int) -> float:
    """How many of ``wanted`` answers come in ``samples``, under a beta distribution."""
    missing = 0.0
    for accepted in range(min(wanted, samples + 1)):
        orders = math.lgamma(samples + 1) - math.lgamma(accepted + 1) - math.lgamma(samples - accepted + 1)
        missing += (wanted - accepted) * math.exp(orders + _log_chance(a, b, accepted, samples))
    return wanted - missing


def _new_answer(keys: Mapping[str | None, int]) -> float:
    """The chance that an accepted answer is none of those there are already (Good and Turing, smoothed)."""
    accepted = sum(keys.values())
    if not accepted:
        return 1.0
    once = sum(count == 1 for count in keys.values())
    return (once + 0.5) / (accepted + 1)


def _log_chance(a: float, b: float, accepted: int, scored: int) -> float:
    """Of one particular order of verdicts, under a beta distribution."""
    return (
        math.lgamma(a + accepted) + math.lgamma(b + scored - accepted) - math.lgamma(a + b + scored)
        - math.lgamma(a) - math.lgamma(b) + math.lgamma(a + b)
    )  # fmt: skip
