"""A job from its tasks to its last verdict, with toy parts."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from toy_job import ToySampler, ToyVerifier, attempt, final_set, parts, run, sections, toy_tasks

from rft.diversity import answer_key
from rft.progress import Progress
from rft.run import BACKLOG_PER_WORKER, JudgeGoneError, SamplerGoneError, run_attempt
from rft.samplers.sampler import Completion, Refused, Request, SamplerLostError
from rft.store import Store
from rft.tasks.task import Check, Task
from rft.verifiers.cache import CachedVerifier
from supervisor.protocol.attempt import ExitKind
from supervisor.protocol.events import read_events
from supervisor.protocol.heartbeat import read_heartbeat
from supervisor.protocol.paths import RunPaths
from trainer.data.messages import Message
from trainer.errors import CheckpointIncompatibleError, DataProblemError, StopRequestedError
from trainer.reporting import Reporter

FIXED = {"budget": {"adaptive": False}}


def events(run_dir: Path, kind: str) -> list[Any]:
    return [event for event in read_events(RunPaths(run_dir).events) if event.kind == kind]


# proves RFT-1, RFT-5
def test_a_job_runs_to_its_end(tmp_path: Path) -> None:
    sampler = ToySampler()
    report = run(tmp_path, parts(toy_tasks(20), sampler))
    assert report.kind is ExitKind.COMPLETED and report.planned == report.done and not report.stopped_early
    found = final_set(tmp_path)
    assert report.done["steps"] == len(found) == len(sampler.asked) < 20 * 8 and report.done["rows"] == 20
    assert sampler.closed
    per_task = Counter(task for task, *_ in found)
    assert per_task["sums/4"] <= 4, "always solved: stopped early"
    assert per_task["sums/0"] == 8, "never solved, but too few samples to call it hopeless"
    assert all(outcome in ("accepted", "rejected") for *_, outcome in found)
    beat = read_heartbeat(RunPaths(tmp_path).attempt(1).heartbeat)
    assert beat is not None and beat.step == beat.planned_steps == len(found)
    assert events(tmp_path, "plan")[0].data["planned_steps"] == 160
    last = events(tmp_path, "progress")[-1]
    assert last.step == len(found) and "accepted/s" in last.message
    assert last.data["tokens_seen"] == report.done["tokens"]
    assert events(tmp_path, "corpus")[0].data["tasks"] == 20


def test_without_adaptive_budget_every_task_gets_all_samples(tmp_path: Path) -> None:
    report = run(tmp_path, parts(toy_tasks(5), ToySampler()), sections(**FIXED))
    assert report.done["steps"] == 40
    assert Counter(task for task, *_ in final_set(tmp_path)) == Counter({f"sums/{at}": 8 for at in range(5)})


# proves RFT-4: lost again and again, the same samples in the end
def test_a_job_that_loses_its_sampler_goes_on_and_ends_with_the_same_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rft.scheduler.PILOT_TASKS", 12)
    run(tmp_path / "whole", parts(toy_tasks(40), ToySampler()))
    attempt, asked, kinds = 0, 0, set()
    while True:
        attempt += 1
        sampler = ToySampler(room=5 + attempt % 7, lost_after=30)
        try:
            run(tmp_path / "lost", parts(toy_tasks(40), sampler), number=attempt)
            break
        except SamplerGoneError as error:
            kinds.add(error.kind)
        finally:
            asked += len(sampler.asked)
    assert attempt > 3 and kinds == {ExitKind.PROGRAM_ERROR}
    assert final_set(tmp_path / "lost") == final_set(tmp_path / "whole")
    assert asked < 1.5 * len(final_set(tmp_path / "whole"))


def test_stored_samples_without_verdict_are_judged_and_not_drawn_again(tmp_path: Path) -> None:
    run(tmp_path, parts(toy_tasks(5), ToySampler()), sections(**FIXED))
    before = final_set(tmp_path)
    with Store.open(tmp_path) as store, store.batch():
        store._db.execute("UPDATE sample SET outcome = NULL, key = NULL WHERE place IN (1, 3)")
        store._db.execute("DELETE FROM verdict WHERE place IN (1, 3)")
    sampler, judge = ToySampler(), ToyVerifier()
    run(tmp_path, parts(toy_tasks(5), sampler, judge), sections(**FIXED), number=2)
    assert sampler.asked == [] and len(judge.judged) == 10
    assert final_set(tmp_path) == before


def test_a_complete_job_needs_no_sampler(tmp_path: Path) -> None:
    run(tmp_path, parts(toy_tasks(5), ToySampler()))

    class Unusable(ToySampler):
        def start(self, beat: Callable[[], None] = lambda: None) -> Any:
            raise AssertionError("it was started")

    assert run(tmp_path, parts(toy_tasks(5), Unusable()), number=2).kind is ExitKind.COMPLETED


class Restarting(ToySampler):
    """Dies after 20 samples and loads for so many turns; ``at_load`` is called at the first of them."""

    def __init__(self, turns: int, at_load: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._turns, self._at_load = turns, at_load

    def wait(self, seconds: float) -> list[Completion | Refused]:
        if len(self.asked) < 20 or not self._turns:
            self.loading = False
            return super().wait(seconds)
        if not self.loading:
            self._at_load()
        self.loading = True
        self._turns -= 1
        return []


# proves RFT-1: a sampler that is started again is no hang, however long it loads
def test_the_heartbeat_goes_on_while_a_sampler_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[int] = []
    monkeypatch.setattr(Progress, "alive", lambda self: beats.append(1))
    assert run(tmp_path, parts(toy_tasks(20), Restarting(turns=50))).kind is ExitKind.COMPLETED
    silent = len(beats)
    beats.clear()
    assert run(tmp_path / "other", parts(toy_tasks(20), Restarting(turns=0))).kind is ExitKind.COMPLETED
    assert silent >= len(beats) + 50


# proves SUP-6: SIGTERM does not wait for a model to load
def test_asked_to_stop_while_a_sampler_loads(tmp_path: Path) -> None:
    sampler = Restarting(turns=10**9, at_load=lambda: os.kill(os.getpid(), signal.SIGTERM))
    spec = attempt(tmp_path)
    with pytest.raises(StopRequestedError):  # and not after 0.4 times a day
        run_attempt(sections(), spec, Reporter(spec), 86_400.0, parts(toy_tasks(20), sampler))
    assert final_set(tmp_path), "what was drawn before is stored"


# proves RFT-7: what a sampler costs while it loads, and when it is lost, is counted
def test_seconds_of_loading_and_of_a_lost_sampler_are_spent(tmp_path: Path) -> None:
    class Slow(ToySampler):
        def start(self, beat: Callable[[], None] = lambda: None) -> Any:
            time.sleep(0.3)
            return super().start(beat)

        def wait(self, seconds: float) -> Any:
            time.sleep(0.2)
            raise SamplerLostError("gone at once")

    with pytest.raises(SamplerGoneError):
        run(tmp_path, parts(toy_tasks(20), Slow()))
    with Store.read(tmp_path) as store:
        assert store.seconds()[1] >= 0.5


# proves RFT-6: which answers are the same is one question, whenever they were drawn
def test_another_corpus_distinct_compares_all_answers_anew(tmp_path: Path) -> None:
    def keys() -> list[str | None]:
        with Store.read(tmp_path) as store:
            return [state.key for _, _, states in store.each_states() for state in states]

    once = sections(**FIXED, corpus={"distinct": "text"})
    run(tmp_path, parts(toy_tasks(5), ToySampler()), once)
    before = keys()
    run(tmp_path, parts(toy_tasks(5), ToySampler()), once, number=2)
    assert keys() == before and not events(tmp_path, "change_accepted")
    run(tmp_path, parts(toy_tasks(5), ToySampler()), sections(**FIXED, corpus={"distinct": "tokens"}), number=3)
    accepted = [key for key in before if key]
    assert f"{len(accepted)} accepted answers are compared anew" in events(tmp_path, "change_accepted")[0].message
    assert len(accepted) == len([key for key in keys() if key]) and not set(accepted) & set(keys())
    with Store.read(tmp_path) as store:
        for number, _ in store.each_task():
            for sample in store.samples(number):
                assert sample.key == (answer_key(sample.text, "tokens") if sample.key else None)


# proves RFT-7: a damaged cache costs nothing, and is spoken of
def test_a_job_says_that_its_cache_of_verdicts_was_damaged(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.sqlite"
    path.write_bytes(b"no database, but long enough to be taken for one" * 50)
    cached = dataclasses.replace(
        parts(toy_tasks(5), ToySampler()), build_verifier=lambda *_: CachedVerifier(ToyVerifier(), path)
    )
    assert run(tmp_path / "run", cached).kind is ExitKind.COMPLETED
    (said,) = events(tmp_path / "run", "warning")
    assert "the cache of verdicts was damaged" in said.message and "set aside" in said.message


# proves RFT-4: a run directory belongs to one job
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"job": sections(seed=8)}, "seed was 7 and is 8 now. Put it back, start in a new --run-dir"),
        ({"job": sections(sampling={"temperature": 0.5})}, "sampling was .* --accept-change sampling"),
        ({"sampler": ToySampler(digest="d2")}, "sampler.model was .*d1 and is .*d2 now.* --accept-change sampler"),
        ({"verifier": ToyVerifier("v2")}, "verifiers was sums: toy v1 and is sums: toy v2 now"),
        ({"tasks": toy_tasks(31)}, r"tasks was 30 tasks, .* and is 31 tasks, .* --accept-change tasks"),
    ],
)
def test_another_job_is_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    def go(number: int, **given: Any) -> Any:
        made = parts(given.get("tasks", toy_tasks(30)), given["sampler"], given.get("verifier"))
        return run(tmp_path, made, given.get("job"), number, given.get("accepted", ()))

    with pytest.raises(SamplerGoneError):
        go(1, sampler=ToySampler(lost_after=10))
    with pytest.raises(CheckpointIncompatibleError, match=message):
        go(2, **{"sampler": ToySampler(), **changed})
    name = message.split(".")[0].split(" ")[0]
    accepted = {"sampler": ToySampler(), **changed, "accepted": (name,)}
    if name == "seed":
        with pytest.raises(CheckpointIncompatibleError):
            go(3, **accepted)
        return
    assert go(3, **accepted).kind is ExitKind.COMPLETED
    assert "as accepted" in events(tmp_path, "change_accepted")[0].message
    with Store.read(tmp_path) as store:
        assert [entry[1].split(".")[0] for entry in store.changes()] == [name]


def test_a_task_that_changed_under_its_id_is_refused_even_when_accepted(tmp_path: Path) -> None:
    with pytest.raises(SamplerGoneError):
        run(tmp_path, parts(toy_tasks(30), ToySampler(lost_after=10)))
    other = toy_tasks(30, chance=lambda at: 0.5)
    with pytest.raises(DataProblemError, match=r"toy.jsonl:1: task sums/0 is another one than before"):
        run(tmp_path, parts(other, ToySampler()), number=2, accepted=("tasks",))


def test_tasks_that_went_keep_their_samples_but_count_no_more(tmp_path: Path) -> None:
    run(tmp_path, parts(toy_tasks(6), ToySampler()), sections(**FIXED))
    report = run(tmp_path, parts(toy_tasks(4), ToySampler()), sections(**FIXED), number=2, accepted=("tasks",))
    assert report.done["steps"] == 32 and len(final_set(tmp_path)) == 32
    with Store.read(tmp_path) as store:
        assert store.totals().samples == 48


# proves RFT-7
def test_a_cap_ends_the_job_in_good_order(tmp_path: Path) -> None:
    job = sections(spend={"max_completion_tokens": 100, "price_per_million_completion_tokens": 2e4})
    sampler = ToySampler(room=4)
    report = run(tmp_path, parts(toy_tasks(50), sampler), job)
    assert report.kind is ExitKind.COMPLETED and report.planned == report.done
    assert "spend.max_completion_tokens allows 100" in report.stopped_early and report.stopped_early.endswith(".")
    assert report.planned_at_first["rows"] == 50 and f"cost {report.done['tokens'] * 0.02:.2f}" in report.message
    assert 100 <= report.done["tokens"] < 300
    found = final_set(tmp_path)
    assert len(found) == len(sampler.asked) and all(outcome for *_, outcome in found), "what was paid for is judged"
    again = run(tmp_path, parts(toy_tasks(50), ToySampler()), job, number=2)
    assert again.stopped_early and len(final_set(tmp_path)) == len(found), "the cap holds over all attempts"


# proves RFT-4, RFT-8: what a judge cannot say is no rejection
def test_samples_that_the_judge_fails_on_are_left_unscored_and_said(tmp_path: Path) -> None:
    judge = ToyVerifier(fails=lambda task, text: task.id == "sums/4" and text != task.gold and bool(text.strip("`\n")))
    report = run(tmp_path, parts(toy_tasks(5), ToySampler(), judge), sections(**FIXED))
    unscored = [row for row in final_set(tmp_path) if row[-1] == "error"]
    assert unscored and f"{len(unscored)} left unscored, the judge failed on them" in report.message
    assert report.kind is ExitKind.COMPLETED
    tried = Counter(text for task, text in judge.judged if task == "sums/4")
    assert max(tried.values()) >= 3, "each was tried again"
    well = ToyVerifier()
    again = run(tmp_path, parts(toy_tasks(5), ToySampler(), well), sections(**FIXED), number=2)
    assert "unscored" not in again.message and not [row for row in final_set(tmp_path) if row[-1] == "error"]


def test_judges_that_only_fail_end_the_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rft.judging.PAUSES", (0.0, 0.0))
    broken = ToyVerifier(fails=lambda task, text: text != task.gold and bool(text.strip("`\n")))
    with pytest.raises(JudgeGoneError, match=r"toy failed on 16 samples in a row: no sandbox \(it is broken\)"):
        run(tmp_path, parts(toy_tasks(24), ToySampler(), broken), sections(**FIXED))
    report = run(tmp_path, parts(toy_tasks(24), ToySampler()), sections(**FIXED), number=2)
    assert report.done["steps"] == 192 and "unscored" not in report.message


# proves RFT-7: found out before a token is spent
def test_tasks_whose_gold_answer_is_rejected_are_refused_before_sampling(tmp_path: Path) -> None:
    tasks = toy_tasks(5)
    tasks[2] = msgspec.structs.replace(tasks[2], gold="5")
    sampler = ToySampler()
    with pytest.raises(DataProblemError, match=r"sums/2 \(toy.jsonl:3\): its gold answer: wrong answer"):
        run(tmp_path, parts(tasks, sampler))
    tasks[2] = Task("sums/2", "sums", (Message("user", "?"),), Check("toy", {}))
    with pytest.raises(DataProblemError, match=r"sums/2.*has no answer"):
        run(tmp_path / "b", parts(tasks, sampler))
    assert sampler.asked == []


def test_a_prompt_that_is_too_long_costs_its_task_only(tmp_path: Path) -> None:
    tasks = toy_tasks(5)
    tasks[1] = msgspec.structs.replace(tasks[1], messages=(Message("user", "What is 1 + 1? too long 1.0"),))
    report = run(tmp_path, parts(tasks, ToySampler()))
    assert report.kind is ExitKind.COMPLETED and report.planned == report.done
    assert "2 never drawn, the sampler refused them" in report.message


# proves RFT-4: asked to stop, what arrives in time is stored
def test_a_job_that_is_asked_to_stop_stores_what_is_on_its_way(tmp_path: Path) -> None:
    class Stopped(ToySampler):
        def wait(self, seconds: float) -> list[Completion | Refused]:
            if len(self.asked) == 24:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().wait(seconds)

    sampler = Stopped()
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(StopRequestedError, match=r"asked to stop; .* the same command goes on"):
            run(tmp_path, parts(toy_tasks(100), sampler))
    finally:
        signal.signal(signal.SIGTERM, before)
    found = final_set(tmp_path)
    assert found and len(found) == len(sampler.asked) and all(outcome for *_, outcome in found)
    assert sampler.closed


def test_nothing_is_asked_for_while_the_judges_are_behind(tmp_path: Path) -> None:
    judge = ToyVerifier(seconds=0.01)
    most = 0

    class Watched(ToySampler):
        def submit(self, requests: Sequence[Request]) -> None:
            nonlocal most
            most = max(most, len(self.asked) - (len(judge.judged) - gold))
            super().submit(requests)

    gold = 3 * 10  # judgements before the first sample: gold and empty answers
    sampler = Watched(room=4)
    run(tmp_path, parts(toy_tasks(10), sampler, judge), sections(judge={"workers": 1}, **FIXED))
    assert len(sampler.asked) == 80 and 0 < most <= BACKLOG_PER_WORKER + 4 + 1


# proves RFT-4, RFT-7: what was paid for is judged, also when the job was killed before it was and its cap is reached
def test_what_is_stored_is_judged_although_nothing_more_may_be_asked_for(tmp_path: Path) -> None:
    job = sections(spend={"max_completion_tokens": 100})
    run(tmp_path, parts(toy_tasks(50), ToySampler(room=4)), job)
    with Store.open(tmp_path) as store, store.batch():
        store._db.execute("UPDATE sample SET outcome = NULL, key = NULL, tries = 0")
        store._db.execute("DELETE FROM verdict")
    before = final_set(tmp_path)
    assert before and not any(outcome for *_, outcome in before)
    again = run(tmp_path, parts(toy_tasks(50), ToySampler()), job, number=2)
    found = final_set(tmp_path)
    assert len(found) == len(before) == again.done["steps"] and all(outcome for *_, outcome in found)


# proves RFT-4: a refusal of one sample, whenever it comes, decides nothing about its siblings
@pytest.mark.parametrize("room", [2, 8])
def test_one_refused_sample_leaves_its_siblings(tmp_path: Path, room: int) -> None:
    sampler = ToySampler(room=room, refuses=lambda request: request.index == 1)
    report = run(tmp_path, parts(toy_tasks(3), sampler), sections(**FIXED))
    assert len(final_set(tmp_path)) == 3 * 8
    assert "3 never drawn, the sampler refused them" in report.message


# proves RFT-7: what was refused before anything was sampled can be put right in place
def test_tasks_can_be_mended_as_long_as_nothing_was_sampled(tmp_path: Path) -> None:
    wrong = [msgspec.structs.replace(task, gold="no") if task.id == "sums/2" else task for task in toy_tasks(4)]
    with pytest.raises(DataProblemError, match="sums/2"):
        run(tmp_path, parts(wrong, ToySampler()))
    assert run(tmp_path, parts(toy_tasks(4), ToySampler()), number=2).kind is ExitKind.COMPLETED
