"""Exporting a job's accepted answers, its status, and what a job would cost."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from toy_job import ToySampler, ToyVerifier, parts, run, sections, toy_tasks

from rft.estimate import estimate, render_estimate
from rft.export import Guard, export
from rft.pass_at_k import mean_pass_at_k, pass_at_k
from rft.run import SamplerGoneError
from rft.scheduler import Scheduler
from rft.speed import Speed
from rft.standing import Standing
from rft.status import read_status, render_status
from rft.store import Store
from rft.tasks.task import Task
from rft.verifiers.verdict import Isolation, Outcome, Verdict
from supervisor.problems import InputError
from supervisor.yaml_source import render_yaml
from trainer.data.messages import Message, Row
from trainer.data.rows import read_jsonl

FIXED = {"budget": {"adaptive": False}}


def finished(place: Path, tasks: list[Task], **changed: Any) -> Path:
    """A run directory of a job with these tasks that has ended (or lost its sampler)."""
    job = sections(**changed)
    sampler = changed.pop("sampler_", None) or ToySampler()
    place.mkdir(exist_ok=True)
    (place / "run.yaml").write_text(render_yaml({"kind": "rft", **job.model_dump(mode="json")}))
    run(place, parts(tasks, sampler), job)
    return place


def unguarded(found: Standing) -> Guard:
    return lambda texts: [None] * len(texts)


def rows(path: Path) -> list[Row]:
    found = list(read_jsonl(path, metadata_fields=frozenset({"provenance"})))
    assert all(isinstance(row, Row) for row in found), found
    return found  # type: ignore[return-value]


# proves RFT-6
def test_rows_are_what_training_reads_and_say_where_they_come_from(tmp_path: Path) -> None:
    place = finished(tmp_path / "r", toy_tasks(10))
    out = tmp_path / "corpus.jsonl"
    manifest = export(place, out, unguarded)
    found = rows(out)
    assert len(found) == manifest["rows"] > 10
    for row in found:
        said = row.extra["provenance"]
        assert [message.role for message in row.messages] == ["user", "assistant"]
        assert said["verdict"]["outcome"] == "accepted" and said["verdict"]["version"] == "v1"
        assert said["verdict"]["isolation"] == "not run"
        assert said["sampler"]["model_digest"] == "d1" and said["sampler"]["template_hash"] == "t1"
        assert said["sampling"]["temperature"] == 1.0 and said["seed"] > 0 and said["task"].startswith("sums/")
    with Store.read(place) as store:
        stored = {(task.id, s.index): s for number, task in store.each_task() for s in store.samples(number)}
    for row in found:
        sample = stored[row.extra["provenance"]["task"], row.extra["provenance"]["sample"]]
        assert row.messages[-1].content == sample.text and row.extra["provenance"]["seed"] == sample.seed
    counts = Counter(row.extra["provenance"]["task"] for row in found)
    assert max(counts.values()) <= 4
    texts = Counter((row.extra["provenance"]["task"], row.messages[-1].content) for row in found)
    assert max(texts.values()) == 1, "the same answer twice for one task"


def test_two_exports_are_equal_and_the_manifest_holds(tmp_path: Path) -> None:
    import hashlib

    place = finished(tmp_path / "r", toy_tasks(10), corpus={"max_per_task": 1, "keep": "shortest"})
    first, second = tmp_path / "a" / "corpus.jsonl", tmp_path / "b" / "corpus.jsonl"
    for path in (first, second):
        path.parent.mkdir()
        export(place, path, unguarded)
    assert first.read_bytes() == second.read_bytes()
    manifests = [path.with_name("corpus.jsonl.manifest.json").read_bytes() for path in (first, second)]
    assert manifests[0] == manifests[1]
    manifest = json.loads(manifests[0])
    assert manifest["sha256"] == hashlib.sha256(first.read_bytes()).hexdigest()
    assert manifest["complete"] and manifest["bytes"] == first.stat().st_size
    with Store.read(place) as store:
        total = store.totals().samples
    assert manifest["rows"] + sum(manifest["left_out"].values()) == total, "every sample is a row or left out"
    assert "biased" in manifest["pass_at_k"] and "over corpus.max_per_task" in manifest["left_out"]
    assert sorted(path.name for path in first.parent.iterdir()) == ["corpus.jsonl", "corpus.jsonl.manifest.json"]


def test_rows_with_a_bench_item_stay_out_and_are_listed(tmp_path: Path) -> None:
    place = finished(tmp_path / "r", toy_tasks(10))
    guard = lambda found: lambda texts: ["bench/7" if "7 + 7" in text else None for text in texts]  # noqa: E731
    manifest = export(place, tmp_path / "c.jsonl", guard)
    assert manifest["left_out"]["contains an item of a bench"] == manifest["bench_items_found"]["bench/7"] > 0
    assert not any(row.extra["provenance"]["task"] == "sums/7" for row in rows(tmp_path / "c.jsonl"))


def test_what_is_somebody_elses_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    place, other = finished(tmp_path / "r", toy_tasks(6)), finished(tmp_path / "elsewhere" / "r", toy_tasks(6))
    out = tmp_path / "corpus.jsonl"
    out.write_text("mine\n")
    with pytest.raises(InputError, match=r"corpus.jsonl exists and was not written from"):
        export(place, out, unguarded)
    assert out.read_text() == "mine\n"
    out.unlink()
    export(place, out, unguarded)
    export(place, out, unguarded)
    with pytest.raises(InputError, match="was not written from"):
        export(other, out, unguarded)
    with pytest.raises(InputError, match="is no folder; make it first"):
        export(place, tmp_path / "nowhere" / "c.jsonl", unguarded)
    with pytest.raises(InputError, match="holds no samples"):
        export(tmp_path, tmp_path / "c.jsonl", unguarded)


def test_without_an_accepted_answer_there_is_no_corpus(tmp_path: Path) -> None:
    place = finished(tmp_path / "r", toy_tasks(3, chance=lambda at: 0.0))
    with pytest.raises(InputError, match="no accepted answer"):
        export(place, tmp_path / "c.jsonl", unguarded)
    assert not list(tmp_path.glob("c.jsonl*"))


# proves RFT-3: a row that was judged unprotected says so
def test_isolation_none_stands_on_every_row(tmp_path: Path) -> None:
    class Bare(ToyVerifier):
        def judge(self, task: Task, completion: str) -> Verdict:
            verdict = super().judge(task, completion)
            return msgspec.structs.replace(verdict, isolation=Isolation.NONE)

    job = sections()
    place = tmp_path / "r"
    place.mkdir()
    (place / "run.yaml").write_text(render_yaml({"kind": "rft", **job.model_dump(mode="json")}))
    run(place, parts(toy_tasks(5), ToySampler(), Bare()), job)
    manifest = export(place, tmp_path / "c.jsonl", unguarded)
    assert manifest["unprotected"] and manifest["isolation"] == {"none": manifest["rows"]}
    assert all(row.extra["provenance"]["verdict"]["isolation"] == "none" for row in rows(tmp_path / "c.jsonl"))


def test_status_counts_and_plans_as_the_job_does(tmp_path: Path) -> None:
    job = sections(spend={"price_per_million_completion_tokens": 1e6})
    place = tmp_path / "r"
    place.mkdir()
    (place / "run.yaml").write_text(render_yaml({"kind": "rft", **job.model_dump(mode="json")}))
    with pytest.raises(SamplerGoneError):
        run(place, parts(toy_tasks(20), ToySampler(lost_after=40)), job)
    half = read_status(place)
    assert half["state"] == "stopped" and half["tasks_done"] < 20 and half["samples_at_most"] > half["samples"]
    run(place, parts(toy_tasks(20), ToySampler()), job, number=2)
    status = read_status(place)
    with Store.read(place) as store:
        again = Scheduler(store, job.budget, 8, 7, lambda task: ())
        totals = store.totals()
    assert status["state"] == "complete" and status["tasks_done"] == status["tasks"] == 20
    assert status["samples"] == status["samples_at_most"] == totals.samples
    assert status["accepted"] == totals.outcomes["accepted"] and status["accepted_distinct"] == again.distinct
    assert status["sources"]["sums"]["rejected"] == totals.outcomes["rejected"]
    assert status["cost"] == pytest.approx(totals.completion_tokens)
    assert {"outcome": "rejected", "reason": "wrong answer", "count": totals.outcomes["rejected"]} in status["reasons"]
    text = render_status(status)
    assert "complete, 20 of 20 tasks done" in text and f"{totals.outcomes['accepted']} accepted" in text
    json.dumps(status)


# proves RFT-5: pass@k is never computed from adaptively stopped samples
def test_pass_at_k_is_refused_where_it_would_be_biased(tmp_path: Path) -> None:
    place = finished(tmp_path / "adaptive", toy_tasks(5))
    with pytest.raises(InputError, match=r"pass@k is not computed: the budget is adaptive"):
        read_status(place, 1)
    assert "biased" in render_status(read_status(place))
    fixed = finished(tmp_path / "fixed", toy_tasks(5), **FIXED)
    status = read_status(fixed, 2)
    with Store.read(fixed) as store:
        counts = [
            sum(each.verdict is not None and each.verdict.outcome is Outcome.ACCEPTED for each in store.samples(n))
            for n, _ in store.each_task()
        ]
    expected = sum(1 - ((8 - c) * (7 - c)) / (8 * 7) for c in counts) / 5
    assert status["pass_at_k"]["mean"] == pytest.approx(expected, abs=1e-12)
    with pytest.raises(InputError, match="fewer than 9 judged samples"):
        read_status(fixed, 9)


def test_pass_at_k_is_the_published_estimate() -> None:
    assert pass_at_k(10, 0, 3) == 0.0 and pass_at_k(10, 8, 3) == 1.0
    assert pass_at_k(5, 2, 1) == pytest.approx(0.4) and pass_at_k(4, 1, 2) == pytest.approx(0.5)
    assert mean_pass_at_k([(4, 1), (4, 4)], 2) == pytest.approx(0.75)


# proves RFT-7
def test_a_dry_run_says_tasks_tokens_hours_and_money() -> None:
    spend = {"price_per_hour": 2.0, "price_per_million_completion_tokens": 10.0, "max_cost": 0.001}
    job = sections(sampling={"samples_per_task": 8, "max_new_tokens": 100}, spend=spend)
    tasks = [*toy_tasks(30), *toy_tasks(10, "more")]
    found = estimate(job, tasks, lambda task: 50, Speed(1000.0, 40.0, 500, 0.0))
    assert (found.tasks, found.sources) == (40, {"sums": 30, "more": 10})
    assert (found.samples_least, found.samples_most) == (80, 320)
    assert (found.prompt_tokens_most, found.completion_tokens_most) == (320 * 50, 32_000)
    assert found.completion_tokens_likely == 320 * 40 and found.hours_most == pytest.approx(32 / 3600)
    assert found.cost_most == pytest.approx(0.32 + 2 * 32 / 3600)
    assert found.cap is not None and "spend.max_cost" in render_estimate(found)
    blind = estimate(job, tasks, None, None)
    assert blind.hours_most is None and blind.cost_most is None and not blind.prompt_tokens_measured
    assert "hours: unknown" in render_estimate(blind) and "guessed" in render_estimate(blind)


def test_prompts_with_tools_and_systems_make_rows(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    tasks = [
        msgspec.structs.replace(task, tools=(tool,), messages=(Message("system", "Be brief."), *task.messages))
        for task in toy_tasks(5)
    ]
    place = finished(tmp_path / "r", tasks)
    export(place, tmp_path / "c.jsonl", unguarded)
    for row in rows(tmp_path / "c.jsonl"):
        assert [message.role for message in row.messages] == ["system", "user", "assistant"] and row.tools == (tool,)
