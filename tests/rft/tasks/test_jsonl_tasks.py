"""Tasks in files, and what is wrong with them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rft.tasks.bench import bench_tasks
from rft.tasks.humaneval import humaneval_tasks
from rft.tasks.jsonl import read_tasks
from rft.tasks.task import Task
from supervisor.problems import InputError


def tasks_of(tmp_path: Path, *rows: dict[str, Any] | str, verifier: str | None = None) -> list[Task]:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return list(read_tasks(str(path), "mine", verifier))


def refusal(tmp_path: Path, *rows: dict[str, Any] | str, verifier: str | None = None) -> str:
    with pytest.raises(InputError) as raised:
        tasks_of(tmp_path, *rows, verifier=verifier)
    return str(raised.value)


# proves RFT-1
def test_every_field_of_our_own_shape_arrives(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    row = {
        "id": "a",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Add 1 and 2."}],
        "tools": [tool], "verifier": "json_schema", "check": {"calls": "any"}, "gold": "add(1, 2)", "cluster": "sums",
        "metadata": {"level": 1},
    }  # fmt: skip
    (task,) = tasks_of(tmp_path, row)
    assert (task.id, task.source, task.gold, task.cluster, task.metadata) == (
        "mine/a", "mine", "add(1, 2)", "sums", {"level": 1},
    )  # fmt: skip
    assert [(turn.role, turn.content) for turn in task.messages] == [("system", "Be brief."), ("user", "Add 1 and 2.")]
    assert task.tools == (tool,) and (task.check.verifier, task.check.data) == ("json_schema", {"calls": "any"})
    assert (Path(task.file).name, task.line) == ("tasks.jsonl", 1)


# proves RFT-1
def test_how_a_task_is_judged_follows_from_its_fields(tmp_path: Path) -> None:
    tests, answer, whole, named = tasks_of(
        tmp_path,
        {"prompt": "double", "tests": ["assert double(2) == 4"], "entry_point": "double", "setup": "import math"},
        {"prompt": "1+1?", "answer": 2, "system": "Think."},
        {"prompt": "f", "tests": "def check(candidate): assert candidate()", "entry_point": "f", "prefix": "x = 1\n"},
        {"prompt": "free", "verifier": "mine", "check": {"x": [1, None]}},
    )
    assert tests.check.verifier == "python_tests"
    assert tests.check.data == {"tests": ["assert double(2) == 4"], "entry_point": "double", "setup": "import math"}
    assert (answer.check.verifier, answer.check.data) == ("maths", {"answer": "2"})
    assert [turn.role for turn in answer.messages] == ["system", "user"]
    assert whole.check.data == {
        "tests": "def check(candidate): assert candidate()", "entry_point": "f", "prefix": "x = 1\n",
    }  # fmt: skip
    assert (named.check.verifier, named.check.data) == ("mine", {"x": [1, None]})


# proves RFT-1
def test_a_task_without_an_id_is_known_by_its_content_wherever_it_stands(tmp_path: Path) -> None:
    rows = [{"prompt": f"{number}?", "answer": str(number)} for number in range(3)]
    ids = {task.messages[0].content: task.id for task in tasks_of(tmp_path, *rows)}
    again = {task.messages[0].content: task.id for task in tasks_of(tmp_path, *reversed(rows))}
    assert ids == again and len(set(ids.values())) == 3


# proves RFT-1
def test_public_task_sets_are_read_as_they_come(tmp_path: Path) -> None:
    humaneval, mbpp, gsm8k = tasks_of(
        tmp_path,
        {
            "task_id": "X/1", "prompt": "def one():\n    \"\"\"One.\"\"\"\n", "entry_point": "one",
            "canonical_solution": "    return 1\n", "test": "def check(candidate):\n    assert candidate() == 1\n",
        },
        {"task_id": 7, "text": "Write f.", "code": "def f(): return 1", "test_list": ["assert f() == 1"],
         "test_setup_code": "", "challenge_test_list": []},
        {"question": "Two and two?", "answer": "They are 4.\n#### 1,004"},
    )  # fmt: skip
    assert humaneval.id == "mine/X/1" and humaneval.metadata == {"task_id": "X/1"}
    assert humaneval.gold == '```python\ndef one():\n    """One."""\n    return 1\n```'
    assert humaneval.check.data["prefix"].startswith("def one") and "return 1" not in humaneval.messages[0].content
    assert mbpp.id == "mine/7" and mbpp.check.data == {"tests": ["assert f() == 1"]}
    assert "assert f() == 1" in mbpp.messages[0].content and mbpp.gold == "```python\ndef f(): return 1\n```"
    assert gsm8k.check.data == {"answer": "1004"} and "1004" not in gsm8k.messages[0].content


# proves RFT-1
def test_humaneval_is_read_from_its_package_with_gold_answers(tmp_path: Path) -> None:
    found = list(humaneval_tasks("he"))
    assert len(found) == 164 and [found[0].id, found[-1].id] == ["he/HumanEval/0", "he/HumanEval/163"]
    assert all(task.gold and task.check.data["entry_point"] in task.messages[0].content for task in found)
    names = {task.check.data["entry_point"] for task in found}
    for task in found:  # the solution as a whole answer compiles and defines the function
        scope: dict[str, Any] = {}
        exec((task.gold or "").removeprefix("```python\n").removesuffix("\n```"), scope)
        assert task.check.data["entry_point"] in scope and names
    assert [task.id for task in bench_tasks("humaneval")][:1] == ["humaneval/HumanEval/0"]


# proves RFT-1
def test_packed_files_and_globs_are_read_in_order(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write('\n{"prompt": "1?", "answer": "1"}\n')
    (tmp_path / "b.jsonl").write_text('{"prompt": "2?", "answer": "2"}\n')
    found = list(read_tasks(str(tmp_path / "*.jsonl*"), "s"))
    assert [(Path(task.file).name, task.line) for task in found] == [("a.jsonl.gz", 2), ("b.jsonl", 1)]
    (tmp_path / "c.jsonl.gz").write_bytes((tmp_path / "a.jsonl.gz").read_bytes()[:-9])
    with pytest.raises(InputError, match=r"c\.jsonl\.gz is no whole gzip file"):
        list(read_tasks(str(tmp_path / "c.jsonl.gz"), "s"))


# proves RFT-1
@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "x", "answer": "1", "difficulty": 3}, "no field 'difficulty'"),
        ({"prompt": "x", "test": ["assert f()"]}, "meant is perhaps 'tests'"),
        ({"prompt": "x"}, "nothing says how its answers are judged"),
        ({"prompt": "x", "answer": "1", "tests": ["assert 1"]}, "in two ways how it is judged: tests and answer"),
        ({"prompt": "x", "tests": []}, "it has no tests"),
        ({"prompt": "x", "tests": "def check(c): pass"}, "needs an 'entry_point'"),
        ({"prompt": "x", "answer": "1", "entry_point": "f"}, "'entry_point' belongs to 'tests'"),
        ({"answer": "1"}, "neither 'prompt' nor 'messages'"),
        ({"prompt": " ", "answer": "1"}, "empty user turn"),
        ({"messages": [{"role": "assistant", "content": "hi"}], "answer": "1"}, "the last turn must be the user's"),
        ({"prompt": "x", "answer": "1", "gold": " "}, "gold answer is empty"),
        ({"prompt": "x", "answer": "1", "id": ""}, "'id' must be a short text"),
        ({"question": "x", "answer": "42"}, "does not end with a line such as '#### 42'"),
        ({"text": "x", "test_list": [], "task_id": 1}, "at least one"),
        ({"prompt": "x", "check": {"a": 1}}, "nothing says how its answers are judged"),
        ("{\"prompt\": \"x\"", "the line is not JSON"),
        ("[1]", "a row is a JSON object"),
    ],
)
def test_a_task_that_cannot_be_used_is_refused_by_file_and_line(
    tmp_path: Path, row: dict[str, Any] | str, words: str
) -> None:
    said = refusal(tmp_path, {"prompt": "good", "answer": "1"}, "", row)
    assert "tasks.jsonl:3: " in said
    assert words in said and "\n" not in said


# proves RFT-1
def test_a_row_and_its_source_may_not_name_two_verifiers(tmp_path: Path) -> None:
    row = {"prompt": "x", "answer": "1", "verifier": "maths"}
    assert "names the verifier 'maths', its source 'command'" in refusal(tmp_path, row, verifier="command")
    (task,) = tasks_of(tmp_path, {"prompt": "x", "check": {"a": 1}}, verifier="command")
    assert task.check.verifier == "command"


# proves RFT-1
def test_a_bench_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Did you mean humaneval"):
        list(bench_tasks("human_eval"))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match="has no item"):
        list(bench_tasks(str(tmp_path / "empty.jsonl")))
    with pytest.raises(InputError, match="does not exist"):
        list(bench_tasks(str(tmp_path / "nowhere.jsonl")))
