import json
import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from real_runs import (
    LOADING,
    QUICK,
    Kill,
    Moment,
    events,
    faults,
    final_manifest,
    log_of,
    random_moments,
    report,
    run,
    run_with_kills,
    same_adapter,
    state,
)

from supervisor.protocol.heartbeat import Phase
from supervisor.protocol.paths import RunPaths

PLAIN: Mapping[str, Any] = {"limits.backoff_seconds": 0.0, "limits.admission": "off"}
"""configs/tiny.yaml as it is."""
HARD: Mapping[str, Any] = {
    **PLAIN,
    "model.lora.lora_dropout": 0.1,
    "train.per_device_train_batch_size": 1,
    "train.gradient_accumulation_steps": 4,
    "train.packing": True,
}
"""Dropout, accumulation 4, and with ``short_rows`` several rows in a bin and a second epoch."""


def short_rows(path: Path) -> Mapping[str, Any]:
    """The changes that train on 250 rows, short enough for about two in a bin."""
    rows = [
        {"prompt": f"What is {a} times {b}?", "completion": f"{a} times {b} is {a * b}." + " Count again." * (a % 4)}
        for a in range(2, 27)
        for b in range(11, 21)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return {"data.sources": [{"path": str(path)}]}


def assert_lost_one_step_at_most(run_dir: Path, kills: list[Kill]) -> None:
    """Of the optimiser steps that were finished when the trainer was killed; after the last one nothing is resumed."""
    started = {event.attempt: event.step or 0 for event in events(run_dir, "attempt_started")}
    resumed = [kill for kill in kills if kill.phase not in (*LOADING, Phase.FINISHED)]
    lost = {kill: kill.step - started[kill.attempt + 1] for kill in resumed}
    assert all(steps <= 1 for steps in lost.values()), lost


# proves SUP-1, TRN-12: killed while loading, inside a save and in a step, the adapter is bit for bit the same
def test_three_kills_leave_no_trace_in_the_adapter(tmp_path: Path, undisturbed: Path) -> None:
    moments = [Moment(LOADING, delay=1.0), Moment((Phase.SAVING,), step=4), Moment((Phase.TRAINING,), step=7)]
    code, kills = run_with_kills(tmp_path / "run", QUICK, moments)
    assert code == 0, log_of(tmp_path / "run").read_text()
    assert [kill.attempt for kill in kills] == [1, 2, 3]
    assert kills[0].phase in LOADING
    assert kills[1].phase is Phase.SAVING
    assert same_adapter(tmp_path / "run", undisturbed)
    found = state(tmp_path / "run")
    assert [failure.kind for failure in found.failures] == ["killed"] * 3
    assert (found.attempt, found.step, found.planned_steps) == (4, 12, 12)
    assert report(tmp_path / "run", 4).done == report(undisturbed, 1).done == report(undisturbed, 1).planned
    assert_lost_one_step_at_most(tmp_path / "run", kills)
    assert not list((tmp_path / "run" / "checkpoints").glob(".staging-*"))


# proves SUP-11: killed between two checkpoints that are far apart, and in an evaluation, no more than a step is lost
@pytest.mark.slow
def test_kills_far_from_a_checkpoint_lose_one_step_at_most(tmp_path: Path, undisturbed: Path) -> None:
    changes = {**QUICK, "checkpoint.save_steps": 1000, "eval.eval_steps": 2}
    moments = [Moment((Phase.TRAINING,), step=5), Moment((Phase.EVALUATING,), step=8)]
    code, kills = run_with_kills(tmp_path / "run", changes, moments)
    assert code == 0, log_of(tmp_path / "run").read_text()
    assert [kill.attempt for kill in kills] == [1, 2]
    assert_lost_one_step_at_most(tmp_path / "run", kills)
    assert same_adapter(tmp_path / "run", undisturbed)
    assert (tmp_path / "run" / "best").readlink() == (undisturbed / "best").readlink()
    assert not list((tmp_path / "run" / "checkpoints").glob(".staging-*"))


IN_BATCHES: Mapping[str, Any] = {**QUICK, "data.validation.max_rows": 8, "eval.per_device_eval_batch_size": 1}
"""An evaluation of about twenty batches, after every second step."""


# proves SUP-11, TRN-8, TRN-12: with the supervisor or without; each evaluation comes to what it would have come to
@pytest.mark.slow
@pytest.mark.parametrize("supervisor_too", [False, True])
def test_an_evaluation_goes_on_behind_what_it_had(tmp_path: Path, supervisor_too: bool) -> None:
    reference, place = tmp_path / "reference", tmp_path / "run"
    assert run(reference, IN_BATCHES) == 0, log_of(reference).read_text()
    fault = {"do": "die_evaluating", "at": 6, "batch": 5, "attempt": 1, "supervisor": supervisor_too}
    code = run(place, {**IN_BATCHES, **faults(fault)})
    if supervisor_too:
        assert code == -signal.SIGKILL
        code = run(place, {**IN_BATCHES, **faults(fault)})
    assert code == 0, log_of(place).read_text()
    (resumed,) = events(place, "evaluation_resumed")
    assert (resumed.attempt, resumed.step, resumed.data["batches"]) == (2, 6, 5)
    assert same_adapter(place, reference)
    found, expected = (
        [(event.step, event.data["eval_loss"], event.data["verdict"]) for event in events(each, "evaluation")]
        for each in (place, reference)
    )
    assert found == expected and len(expected) > 5
    assert not RunPaths(place).kept_batches().exists()


# proves SUP-1, TRN-12: ten kills at random moments in each of two settings
@pytest.mark.slow
@pytest.mark.parametrize("setting", ["plain", "hard"])
def test_random_kills(tmp_path: Path, setting: str) -> None:
    seed = int(os.environ.get("MENS_KILL_SEED") or random.SystemRandom().randrange(10_000))
    print(f"\n{setting}, MENS_KILL_SEED={seed}")
    choose = random.Random(f"{setting} {seed}")
    changes = PLAIN if setting == "plain" else {**HARD, **short_rows(tmp_path / "rows.jsonl")}
    reference = tmp_path / "reference"
    assert run(reference, changes) == 0, log_of(reference).read_text()
    manifest = final_manifest(reference)
    if setting == "hard":
        assert manifest.epoch > 1, "the second epoch was not reached"
        assert manifest.rows_seen > 1.5 * 40 * 4, "packing did not put several rows into a bin"
    print(f"{'run':<8} {'killed while':<12} {'step':>4}  {'half-written':<25} resumed from  completed  identical")
    wrong: list[str] = []
    kills: list[Kill] = []
    for number in (1, 2):
        place = tmp_path / f"{setting}-{number}"
        code, struck = run_with_kills(place, changes, random_moments(choose, 5, last_step=40))
        identical = code == 0 and same_adapter(place, reference)
        started = {event.attempt: event.step for event in events(place, "attempt_started")}
        for kill in struck:
            print(
                f"{place.name:<8} {kill.phase.name.lower():<12} {kill.step:>4}  {', '.join(kill.staging):<25} "
                f"{started.get(kill.attempt + 1, '?'):>12}  {code == 0!s:<9}  {identical}",
                flush=True,
            )
        assert_lost_one_step_at_most(place, struck)
        if not identical or len(struck) != 5:
            wrong.append(f"{place.name}: {len(struck)} kills, exit code {code}, identical {identical}")
        kills += struck
    assert not wrong
    assert sum(kill.phase is Phase.SAVING for kill in kills) >= 1
    assert sum(kill.phase in LOADING for kill in kills) >= 1
