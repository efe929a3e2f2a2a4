"""mens-sup rft check-tasks: a task set is judged before a token is spent. # proves RFT-2"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rft.gold import SHOWN, State, check_gold, check_task
from rft.tasks.task import Check, Task
from rft.verifiers.verdict import Isolation, Outcome, Verdict
from supervisor.cli import main
from trainer.data.messages import Message

JOB = """
kind: rft
name: checked
tasks:
  sources:
    - {{name: sums, type: jsonl, path: {path}}}
sampler: {{model: "random:2x64"}}
"""


class Scripted:
    """Gives the outcomes it is told, in turn; the last one for ever."""

    name, version = "scripted", "1"

    def __init__(self, gold: Sequence[Outcome], empty: Outcome = Outcome.REJECTED) -> None:
        self.gold, self.empty = list(gold), empty

    def open(self) -> None: ...

    def close(self) -> None: ...

    def problem(self, task: Task) -> str | None:
        return task.check.data.get("problem")

    def judge(self, task: Task, completion: str) -> Verdict:
        outcome = self.empty
        if completion == task.gold:
            outcome = self.gold.pop(0) if len(self.gold) > 1 else self.gold[0]
        return Verdict(outcome, "why", self.name, self.version, Isolation.NOT_RUN, diagnostic="first\nlast line")


def task(number: int = 1, gold: str | None = "gold", **data: Any) -> Task:
    return Task(
        f"s/{number}", "s", (Message("user", "?"),), Check("scripted", data), gold=gold, file="t.jsonl", line=number
    )


@pytest.mark.parametrize(
    ("gold", "empty", "state"),
    [
        ([Outcome.ACCEPTED], Outcome.REJECTED, State.VALID),
        ([Outcome.REJECTED], Outcome.REJECTED, State.INVALID),
        ([Outcome.TIMEOUT], Outcome.REJECTED, State.TIMEOUT),
        ([Outcome.ERROR], Outcome.REJECTED, State.ERROR),
        ([Outcome.ERROR, Outcome.ACCEPTED], Outcome.REJECTED, State.VALID),  # a judge that failed once is asked again
        ([Outcome.ACCEPTED], Outcome.ACCEPTED, State.INVALID),
        ([Outcome.ACCEPTED], Outcome.TIMEOUT, State.VALID),
        ([Outcome.ACCEPTED], Outcome.ERROR, State.ERROR),
    ],
)
def test_valid_invalid_timeout_and_error_are_kept_apart(
    gold: list[Outcome], empty: Outcome, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rft.gold.PAUSES", (0.0, 0.0))
    assert check_task(task(), Scripted(gold, empty)).state is state


def test_without_a_gold_answer_a_task_is_unchecked_and_without_tests_invalid() -> None:
    assert check_task(task(gold=None), Scripted([Outcome.ACCEPTED])).state is State.UNCHECKED
    found = check_task(task(problem="it has no tests"), Scripted([Outcome.ACCEPTED]))
    assert (found.state, found.problem) == (State.INVALID, "it has no tests")


def test_a_refusal_names_tasks_with_their_lines_and_counts_the_rest() -> None:
    tasks = [task(number) for number in range(1, SHOWN + 4)]
    verifier = Scripted([Outcome.REJECTED])
    report = check_gold(tasks, lambda _: verifier, workers=2)
    refusal = report.refusal()
    assert not report.good and refusal is not None
    assert refusal.startswith(f"{SHOWN + 3} of {SHOWN + 3} tasks cannot be judged rightly: s/1 (t.jsonl:1): its gold")
    assert "(last line)" in refusal and "and 3 more" in refusal and refusal.count("t.jsonl:") == SHOWN
    good = check_gold([task()], lambda _: Scripted([Outcome.ACCEPTED]), workers=1)
    assert good.good and good.refusal() is None


def write_job(folder: Path, rows: list[dict[str, Any]]) -> Path:
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "job.yaml").write_text(JOB.format(path=folder / "sums.jsonl"))
    return folder / "job.yaml"


def test_a_job_whose_tasks_are_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": "1+1", "answer": "2", "gold": "2"}, {"id": "b", "prompt": "1+2", "answer": "3"}]
    assert main(["rft", "check-tasks", str(write_job(tmp_path, rows))]) == 0
    assert capsys.readouterr().out == "2 tasks: 1 valid, 1 unchecked\n"


def test_a_job_with_a_wrong_gold_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"id": "a", "prompt": "1+1", "answer": "2", "gold": "2"},
        {"id": "b", "prompt": "?", "answer": "3", "gold": "4"},
    ]
    job = str(write_job(tmp_path, rows))
    assert main(["rft", "check-tasks", job]) == 1
    out = capsys.readouterr().out
    assert f"sums/b ({tmp_path}/sums.jsonl:2)\tinvalid\tits gold answer: wrong answer" in out
    assert "'4' (last_number) is not '3'" in out and out.endswith("2 tasks: 1 valid, 1 invalid\n")
    assert main(["rft", "check-tasks", job, "--json"]) == 1
    states = [json.loads(line)["state"] for line in capsys.readouterr().out.splitlines()]
    assert states == ["valid", "invalid"]


def test_a_job_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rft", "check-tasks", str(tmp_path / "none.yaml")]) == 2
    rows = [{"id": "a", "prompt": "?", "verifier": "no-such", "check": {}}]
    assert main(["rft", "check-tasks", str(write_job(tmp_path, rows))]) == 2
    error = capsys.readouterr().err
    assert "none.yaml" in error and "'no-such' is not installed" in error and "Traceback" not in error
