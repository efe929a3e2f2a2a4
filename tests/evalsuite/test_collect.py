"""Scores from samples: every task with all of its samples, or it is missing and said so."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ruamel.yaml import YAML

sys.path.insert(0, str(Path(__file__).parents[1] / "rft"))
from toy_job import ToySampler, ToyVerifier, attempt, parts, toy_tasks

from evalsuite.attempt import evaluate
from evalsuite.collect import collect
from evalsuite.config import EvalSections
from evalsuite.scores import SCORES_NAME, read_scores
from rft.effective import Effective
from rft.run import Parts
from rft.store import STORE_NAME
from supervisor.problems import InputError
from supervisor.protocol.attempt import ExitKind, ExitReport
from supervisor.protocol.paths import RunPaths
from trainer.errors import CheckpointIncompatibleError, DataProblemError, StopRequestedError
from trainer.reporting import Reporter

SAMPLES = 4


def sections(**changed: Any) -> EvalSections:
    document: dict[str, Any] = {
        "seed": 7,
        "tasks": {"sources": [{"name": "sums", "type": "jsonl", "path": "toy.jsonl"}]},
        "sampler": {"model": "toy"},
        "sampling": {"samples_per_task": SAMPLES},
        **changed,
    }
    return EvalSections.model_validate(document)


def run(folder: Path, given: Parts, job: EvalSections | None = None, number: int = 1) -> ExitReport:
    job = job or sections()
    folder.mkdir(exist_ok=True)
    YAML(typ="safe").dump({"name": "toy", "kind": "eval", **job.model_dump(mode="json")}, RunPaths(folder).run_yaml)
    spec = attempt(folder, number)
    return evaluate(Effective(job, 20.0, "toy"), spec, Reporter(spec), given)


# proves EVL-4: every task gets the same number of samples, whatever comes of them
def test_a_fixed_number_of_samples_of_every_task_is_scored(tmp_path: Path) -> None:
    report = run(tmp_path / "e", parts(toy_tasks(10), ToySampler()))
    scores = read_scores(tmp_path / "e")
    assert report.kind is ExitKind.COMPLETED and scores.whole and scores.bench.tasks == 10 and not scores.missing
    assert [task.task for task in scores.tasks] == [f"sums/{at}" for at in range(10)]
    assert {task.samples for task in scores.tasks} == {SAMPLES}
    assert scores.tasks[0].accepted == 0, "never solved, and asked as often as the others"
    assert all(sum(task.values["accepted"]) == task.accepted for task in scores.tasks)
    assert 0 < sum(task.accepted for task in scores.tasks) < 40
    assert "accepted 0." in report.message


# proves EVL-4: a stopped evaluation goes on and ends with the scores of one that was never stopped
def test_a_stopped_evaluation_has_no_scores_and_goes_on(tmp_path: Path) -> None:
    class Stopping(ToySampler):
        def wait(self, seconds: float) -> list[Any]:
            if len(self.asked) >= 16:
                raise StopRequestedError("asked to stop")
            return super().wait(seconds)

    with pytest.raises(StopRequestedError):
        run(tmp_path / "e", parts(toy_tasks(10), Stopping()))
    assert not (tmp_path / "e" / SCORES_NAME).exists()
    with pytest.raises(InputError, match="nothing was evaluated"):
        read_scores(tmp_path / "e")
    found, why = collect(tmp_path / "e")
    assert not found.whole and why and "0 of 4 samples are there" in why.values()
    run(tmp_path / "e", parts(toy_tasks(10), ToySampler()), number=2)
    run(tmp_path / "whole", parts(toy_tasks(10), ToySampler(room=3)))
    assert read_scores(tmp_path / "e") == read_scores(tmp_path / "whole")


# proves EVL-4: a task that cannot be scored is missing, never a zero, and the evaluation does not pass for a whole one
@pytest.mark.parametrize(
    ("sampler", "verifier", "why"),
    [
        (ToySampler(refuses=lambda request: request.task_id == "sums/3"), ToyVerifier(), "never drawn"),
        (ToySampler(), ToyVerifier(fails=lambda task, text: task.id == "sums/3" and "6" in text), "the judge failed"),
    ],
)
def test_what_has_no_verdict_is_missing(
    tmp_path: Path, sampler: ToySampler, verifier: ToyVerifier, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rft.judging.PAUSES", (0.0, 0.0))
    monkeypatch.setattr("rft.gold.PAUSES", ())
    tasks = [msgspec.structs.replace(task, gold=None) for task in toy_tasks(5, chance=lambda at: 1.0)]
    with pytest.raises(DataProblemError, match=f"1 of 5 tasks have no score.*sums/3.*{why}"):
        run(tmp_path / "e", parts(tasks, sampler, verifier))
    scores = read_scores(tmp_path / "e")
    assert scores.missing == ("sums/3",) and not scores.whole and len(scores.tasks) == 4


# proves EVL-3: another model, or another way to sample, is another evaluation
def test_an_evaluation_goes_on_with_nothing_else(tmp_path: Path) -> None:
    run(tmp_path / "e", parts(toy_tasks(5), ToySampler()))
    with sqlite3.connect(tmp_path / "e" / STORE_NAME) as database:
        database.execute("DELETE FROM sample WHERE task = 5")
        database.execute("DELETE FROM content WHERE task = 5")
    for other in (
        (parts(toy_tasks(5), ToySampler(digest="another")), None),
        (parts(toy_tasks(6), ToySampler()), None),
        (parts(toy_tasks(5), ToySampler(), ToyVerifier(version="v2")), None),
        (parts(toy_tasks(5), ToySampler()), sections(sampling={"samples_per_task": SAMPLES, "temperature": 0.5})),
    ):
        spec = attempt(tmp_path / "e", 2, accepted=("tasks", "sampler", "sampling", "verifiers"))
        with pytest.raises(CheckpointIncompatibleError, match="belong to another job"):
            evaluate(Effective(other[1] or sections(), 20.0, "toy"), spec, Reporter(spec), other[0])


# proves EVL-2: another bench, or another way to judge it, has another digest; the order in which samples came has not
def test_the_digest_of_the_bench_is_of_what_is_asked_and_how_it_is_judged(tmp_path: Path) -> None:
    def digest(name: str, given: Parts, job: EvalSections | None = None) -> str:
        run(tmp_path / name, given, job)
        return read_scores(tmp_path / name).bench.digest

    first = digest("a", parts(toy_tasks(5), ToySampler()))
    assert first == digest("b", parts(toy_tasks(5), ToySampler(room=2, digest="another model")))
    assert first != digest("c", parts(toy_tasks(4), ToySampler()))
    assert first != digest("d", parts(toy_tasks(5, chance=lambda at: 0.5), ToySampler()))
    assert first != digest("e", parts(toy_tasks(5), ToySampler(), ToyVerifier(version="v2")))
