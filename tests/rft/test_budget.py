"""proves RFT-5: how many samples a task gets."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rft.budget import MAX_TRIES, MOST_LOST, PILOT_TASKS, Need, Prior, Why, need, pilot_tally, rounds
from rft.config import BudgetSection
from rft.store import REFUSED, State

BUDGET = BudgetSection(accepted_per_task=2, first_round=2, hopeless_below=0.01)
EVEN = Prior({})


def states(text: str) -> dict[int, State]:
    """``a`` and ``b`` accepted with that key, ``.`` rejected, ``t`` timed out, ``e`` given up by the judge, ``E``
    failed once, ``r`` refused, ``?`` not judged, blank: not drawn."""
    outcomes = {".": "rejected", "t": "timeout", "e": "error", "E": "error", "r": REFUSED, "?": None}
    found = {}
    for index, letter in enumerate(text):
        if letter != " ":
            outcome = outcomes.get(letter, "accepted")
            key = letter if outcome == "accepted" else None
            found[index] = State(index, outcome, key, {"e": MAX_TRIES, "E": 1}.get(letter, 0))
    return found


def test_rounds_grow_by_half_and_by_no_more_than_an_eighth_of_all() -> None:
    assert rounds(BUDGET, 8) == [2, 3, 4, 6, 8] and rounds(BUDGET, 2) == [2] and rounds(BUDGET, 1) == [1]
    assert rounds(BUDGET, 32) == [2, 3, 4, 6, 9, 13, 17, 21, 25, 29, 32]
    assert rounds(BudgetSection(first_round=3), 16) == [3, 4, 6, 8, 10, 12, 14, 16]
    assert rounds(BudgetSection(adaptive=False), 16) == [16]


def test_a_task_ends_with_enough_different_answers_at_the_end_of_a_round() -> None:
    assert need(BUDGET, 8, states(""), EVEN) == Need(2, Why.ROUND)
    assert need(BUDGET, 8, states("a?"), EVEN) == Need(2, Why.ROUND)
    assert need(BUDGET, 8, states("ab"), EVEN) == Need(2, Why.ENOUGH)
    assert need(BUDGET, 8, states("aa"), EVEN) == Need(3, Why.ROUND), "twice the same answer is one answer"
    assert need(BUDGET, 8, states("aa. b"), EVEN) == Need(4, Why.ROUND), "enough, but the round is not whole"
    assert need(BUDGET, 8, states("aa.b"), EVEN) == Need(4, Why.ENOUGH)
    assert need(BUDGET, 8, states("........"), EVEN) == Need(8, Why.ALL)
    assert need(BUDGET, 2, states(".."), None) == Need(2, Why.ALL), "the last round needs no pilot"
    assert need(BUDGET, 8, states("abcdefgh"), EVEN) == Need(2, Why.ENOUGH), "what is there beyond is not looked at"
    assert need(BudgetSection(adaptive=False), 4, states("abc"), None) == Need(4, Why.ROUND)
    assert need(BudgetSection(adaptive=False), 4, states("abcd"), None) == Need(4, Why.ALL)


def test_without_its_pilot_a_task_that_has_too_little_waits() -> None:
    assert need(BUDGET, 8, states("a."), None) == Need(2, Why.PILOT)
    assert need(BUDGET, 8, states("ab"), None) == Need(2, Why.ENOUGH)


def test_what_the_judge_gave_up_counts_as_nothing_and_is_no_rejection() -> None:
    assert need(BUDGET, 8, states("aE"), EVEN) == Need(2, Why.ROUND)
    assert need(BUDGET, 8, states("ae"), EVEN) == Need(3, Why.ROUND)
    sure = Prior({(0, 2): 256})
    assert need(BUDGET, 8, states(".."), sure) == Need(2, Why.HOPELESS)
    assert sure.chance(0, 0) > sure.chance(0, 1) > sure.chance(0, 2)
    assert pilot_tally(BUDGET, 8, states("ae..")) == (1, 1)
    assert pilot_tally(BUDGET, 8, states("aE..")) is None and pilot_tally(BUDGET, 8, states("a")) is None
    assert pilot_tally(BUDGET, 8, states("r")) is None and pilot_tally(BUDGET, 8, states("rr")) == (0, 0)


def test_a_task_is_left_when_all_of_a_round_is_refused_and_not_before() -> None:
    assert need(BUDGET, 8, states("rr"), None) == Need(2, Why.REFUSED)
    # Which refusal comes first must not decide which others are drawn.
    assert need(BUDGET, 8, states("r"), None) == Need(2, Why.ROUND)
    assert need(BUDGET, 8, states("r."), None) == Need(2, Why.PILOT)


def test_the_pilot_says_what_to_expect() -> None:
    split = Prior({(0, 2): 64, (2, 2): 64})  # tasks are solved always or never
    alike = Prior({(0, 2): 32, (1, 2): 64, (2, 2): 32})  # all are solved half of the time
    poor, rich = Prior({(0, 2): 32}), Prior({(2, 2): 32})
    assert poor.chance(0, 0) < 0.05 < 0.9 < rich.chance(0, 0)
    assert abs(split.chance(0, 0) - 0.5) < 0.1 and abs(alike.chance(0, 0) - 0.5) < 0.1
    assert split.chance(0, 4) < 0.06 < 0.2 < alike.chance(0, 4), "zeros tell more where tasks differ"
    assert need(BUDGET, 64, states("." * 43), split).why is Why.HOPELESS
    assert need(BUDGET, 64, states("." * 16), alike) == Need(19, Why.ROUND)


def test_always_the_same_right_answer_is_hopeless_in_the_end() -> None:
    assert need(BUDGET, 256, states("a" * 9), EVEN) == Need(13, Why.ROUND)
    assert need(BUDGET, 256, states("a" * 63), EVEN) == Need(63, Why.HOPELESS)


def simulated(chances: list[float], most: int, seed: int) -> tuple[int, int, int]:
    """Samples with the adaptive budget, and rows with it and with fixed N; a row is a wanted accepted answer."""
    drawn = {}
    for number, chance in enumerate(chances):
        dice = random.Random(f"{seed} {number}")
        drawn[number] = [dice.random() < chance for _ in range(most)]

    def seen(number: int, bound: int) -> dict[int, State]:
        return {
            index: State(index, "accepted" if right else "rejected", f"{index}" if right else None, 0)
            for index, right in enumerate(drawn[number][:bound])
        }

    prior = Prior(Counter((sum(drawn[number][:2]), 2) for number in range(PILOT_TASKS)))
    used = adaptive = 0
    for number in drawn:
        bound = 0
        while not (found := need(BUDGET, most, seen(number, bound), prior)).done:
            bound = found.samples
        used += found.samples
        adaptive += min(sum(drawn[number][: found.samples]), BUDGET.accepted_per_task)
    return used, adaptive, sum(min(sum(each), BUDGET.accepted_per_task) for each in drawn.values())


def test_hard_tasks_are_left_only_where_few_answers_are_lost() -> None:
    hard = Prior({(0, 2): 56, (1, 2): 6, (2, 2): 2})  # most are solved now and then, if ever
    assert hard.chance(0, 17) < BUDGET.hopeless_below
    assert hard.lost(17, 32, 2) > MOST_LOST > hard.lost(29, 32, 2)
    assert hard.lost(0, 32, 2) == pytest.approx(1.0) and hard.lost(32, 32, 2) == pytest.approx(0.0)
    assert need(BUDGET, 32, states("." * 17), hard) == Need(21, Why.ROUND)
    assert need(BUDGET, 32, states("." * 29), hard) == Need(29, Why.HOPELESS)
    never = Prior({(0, 2): 64})
    assert never.lost(6, 32, 2) > MOST_LOST
    assert need(BUDGET, 32, states("." * 6), never) == Need(6, Why.HOPELESS), "a thousand samples for an answer"


def test_few_samples_give_nearly_all_rows() -> None:
    for shape in ((0.5, 0.5), (0.3, 0.6), (1.0, 1.0), (0.8, 0.4), (0.5, 0.5, 0.4)):
        dice = random.Random(1)
        impossible = shape[2] if len(shape) > 2 else 0.0
        chances = [0.0 if dice.random() < impossible else dice.betavariate(*shape[:2]) for _ in range(400)]
        used, adaptive, fixed = simulated(chances, 32, 3)
        assert used <= 0.60 * 32 * len(chances), (shape, used / 32 / len(chances))
        assert adaptive >= 0.97 * fixed, (shape, adaptive / fixed)


def test_rows_of_hard_tasks_are_kept() -> None:
    dice = random.Random(1)
    chances = [dice.betavariate(0.1, 0.9) for _ in range(400)]
    used, adaptive, fixed = simulated(chances, 32, 3)
    assert adaptive >= 0.95 * fixed and used < 0.9 * 32 * len(chances), (used / 32 / len(chances), adaptive / fixed)
