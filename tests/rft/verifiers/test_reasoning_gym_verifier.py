"""reasoning-gym's own scorers, on answers that try to be more than answers. # proves RFT-2"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from judged import opened, task_of

from rft.gold import State, check_task
from rft.tasks import gym_package
from rft.tasks.task import Task
from rft.verifiers.reasoning_gym import extracted
from rft.verifiers.verdict import Outcome
from rft.verifiers.verifier import Verifier

EVALUATING = (
    "string_insertion", "spiral_matrix", "binary_matrix", "n_queens", "simple_integration", "intermediate_integration",
    "polynomial_multiplication", "puzzle24", "countdown",
)  # fmt: skip
"""Generators whose scorers hand the answer to eval, or to sympy's reader, which does."""
QUICK = ("spiral_matrix", "n_queens", "countdown")
HOSTILE = (
    "", " ", "0", "None", "[]", "()", "__import__('os').system('kill -9 -1')", "[c for c in ().__class__.__mro__]",
    "lambda: 0", "x.__class__", "9**9**9**9", "2**99999999", "'a' * 10**10", "[0] * 10**10", "1 << 10**10", "(" * 900,
    "exec('raise SystemExit')", "f'{1}'", "{i for i in range(10**10)}", "1\n\n\n", "\x00", "nan", "inf", "1e999",
    "sqrt(4).__class__", "Symbol('x')", "print(1)", "9" * 15_000, "x" * 19_000,
)  # fmt: skip


def gym_task(name: str, index: int = 0, **params: Any) -> Task:
    entry = gym_package.entry(gym_package.dataset(name, params, 3, index + 1), name, index)
    return task_of("reasoning_gym", {"dataset": name, "params": params, "entry": entry}, gold=entry["answer"])


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with opened("reasoning_gym", {"timeout_seconds": 60.0}) as found:
        yield found


def test_the_right_answer_is_accepted_and_another_is_not(verifier: Verifier) -> None:
    task = gym_task("chain_sum")
    right = task.check.data["entry"]["answer"]
    for answer in (right, f"57 + 87 is ...\n{right}\n", f"<answer>{right}</answer> as I said"):
        verdict = verifier.judge(task, answer)
        assert verdict.outcome is Outcome.ACCEPTED and verdict.score == 1.0, verdict
    wrong = verifier.judge(task, str(int(right) + 1))
    assert (wrong.outcome, wrong.reason, wrong.score) == (Outcome.REJECTED, "wrong answer", 0.0)
    assert repr(right) in wrong.diagnostic


def test_a_score_below_the_threshold_is_no_pass_but_stays_a_score() -> None:
    task = gym_task("chain_sum")
    right = task.check.data["entry"]["answer"]
    with opened("reasoning_gym", {"extract": ["whole"], "timeout_seconds": 300.0}) as strict:
        verdict = strict.judge(task, f"{right} or so")
        assert verdict.outcome is Outcome.REJECTED and 0 < (verdict.score or 0) < 1
        assert verdict.reward == verdict.score
    with opened("reasoning_gym", {"extract": ["whole"], "threshold": 0.1, "timeout_seconds": 300.0}) as lax:
        assert lax.judge(task, f"{right} or so").outcome is Outcome.ACCEPTED


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in EVALUATING]
)
def test_scorers_that_would_run_an_answer_only_read_it(verifier: Verifier, name: str) -> None:
    task = gym_task(name)
    for answer in HOSTILE:
        verdict = verifier.judge(task, f"<answer>{answer}</answer>")
        assert verdict.outcome in (Outcome.REJECTED, Outcome.TIMEOUT), (answer, verdict)
        assert (verdict.score or 0) < 0.5, (answer, verdict)
    question = task.check.data["entry"]["question"]
    assert verifier.judge(task, f"<answer>{question}</answer>").outcome is Outcome.REJECTED
    if isinstance(task.gold, str) and name not in ("puzzle24",):
        assert verifier.judge(task, f"<answer>{task.gold}</answer>").outcome is Outcome.ACCEPTED


def test_what_is_no_number_is_no_answer(verifier: Verifier) -> None:
    """The scorer of complex_arithmetic gives 1 for it: no difference to it is too large."""
    task = gym_task("complex_arithmetic")
    for answer in ("nan", "NaN", "nan + nanj", "-inf", "(nan+1j)", "infinity"):
        assert verifier.judge(task, answer).reason == "no number", answer
    assert verifier.judge(task, "a banana").reason != "no number"
    assert verifier.judge(task, task.gold or "").outcome is Outcome.ACCEPTED


def test_a_task_of_no_generator_says_so(verifier: Verifier) -> None:
    entry = gym_task("chain_sum").check.data["entry"]
    problem = verifier.problem(task_of("reasoning_gym", {"dataset": "chain_sums", "entry": entry}))
    assert problem is not None and "did you mean chain_sum?" in problem
    assert "entry is missing" in (verifier.problem(task_of("reasoning_gym", {"dataset": "chain_sum"})) or "")
    bare = {"entry": {"question": "?", "answer": "", "metadata": {}}}
    assert "nothing to compare" in (verifier.problem(task_of("reasoning_gym", bare)) or "")
    assert verifier.problem(gym_task("chain_sum")) is None


def test_gold_answers_of_generators_are_valid(verifier: Verifier) -> None:
    for name in ("chain_sum", "word_sorting", "spiral_matrix", "rotate_matrix", "basic_arithmetic"):
        assert check_task(gym_task(name), verifier).state is State.VALID, name


def test_the_answer_is_found_by_the_first_rule() -> None:
    assert extracted("a\n<answer> 1 </answer>\nb", ["tagged", "last_line"]) == "1"
    assert extracted("a\nb\n\n", ["tagged", "last_line"]) == "b"
    assert extracted("so:\n1 2\n3 4\n", ["last_line"], lines=2) == "1 2\n3 4"
    assert extracted(r"is \boxed{7}.", ["boxed"]) == "7"
    assert extracted("2 + 9 = 11\n\nThat is it.", ["tagged", "last_number"]) == "11"
    assert extracted("none", ["tagged", "last_number"]) is None
    assert extracted("", ["tagged", "last_line", "whole"]) is None
