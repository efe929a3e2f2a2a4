"""mens-sup rft verify: anybody's completions, judged without a model. # proves RFT-2"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli import main

TASKS = [
    {"id": "one", "prompt": "1 + 1?", "answer": "2", "gold": "\\boxed{2}"},
    {"id": "half", "prompt": "1 / 2?", "answer": "1/2"},
]
GCC = """
name: command
settings:
  command: [gcc, -fsyntax-only, -Werror, check.c]
  proof: static
  file: answer.c
  project: project
  must_reject: ["int f( {"]
"""


def write_rows(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def candidates(path: Path, *pairs: tuple[str, str]) -> Path:
    return write_rows(path / "candidates.jsonl", [{"task_id": task, "completion": text} for task, text in pairs])


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "tasks.jsonl", TASKS)


def verify(*arguments: str | Path) -> int:
    return main(["rft", "verify", *map(str, arguments)])


def test_each_row_gets_a_verdict_in_order_and_the_end_a_summary(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = candidates(tmp_path, ("half", "so 0.5"), ("one", "it is 3"), ("one", ""), ("half", r"\boxed{\frac12}"))
    assert verify("--tasks", tasks, "--candidates", rows) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[:3] for line in lines[:4]] == [
        ["half", "accepted"],
        ["one", "rejected", "wrong answer ('3' (last_number) is not '2')"],
        ["one", "rejected", "no final answer"],
        ["half", "accepted"],
    ]
    assert lines[4].startswith("4 rows in ") and lines[4].endswith(": 2 accepted, 2 rejected")
    assert lines[5:] == ["  rejected 1x: wrong answer", "  rejected 1x: no final answer"]


def test_json_has_one_object_per_row_and_the_file_the_same(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = candidates(tmp_path, ("one", "2"), ("tasks/one", "\ud800"))
    out = tmp_path / "verdicts.jsonl"
    assert verify("--tasks", tasks, "--candidates", rows, "--json", "--out", out) == 0
    printed = capsys.readouterr()
    found = [json.loads(line) for line in printed.out.splitlines()]
    assert out.read_text() == printed.out
    assert [(row["task_id"], row["line"], row["outcome"], row["reward"]) for row in found] == [
        ("one", 1, "accepted", 1.0),
        ("one", 2, "rejected", 0.0),
    ]
    assert found[0]["verifier"] == "maths" and found[0]["isolation"] == "not run" and len(found[0]["version"]) == 16
    assert "2 rows in" in printed.err


def test_humaneval_is_judged_by_the_ids_that_everybody_uses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = "    for a in numbers:\n        for b in numbers:\n            if a is not b and abs(a - b) < threshold:\n"
    rows = candidates(
        tmp_path,
        ("HumanEval/0", body + "                return True\n    return False\n"),
        ("HumanEval/0", "    return None"),
    )
    assert verify("--tasks", "humaneval", "--candidates", rows, "--json", "--workers", "1") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["task_id"], row["outcome"]) for row in found] == [
        ("HumanEval/0", "accepted"),
        ("HumanEval/0", "rejected"),
    ]
    assert {row["isolation"] for row in found} == {"bubblewrap"}


def test_a_verifier_of_ones_own_judges_with_its_projects_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "check.c").write_text('#include "answer.c"\nint main(void) { return f(); }\n')
    (tmp_path / "gcc.yaml").write_text(GCC)
    tasks = write_rows(tmp_path / "c.jsonl", [{"id": "f", "prompt": "f", "verifier": "command"}])
    rows = candidates(
        tmp_path, ("f", "```c\nint f(void) { return 1; }\n```"), ("f", "```c\nint f(void) { return x; }\n```")
    )
    monkeypatch.chdir("/")
    arguments = ("--tasks", tasks, "--candidates", rows, "--verifier", tmp_path / "gcc.yaml", "--json")
    assert verify(*arguments) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["outcome"] for row in found] == ["accepted", "rejected"]
    assert "\u2018x\u2019 undeclared" in found[1]["diagnostic"]


def test_judging_without_isolation_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.yaml").write_text(
        "name: command\nsettings: {command: [grep, -q, right, '{file}'], proof: static, file: a.txt, take: answer, "
        "must_reject: [wrong]}\n"
    )
    tasks = write_rows(tmp_path / "t.jsonl", [{"id": "t", "prompt": "?", "verifier": "command"}])
    rows = candidates(tmp_path, ("t", "right"), ("t", "no"))
    arguments = ("--tasks", tasks, "--candidates", rows, "--verifier", tmp_path / "spec.yaml")
    assert verify(*arguments, "--isolation", "none") == 0
    assert capsys.readouterr().out.endswith("  2 of them ran without isolation, as you\n")


BAD_ROWS: list[tuple[list[Any], str]] = [
    ([{"task_id": "nine", "completion": ""}], "candidates.jsonl:1: there is no task 'nine'; ids look like 'one'."),
    ([{"task_id": "one", "completion": "2"}, {"task_id": "one"}], "candidates.jsonl:2: the row has no 'completion'."),
    ([{"completion": "x"}], "candidates.jsonl:1: the row has no 'task_id'."),
    ([{"task_id": "one", "completion": ["x"]}], "candidates.jsonl:1: 'completion' must be text, not list."),
    (["", "{"], "candidates.jsonl:2: the line is not JSON"),
    (["[1]"], "candidates.jsonl:1: a row is a JSON object, this line is a list"),
    ([], "candidates.jsonl has no rows."),
    ([{"task_id": "nine", "completion": ""}] * 13, "and 3 more rows"),
]


@pytest.mark.parametrize(("rows", "words"), BAD_ROWS)
def test_bad_rows_are_named_before_anything_is_judged(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[Any], words: str
) -> None:
    path = write_rows(tmp_path / "candidates.jsonl", rows)
    assert verify("--tasks", tasks, "--candidates", path) == 2
    printed = capsys.readouterr()
    assert words in printed.err and not printed.out and "Traceback" not in printed.err


def test_what_is_not_there_is_said(tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = candidates(tmp_path, ("one", "2"))
    assert verify("--tasks", tasks, "--candidates", tmp_path / "none.jsonl") == 2
    assert verify("--tasks", tmp_path / "none.jsonl", "--candidates", rows) == 2
    assert verify("--tasks", tasks, "--candidates", rows, "--verifier", tmp_path / "none.yaml") == 2
    assert verify("--tasks", tasks, "--candidates", rows, "--out", tmp_path / "no" / "folder.jsonl") == 2
    before = tasks.read_bytes()
    for read in (rows, tasks):
        assert verify("--tasks", tasks, "--candidates", rows, "--out", read) == 2
    assert tasks.read_bytes() == before
    errors = capsys.readouterr().err
    assert errors.count("none.jsonl") == 2 and "none.yaml" in errors and "the file with the tasks" in errors
    assert rows.read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("name: comand\nsettings: {}\n", "'comand' is not installed; known verifiers: command"),
        ("name: maths\nsettings:\n  extrac: [boxed]\n", "spec.yaml:2: verifier maths: extrac is not a known key. Did"),
        ("nam: maths\n", "spec.yaml:1: nam is not a known key. Did you mean name?"),
        ("name: command\nsettings: {command: [pytest], proof: static, file: a.py}\n", "runs the answer"),
        ("name: [\n", "not valid YAML"),
    ],
)  # fmt: skip
def test_a_wrong_verifier_is_refused_with_its_line(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: str, words: str
) -> None:
    (tmp_path / "spec.yaml").write_text(spec)
    rows = candidates(tmp_path, ("one", "2"))
    assert verify("--tasks", tasks, "--candidates", rows, "--verifier", tmp_path / "spec.yaml") == 2
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error


def test_a_verifier_that_accepts_an_empty_answer_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"id": "free", "prompt": "?", "verifier": "json_schema", "check": {"schema": {"type": "object"}}}
    tasks = write_rows(tmp_path / "free.jsonl", [row])
    assert verify("--tasks", tasks, "--candidates", candidates(tmp_path, ("free", "{}"))) == 2
    assert "free.jsonl:1: task free/free: the verifier json_schema accepts the answer '{}'" in capsys.readouterr().err


def test_a_judge_that_fails_leaves_rows_without_a_verdict_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "judge.py").write_text(
        "class Judge:\n    def __init__(self, settings): pass\n    def judge(self, task, completion):\n"
        "        if completion == 'bad': raise RuntimeError('no idea')\n"
        "        return completion == 'good'\n"
    )
    (tmp_path / "spec.yaml").write_text("name: python\nsettings: {file: judge.py, name: Judge}\n")
    tasks = write_rows(tmp_path / "t.jsonl", [{"id": "t", "prompt": "?", "verifier": "python"}])
    rows = candidates(tmp_path, ("t", "good"), ("t", "bad"), ("t", "good"))
    assert verify("--tasks", tasks, "--candidates", rows, "--verifier", tmp_path / "spec.yaml") == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[1] for line in lines[:3]] == ["accepted", "error", "accepted"]
    assert "1 without a verdict, because the judge failed" in lines[3]


@pytest.mark.slow
def test_many_rows_stream_in_bounded_memory(tasks: Path, tmp_path: Path) -> None:
    """Each row carries 20 kB; 4,000 of them are 80 MB, of which only a few are held at a time."""
    path = tmp_path / "candidates.jsonl"
    with path.open("w") as file:
        for number in range(4000):
            file.write(json.dumps({"task_id": "one", "completion": "x " * 10_000 + str(number % 3)}) + "\n")
    program = (
        "import sys\nfrom supervisor.cli import main\ncode = main(sys.argv[1:])\n"
        # Not ru_maxrss: that begins with what the process was that started this one.
        "sys.stderr.write(open('/proc/self/status').read().partition('VmHWM:')[2].partition('kB')[0])\nsys.exit(code)\n"
    )
    arguments = ["rft", "verify", "--tasks", str(tasks), "--candidates", str(path), "--workers", "2"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, env={**os.environ}, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "4000 rows" in done.stdout and "1333 accepted" in done.stdout
    assert int(done.stderr.split()[-1]) < 150_000, done.stderr
