"""Generated questions: ranges that never meet, no question twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rft.config import TaskSourceSection
from rft.tasks import gym_package
from rft.tasks.gym_process import problem
from rft.tasks.reasoning_gym import BEGIN, PART, Asked, gym_tasks
from rft.tasks.task import Task


def source(**fields: Any) -> TaskSourceSection:
    return TaskSourceSection.model_validate({"name": "g", "type": "reasoning_gym", "max_tasks": 100, **fields})


def questions(tasks: list[Task]) -> set[str]:
    return {task.messages[-1].content for task in tasks}


def numbers(tasks: list[Task]) -> set[int]:
    return {int(task.id.removeprefix("g/")) for task in tasks}


# proves RFT-6
def test_ranges_and_their_parts_share_no_entry_whatever_the_seeds() -> None:
    taken: set[int] = set()
    for chosen in ("train", "held_out"):
        for part in (0, 1, 999):
            for job_seed in (0, 1) if part == 0 else (0,):
                found = numbers(list(gym_tasks(source(dataset="gcd", range=chosen, seed=part), job_seed)))
                begin = BEGIN[chosen] + part * PART
                assert len(found) == 100 and all(begin <= number < begin + PART for number in found)
                if job_seed == 0:
                    assert not found & taken
                    taken |= found
    assert max(taken) < 2**31


# proves RFT-6
def test_no_question_is_in_both_ranges_even_of_a_generator_that_has_few() -> None:
    asked = Asked()
    train = list(gym_tasks(source(dataset="coin_flip", max_tasks=1000), 0, asked))
    held_out = list(gym_tasks(source(dataset="coin_flip", range="held_out", max_tasks=1000), 0))
    assert len(train) > 50 and len(held_out) > 10
    assert not questions(train) & questions(held_out)
    assert len(questions(train)) == len(train), "a question stands twice"
    assert asked.exhausted and asked.repeated > 0 and asked.other_range > 0


# proves RFT-6
def test_the_jobs_seed_chooses_where_in_the_part_to_begin() -> None:
    first, second = (list(gym_tasks(source(dataset="gcd"), seed)) for seed in (0, 1))
    assert not numbers(first) & numbers(second)
    assert [task.id for task in first] == [task.id for task in gym_tasks(source(dataset="gcd"), 0)]
    few = list(gym_tasks(source(dataset="gcd", max_tasks=10), 0))
    assert few == first[:10]


# proves RFT-1
def test_an_entry_keeps_what_its_scorer_needs_and_its_answer_is_the_gold_one() -> None:
    (task,) = gym_tasks(source(dataset="leg_counting", params={"max_animals": 4}, max_tasks=1), 0)
    data = json.loads(json.dumps(task.check.data))
    assert data == task.check.data and task.check.verifier == "reasoning_gym"
    generator = gym_package.dataset(data["dataset"], data["params"], 0, 1)
    assert generator.score_answer(task.gold, data["entry"]) == 1.0
    assert generator.score_answer("-1", data["entry"]) < 1.0
    assert data["entry"]["answer"] == task.gold
    assert task.cluster is not None and task.cluster.startswith("leg_counting")
    (by_value,) = gym_tasks(source(dataset="leg_counting", verifier={"name": "maths"}, max_tasks=1), 0)
    assert by_value.check.verifier == "maths" and set(by_value.check.data) == {"answer"}


# proves RFT-1
def test_most_generators_work_without_the_packages_that_reasoning_gym_pins() -> None:
    assert len(gym_package.names()) > 90
    unusable = {name: problem(name, {}) for name in ("figlet_font", "bf")}
    for name, said in unusable.items():
        if said is not None:  # None where somebody has installed what it needs
            assert "which is not installed; pip install " in said, name
    left = [name for name in gym_package.SPECIAL_PACKAGES if name in sys.modules]
    assert all(getattr(sys.modules[name], "__file__", None) for name in left), "a stand-in stayed behind"


# proves RFT-1
@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("chain_sums", {}, "no generator 'chain_sums'; did you mean chain_sum?"),
        ("gcd", {"min_valu": 3}, "no parameter 'min_valu'; did you mean min_value?"),
        ("gcd", {"seed": 3}, "seed is not a parameter here"),
        ("gcd", {"min_value": 5, "max_value": 1}, "gcd refuses its parameters"),
        ("gcd", {"min_value": "x"}, "gcd refuses its parameters"),
    ],
)
def test_a_generator_that_cannot_be_used_is_refused_in_a_sentence(
    name: str, params: dict[str, Any], words: str
) -> None:
    assert words in (problem(name, params) or "")


# proves RFT-4
def test_the_same_questions_come_in_every_process(tmp_path: Path) -> None:
    program = (
        "from rft.config import TaskSourceSection as S; from rft.tasks.reasoning_gym import gym_tasks\n"
        "for name in ('ransom_note', 'list_functions'):\n"
        "    s = S(name='g', type='reasoning_gym', dataset=name, max_tasks=5)\n"
        "    print([task.digest for task in gym_tasks(s, 3)])\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, cwd=Path.cwd(),
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert said[0] == said[1] and said[0].count("[") == 2
