import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from scripted_runs import config, events, final_adapter, run, state

from supervisor.protocol.attempt import read_spec
from supervisor.protocol.paths import RunPaths
from supervisor.state import Outcome
from supervisor.supervise import RunRefused
from supervisor.yaml_source import read_yaml


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    place = tmp_path_factory.mktemp("undisturbed") / "run"
    assert run(config(), place) is Outcome.COMPLETED
    return final_adapter(place)


# proves SUP-1: killed in the middle, inside a save, by a bad pointer or while loading, the run completes by itself
def test_deaths_of_all_sorts_end_in_the_undisturbed_result(tmp_path: Path, undisturbed: bytes) -> None:
    faults: list[dict[str, Any]] = [
        {"at": 0, "do": "kill9", "attempt": 1},
        {"at": 5, "do": "segfault", "attempt": 2},
        {"at": 6, "do": "save_kill9", "attempt": 3},
        {"at": 7, "do": "torn_staging", "attempt": 4},
        {"at": 11, "do": "exit", "code": 1, "attempt": 5},
    ]
    assert run(config(*faults), tmp_path / "r", max_attempts=6) is Outcome.COMPLETED
    assert final_adapter(tmp_path / "r") == undisturbed
    found = state(tmp_path / "r")
    assert [failure.kind for failure in found.failures] == ["killed", "native_crash", "killed", "killed", "unknown"]
    assert (found.attempt, found.step, found.planned_steps, found.tokens_seen) == (6, 12, 12, 1200)
    assert found.last_checkpoint == "checkpoints/step-00000012"
    left = [entry.name for entry in (tmp_path / "r" / "checkpoints").iterdir() if entry.name.startswith(".")]
    assert left == []


# proves SUP-1
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_steps(tmp_path: Path, undisturbed: bytes, seed: int) -> None:
    choose = random.Random(seed)
    faults = [{"at": choose.randint(0, 12), "do": "kill9", "attempt": attempt} for attempt in (1, 2, 3)]
    assert run(config(*faults), tmp_path / "r") is Outcome.COMPLETED
    assert final_adapter(tmp_path / "r") == undisturbed


# proves SUP-2, SUP-3, SUP-4: the whole ladder is walked, announced, priced, and named when giving up
def test_a_deterministic_oom_walks_every_rung_then_gives_up(tmp_path: Path) -> None:
    loaded = config({"at": 8, "do": "oom", "limit": 0}, relief={"seq_len_rungs": [2048, 1024, 512]})
    assert run(loaded, tmp_path / "r", max_attempts=20) is Outcome.GAVE_UP
    found = state(tmp_path / "r")
    expected = ["halve_micro_batch", "halve_micro_batch", "shorten_sequence", "shorten_sequence", "switch_model"]
    assert [entry.rung for entry in found.relief] == expected
    for rung in {*expected, "trim_retention"}:
        assert rung in found.explanation
    assert "cuda_oom at step 7" in found.explanation
    assert "What to do now" in found.explanation
    assert [event.data["rung"] for event in events(tmp_path / "r", "relief")] == expected
    assert "NEW run from step 0" in events(tmp_path / "r", "relief")[-1].message
    assert (found.lineage, found.attempt) == (2, 6)
    effective, _ = read_yaml(RunPaths(tmp_path / "r").attempt(6).effective)
    assert effective["train"]["per_device_train_batch_size"] == 1
    assert effective["train"]["gradient_accumulation_steps"] == 8
    assert (effective["train"]["max_length"], effective["model"]["base"]) == (512, "small")
    assert read_yaml(RunPaths(tmp_path / "r").run_yaml)[0]["model"]["base"] == "big"
    assert (tmp_path / "r" / "checkpoints" / "step-00000006").is_dir()
    assert (tmp_path / "r" / "checkpoints-2" / "step-00000006").is_dir()


# proves SUP-3: one rung is enough, and the run goes on from its checkpoint with it
def test_relief_that_helps(tmp_path: Path) -> None:
    assert run(config({"at": 8, "do": "oom", "limit": 2 * 2048}), tmp_path / "r") is Outcome.COMPLETED
    found = state(tmp_path / "r")
    assert [entry.rung for entry in found.relief] == ["halve_micro_batch"]
    assert found.attempt == 2
    assert events(tmp_path / "r", "attempt_started")[-1].step == 6


# proves SUP-3: a fallback model starts a lineage of its own at step 0 and completes there
def test_switch_model_is_a_new_lineage(tmp_path: Path) -> None:
    loaded = config({"at": 8, "do": "oom", "limit": 0, "attempt": 1}, relief={"ladder": ["switch_model"]})
    assert run(loaded, tmp_path / "r") is Outcome.COMPLETED
    assert (tmp_path / "r" / "final").resolve() == tmp_path / "r" / "checkpoints-2" / "step-00000012"
    assert events(tmp_path / "r", "attempt_started")[-1].step == 0


# proves SUP-2
@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("data_error", Outcome.GAVE_UP),
        ("config_error", Outcome.FAILED_CONFIG),
        ("no_gpu", Outcome.GAVE_UP),
        ("dependency_error", Outcome.GAVE_UP),
        ("checkpoint_incompatible", Outcome.GAVE_UP),
        ("nan_loss", Outcome.GAVE_UP),
    ],
)
def test_what_no_retry_can_mend_stops_at_once(tmp_path: Path, kind: str, outcome: Outcome) -> None:
    loaded = config({"at": 5, "do": "fail", "kind": kind, "message": "rows.jsonl:17: no answer"})
    assert run(loaded, tmp_path / "r") is outcome
    found = state(tmp_path / "r")
    assert found.attempt == 1
    assert f"{kind} at step 4" in found.explanation
    assert "rows.jsonl:17" in found.explanation


# proves SUP-2
def test_the_cap_holds_and_a_new_run_gets_new_attempts(tmp_path: Path) -> None:
    loaded = config({"at": 5, "do": "kill9"})
    assert run(loaded, tmp_path / "r", max_attempts=3) is Outcome.GAVE_UP
    assert state(tmp_path / "r").attempt == 3
    assert "All 3 attempts" in state(tmp_path / "r").explanation
    assert run(loaded, tmp_path / "r", max_attempts=2) is Outcome.GAVE_UP
    assert (state(tmp_path / "r").attempt, state(tmp_path / "r").attempts_before) == (5, 3)


# proves SUP-2: the same crash at the same step is not tried a third time
def test_a_deterministic_bug_stops_before_the_cap(tmp_path: Path) -> None:
    loaded = config({"at": 5, "do": "fail", "kind": "program_error", "message": "index 4 is out of bounds"})
    assert run(loaded, tmp_path / "r", max_attempts=9) is Outcome.GAVE_UP
    assert state(tmp_path / "r").attempt == 2
    assert "deterministic" in state(tmp_path / "r").explanation


# proves SUP-15
@pytest.mark.parametrize("fault", [{"do": "exit", "code": 0}, {"do": "claim_completed"}])
def test_a_trainer_that_ends_well_too_early_is_not_completed(tmp_path: Path, fault: dict[str, Any]) -> None:
    assert run(config({"at": 7, **fault}), tmp_path / "r") is Outcome.GAVE_UP
    assert [failure.kind for failure in state(tmp_path / "r").failures] == ["completed_early"] * 2
    assert not (tmp_path / "r" / "final").exists()


# proves SUP-15: once is a mishap, the run still completes
def test_an_early_end_once_is_mended(tmp_path: Path, undisturbed: bytes) -> None:
    assert run(config({"at": 7, "do": "exit", "code": 0, "attempt": 1}), tmp_path / "r") is Outcome.COMPLETED
    assert final_adapter(tmp_path / "r") == undisturbed


def damaged(place: Path, *names: str) -> None:
    for name in names:
        path = place / "checkpoints" / name / "adapter.bin"
        data = bytearray(path.read_bytes())
        data[0] ^= 1
        path.write_bytes(data)


# proves SUP-14: the bad newest one is quarantined loudly, the one before it is used
def test_a_flipped_bit_costs_one_checkpoint(tmp_path: Path, undisturbed: bytes) -> None:
    place = tmp_path / "r"
    loaded = config({"at": 8, "do": "fail", "kind": "data_error", "attempt": 1})
    run(loaded, place)
    damaged(place, "step-00000006")
    assert run(loaded, place) is Outcome.COMPLETED
    assert final_adapter(place) == undisturbed
    (event,) = events(place, "checkpoint_quarantined")
    assert "adapter.bin: content differs" in event.message
    assert (place / "checkpoints" / "quarantine" / "step-00000006" / "adapter.bin").is_file()
    assert events(place, "attempt_started")[-1].step == 3


# proves SUP-14: never a silent restart from zero, not even when asked twice
def test_all_bad_stops_with_an_explanation(tmp_path: Path) -> None:
    place = tmp_path / "r"
    loaded = config({"at": 8, "do": "fail", "kind": "data_error", "attempt": 1})
    run(loaded, place)
    damaged(place, "step-00000003", "step-00000006")
    for _ in range(2):
        assert run(loaded, place) is Outcome.GAVE_UP
        assert "quarantine" in state(place).explanation
        assert "new --run-dir" in state(place).explanation
    assert state(place).attempt == 1
    shutil.rmtree(place / "checkpoints")
    assert run(loaded, place) is Outcome.GAVE_UP


# proves SUP-14: digests are right, yet it does not load: distrusted, the one before it is used
def test_a_checkpoint_that_the_trainer_cannot_load_is_stepped_over(tmp_path: Path, undisturbed: bytes) -> None:
    loaded = config(
        {"at": 8, "do": "kill9", "attempt": 1}, {"at": 0, "do": "fail", "kind": "checkpoint_corrupt", "attempt": 2}
    )
    assert run(loaded, tmp_path / "r") is Outcome.COMPLETED
    assert final_adapter(tmp_path / "r") == undisturbed
    assert [event.step for event in events(tmp_path / "r", "attempt_started")] == [0, 6, 3]


# proves SUP-14: digests are right, yet whoever loads it dies: distrusted after the second time
@pytest.mark.parametrize("what", ["segfault", "raise"])
def test_a_checkpoint_that_kills_its_loader_twice(tmp_path: Path, undisturbed: bytes, what: str) -> None:
    deadly = {"at": 0, "do": what, "resumed_from": 6}
    loaded = config({"at": 8, "do": "kill9", "attempt": 1}, deadly)
    assert run(loaded, tmp_path / "r") is Outcome.COMPLETED
    assert final_adapter(tmp_path / "r") == undisturbed
    assert [event.step for event in events(tmp_path / "r", "attempt_started")] == [0, 6, 6, 3]
    (event,) = events(tmp_path / "r", "checkpoint_quarantined")
    assert "step 6" in event.message and "twice in a row" in event.message
    assert (tmp_path / "r" / "checkpoints" / "quarantine" / "step-00000006").is_dir()


# proves SUP-14: without an older one there is nothing to step back to, and no start from zero
def test_the_only_checkpoint_kills_its_loader(tmp_path: Path) -> None:
    loaded = config({"at": 5, "do": "kill9", "attempt": 1}, {"at": 0, "do": "raise", "resumed_from": 3})
    assert run(loaded, tmp_path / "r") is Outcome.GAVE_UP
    assert [event.step for event in events(tmp_path / "r", "attempt_started")] == [0, 3, 3]
    assert "deterministic" in state(tmp_path / "r").explanation
    assert (tmp_path / "r" / "checkpoints" / "step-00000003").is_dir()


# proves SUP-13: retention keeps 3 and the best, and the links are right
def test_retention_and_links(tmp_path: Path) -> None:
    loaded = config(train={"max_steps": 30, "step_seconds": 0.02})
    assert run(loaded, tmp_path / "r") is Outcome.COMPLETED
    kept = sorted(path.name for path in (tmp_path / "r" / "checkpoints").glob("step-*"))
    assert kept == ["step-00000006", "step-00000024", "step-00000027", "step-00000030"]
    assert (tmp_path / "r" / "best").resolve().name == "step-00000006"
    assert state(tmp_path / "r").best_checkpoint == "checkpoints/step-00000006"
    assert (tmp_path / "r" / "final").resolve().name == "step-00000030"


def test_a_completed_run_says_so(tmp_path: Path) -> None:
    run(config(), tmp_path / "r")
    assert run(config(), tmp_path / "r") is Outcome.COMPLETED
    assert run(None, tmp_path / "r") is Outcome.COMPLETED
    assert state(tmp_path / "r").attempt == 1
    assert len(events(tmp_path / "r", "already_completed")) == 2
    operational = config(limits={"max_attempts": 9}, launch={"env": {"A": "1"}})
    assert run(operational, tmp_path / "r") is Outcome.COMPLETED
    for accepted in ((), ("train.max_steps",)):
        with pytest.raises(RunRefused, match=r"completed already.*train\.max_steps: 12 -> 24.*new --run-dir"):
            run(config(train={"max_steps": 24}), tmp_path / "r", accept_changes=accepted)


# proves SUP-15: completed means that the last checkpoint still verifies; a lost link is made again, nothing else is
def test_a_completed_run_whose_adapter_was_lost_is_not_completed(tmp_path: Path) -> None:
    place = tmp_path / "r"
    assert run(config(), place) is Outcome.COMPLETED
    adapter = final_adapter(place)
    paths = RunPaths(place)
    paths.final.unlink()
    assert run(config(), place) is Outcome.COMPLETED
    assert final_adapter(place) == adapter
    paths.final.unlink()
    paths.final.mkdir()
    with pytest.raises(RunRefused, match="should be a link"):
        run(config(), place)
    paths.final.rmdir()
    last = paths.checkpoint(12)
    victim = next(path for path in sorted(last.iterdir()) if path.name != "manifest.json")
    victim.write_bytes(bytes([victim.read_bytes()[0] ^ 1]) + victim.read_bytes()[1:])
    with pytest.raises(RunRefused, match=rf"does not verify: {victim.name}"):
        run(config(), place)
    shutil.rmtree(last)
    with pytest.raises(RunRefused, match="is gone"):
        run(config(), place)


# proves TRN-13 (the supervisor's half): another configuration is refused key by key, and accepted key by key
def test_another_configuration(tmp_path: Path) -> None:
    place = tmp_path / "r"
    fault = {"at": 8, "do": "fail", "kind": "data_error", "attempt": 1}
    run(config(fault), place)
    changed = {"learning_rate": 2e-4, "max_length": 1024}
    with pytest.raises(RunRefused) as refused:
        run(config(fault, train=changed), place)
    for words in (
        "train.learning_rate: 0.0001 -> 0.0002",
        "train.max_length: 2048 -> 1024",
        "--accept-change train.max_length",
    ):
        assert words in str(refused.value)
    with pytest.raises(RunRefused, match=r"train\.max_length"):
        run(config(fault, train=changed), place, accept_changes=("train.learning_rate",))
    accepted = ("train.learning_rate", "train.max_length")
    assert run(config(fault, train=changed), place, accept_changes=accepted) is Outcome.COMPLETED
    spec = RunPaths(place).attempt(2).spec.read_text()
    assert all(f'"{key}"' in spec for key in accepted)
    effective, _ = read_yaml(RunPaths(place).attempt(2).effective)
    assert effective["train"]["learning_rate"] == 2e-4
    assert read_yaml(RunPaths(place).run_yaml)[0]["train"]["learning_rate"] == 1e-4


def accepted_in(place: Path, attempt: int) -> tuple[str, ...]:
    return read_spec(RunPaths(place).attempt(attempt).spec).accepted_changes


# proves TRN-13 (the supervisor's half): an acceptance holds until a checkpoint carries what was accepted, no longer
def test_acceptances_expire(tmp_path: Path) -> None:
    place = tmp_path / "r"
    faults: list[dict[str, Any]] = [
        {"at": 5, "do": "fail", "kind": "data_error", "attempt": 1},
        {"at": 5, "do": "kill9", "attempt": 2},  # before a checkpoint of its own
        {"at": 8, "do": "kill9", "attempt": 3},  # after one
    ]
    run(config(*faults), place)
    loaded = config(*faults, train={"learning_rate": 2e-4})
    key = "train.learning_rate"
    assert run(loaded, place, accept_changes=(key,)) is Outcome.COMPLETED
    assert [accepted_in(place, attempt) for attempt in (1, 2, 3, 4)] == [(), (key,), (key,), ()]


# proves TRN-13 (the supervisor's half): what is in quarantine carries nothing
def test_an_acceptance_is_needed_again_for_an_older_checkpoint(tmp_path: Path) -> None:
    place = tmp_path / "r"
    faults: list[dict[str, Any]] = [
        {"at": 5, "do": "fail", "kind": "data_error", "attempt": 1},
        {"at": 8, "do": "kill9", "attempt": 2},
        {"at": 0, "do": "fail", "kind": "checkpoint_corrupt", "attempt": 3},
    ]
    run(config(*faults), place)
    assert run(config(*faults), place, accept_changes=("data",)) is Outcome.COMPLETED
    assert [accepted_in(place, attempt) for attempt in (2, 3, 4)] == [("data",), (), ("data",)]


# proves TRN-13 (the supervisor's half): an optional section can be taken away and a new one put there
def test_a_section_that_comes_or_goes(tmp_path: Path) -> None:
    place = tmp_path / "r"
    faults: list[dict[str, Any]] = [
        {"at": 4, "do": "fail", "kind": "data_error", "attempt": attempt} for attempt in (1, 2, 3, 4)
    ]
    run(config(*faults, model={"options": {"think": True, "depth": 1}}), place)
    for options, accept in (({"depth": 1}, "model.options.think"), (None, "model.options"), ({"a": 2}, "model")):
        run(config(*faults, model={"options": options}), place, accept_changes=(accept,))
        found = state(place)
        effective, _ = read_yaml(RunPaths(place).attempt(found.attempt).effective)
        assert effective["model"]["options"] == options
    assert run(config(*faults, model={"options": {"a": 2}}), place) is Outcome.COMPLETED


SECRET = "correct-horse-battery"


# what the trainer's environment holds is in no event, and only its owner may read it
def test_the_environment_of_the_trainer_is_private(tmp_path: Path) -> None:
    place = tmp_path / "r"
    fault = {"at": 4, "do": "fail", "kind": "data_error", "attempt": 1}
    run(config(fault, launch={"env": {"SHARED": f"old-{SECRET}"}}), place)
    paths = RunPaths(place)
    assert (paths.state.stat().st_mode & 0o777) == 0o600
    run(config(fault, launch={"env": {"SHARED": SECRET}}), place)
    assert [event.message for event in events(place, "change_accepted")] == [
        "launch.env.SHARED: '[hidden]' -> '[hidden]'"
    ]
    assert SECRET not in paths.events.read_text()
    holders = {path for path in place.rglob("*") if path.is_file() and SECRET in path.read_text(errors="replace")}
    assert holders == {paths.run_yaml, paths.state, paths.attempt(1).effective, paths.attempt(2).effective}
    assert {path.stat().st_mode & 0o777 for path in holders} == {0o600}


def test_a_secret_in_another_configuration_is_not_shown(tmp_path: Path) -> None:
    place = tmp_path / "r"
    fault = {"at": 4, "do": "fail", "kind": "data_error", "attempt": 1}
    run(config(fault), place)
    with pytest.raises(RunRefused, match=r"api_token: None -> '\[hidden\]'") as refused:
        run(config(fault, model={"options": {"api_token": SECRET}}), place)
    assert SECRET not in str(refused.value)


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_operational_differences_are_taken_over(tmp_path: Path) -> None:
    place = tmp_path / "r"
    fault = {"at": 8, "do": "fail", "kind": "data_error", "attempt": 1}
    run(config(fault), place)
    loaded = config(fault, checkpoint={"keep": 1}, launch={"env": {"A": "1"}}, limits={"max_attempts": 2})
    assert run(loaded, place) is Outcome.COMPLETED
    effective, _ = read_yaml(RunPaths(place).attempt(2).effective)
    assert (effective["checkpoint"]["keep"], effective["launch"]["env"]) == (1, {"A": "1"})
    assert state(place).max_attempts == 2
    assert {event.data["key"] for event in events(place, "change_accepted")} == {
        "checkpoint.keep",
        "launch.env.A",
        "limits.max_attempts",
    }


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda place: None, "no run.yaml"),
        (lambda place: place.write_text("x"), "is a file"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, prepare: Any, words: str) -> None:
    prepare(tmp_path / "r")
    with pytest.raises(RunRefused, match=words):
        run(None, tmp_path / "r")


def test_a_folder_of_something_else_and_a_damaged_state_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunRefused, match=r"thesis\.tex"):
        run(config(), tmp_path)
    place = tmp_path / "r"
    run(config({"at": 1, "do": "fail", "kind": "data_error"}), place)
    (place / "state.json").write_text("{")
    with pytest.raises(RunRefused, match="damaged"):
        run(None, place)
    (place / "state.json").unlink()
    with pytest.raises(RunRefused, match="missing"):
        run(None, place)


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    loaded = config(launch={"python": "/nonexistent/python"})
    assert run(loaded, tmp_path / "r") is Outcome.GAVE_UP
    assert "launch.python" in state(tmp_path / "r").explanation


# proves TRN-14: the word of the command line reaches the trainer, is kept for later calls and stands in the log
def test_force_overfit_is_recorded_and_passed_on(tmp_path: Path) -> None:
    fault = {"at": 5, "do": "fail", "kind": "data_error", "message": "rows.jsonl:17: no answer", "attempt": 1}
    place = tmp_path / "r"
    run(config(), tmp_path / "plain")
    assert not read_spec(RunPaths(tmp_path / "plain").attempt(1).spec).force_overfit
    run(config(fault), place, force_overfit=True)
    assert state(place).force_overfit
    assert read_spec(RunPaths(place).attempt(1).spec).force_overfit
    assert len(events(place, "overfit_forced")) == 1
    run(None, place)
    assert read_spec(RunPaths(place).attempt(state(place).attempt).spec).force_overfit
    assert len(events(place, "overfit_forced")) == 1
