"""What goes wrong in real trainings, injected into the real trainer (stand_ins/faulty_trainer.py)."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from real_runs import (
    QUICK,
    TINY,
    events,
    faults,
    final_manifest,
    log_of,
    mens_sup,
    report,
    run,
    same_adapter,
    sets,
    state,
)

from supervisor.protocol.manifest import verify_checkpoint
from supervisor.protocol.paths import RunPaths
from supervisor.sensors.disk import disk_space
from supervisor.state import Outcome
from supervisor.yaml_source import read_yaml

MIB = 1 << 20
QUICKER: Mapping[str, Any] = {**QUICK, "train.max_steps": 6}
STATUS_FIELDS = {
    "id",
    "outcome",
    "attempt",
    "max_attempts",
    "step",
    "planned_steps",
    "tokens_seen",
    "last_checkpoint",
    "best_checkpoint",
    "relief",
    "last_failure",
}


def flip_a_bit(checkpoint: Path) -> None:
    path = checkpoint / "adapter_model.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0b1000
    path.write_bytes(data)


def truncate(checkpoint: Path) -> None:
    os.truncate(checkpoint / "rng_state.pth", 100)


def lose_the_optimiser(checkpoint: Path) -> None:
    (checkpoint / "optimizer.safetensors").unlink()


def tear_the_manifest(checkpoint: Path) -> None:
    path = checkpoint / "manifest.json"
    os.truncate(path, path.stat().st_size // 2)


DAMAGES: dict[Callable[[Path], None], str] = {
    flip_a_bit: "adapter_model.safetensors: content differs",
    truncate: "rng_state.pth: 100 bytes",
    lose_the_optimiser: "optimizer.safetensors: missing",
    tear_the_manifest: "manifest.json: torn",
}


def checkpoints(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "checkpoints").glob("step-*"))


@pytest.fixture(scope="module")
def ended_early(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose only attempt left with exit code 0 in step 11 of 12, five checkpoints behind it."""
    place = tmp_path_factory.mktemp("ended") / "run"
    leaves = faults({"do": "exit", "at": 11, "code": 0})
    assert run(place, {**QUICK, **leaves}, "--max-attempts", "1") == 1
    return place


def copy_of(run_dir: Path, target: Path) -> Path:
    return Path(shutil.copytree(run_dir, target, symlinks=True))


def go_on(run_dir: Path) -> int:
    """The same command as the one that made ``ended_early``, without the fault."""
    return run(run_dir, {**QUICK, **faults()})


# proves SUP-15: exit code 0 half way is not completion
@pytest.mark.slow
def test_exit_code_0_half_way_is_not_completed(ended_early: Path) -> None:
    found = state(ended_early)
    assert found.outcome is Outcome.GAVE_UP
    assert [failure.kind for failure in found.failures] == ["completed_early"]
    assert not (ended_early / "final").exists()
    assert [path.name for path in checkpoints(ended_early)] == [f"step-{step:08d}" for step in (2, 4, 6, 8, 10)]


# proves SUP-14: the four newest checkpoints damaged in four ways cost four checkpoints and nothing else
@pytest.mark.slow
def test_damaged_checkpoints_are_stepped_over(tmp_path: Path, ended_early: Path, undisturbed: Path) -> None:
    place = copy_of(ended_early, tmp_path / "run")
    for damage, checkpoint in zip(DAMAGES, checkpoints(place)[1:], strict=True):
        damage(checkpoint)
    assert go_on(place) == 0, log_of(place).read_text()
    assert [event.step for event in events(place, "attempt_started")] == [0, 2]
    messages = [event.message for event in events(place, "checkpoint_quarantined")]
    for words, message in zip(DAMAGES.values(), messages, strict=True):
        assert words in message
    assert "optimizer.safetensors: missing" in log_of(place).read_text()
    assert len(list((place / "checkpoints" / "quarantine").iterdir())) == 4
    assert same_adapter(place, undisturbed)


# proves SUP-14, TRN-12: each way of damaging the newest one, alone
@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_checkpoint(
    tmp_path: Path, ended_early: Path, undisturbed: Path, damage: Callable[[Path], None]
) -> None:
    place = copy_of(ended_early, tmp_path / "run")
    damage(checkpoints(place)[-1])
    assert go_on(place) == 0, log_of(place).read_text()
    assert events(place, "attempt_started")[-1].step == 8
    (event,) = events(place, "checkpoint_quarantined")
    assert DAMAGES[damage] in event.message
    assert same_adapter(place, undisturbed)


# proves SUP-14: never a silent restart from zero
@pytest.mark.slow
def test_no_good_checkpoint_left_stops_the_run(tmp_path: Path, ended_early: Path) -> None:
    place = copy_of(ended_early, tmp_path / "run")
    for checkpoint in checkpoints(place):
        flip_a_bit(checkpoint)
    assert go_on(place) == 1
    assert "never starts from zero again by itself" in log_of(place).read_text()
    assert state(place).attempt == 1


# proves SUP-2, SUP-3, SUP-4: out of memory whatever is done walks the ladder once and gives up
@pytest.mark.slow
def test_a_deterministic_oom_walks_the_ladder_and_gives_up(tmp_path: Path) -> None:
    place = tmp_path / "run"
    changes = {
        **QUICKER,
        **faults({"do": "oom", "at": 2, "limit": 0}),
        "model.base": "random:2x64",
        "model.fallback": {"base": "random:1x64"},
        "train.per_device_train_batch_size": 4,
        "relief.seq_len_rungs": [96, 64],
        "checkpoint.save_steps": 1,
    }
    assert run(place, changes, "--max-attempts", "20") == 1
    found = state(place)
    expected = [*["halve_micro_batch"] * 2, "checkpoint_activations", "shorten_sequence", "switch_model"]
    assert [taken.rung for taken in found.relief] == expected
    said = log_of(place).read_text().splitlines()[-1]
    for words in (*expected, "trim_retention", "cuda_oom at step 1", "What to do now"):
        assert words in said
    tried = [read_yaml(RunPaths(place).attempt(attempt).effective)[0] for attempt in range(1, 7)]
    settings = [
        (
            document["train"]["per_device_train_batch_size"],
            document["train"]["gradient_accumulation_steps"],
            document["train"]["gradient_checkpointing"],
            document["train"]["max_length"],
            document["model"]["base"],
        )
        for document in tried
    ]
    assert settings == [
        (4, 2, False, 96, "random:2x64"),
        (2, 4, False, 96, "random:2x64"),
        (1, 8, False, 96, "random:2x64"),
        (1, 8, True, 96, "random:2x64"),
        (1, 8, True, 64, "random:2x64"),
        (1, 8, True, 64, "random:1x64"),
    ]
    # Step 1 was kept through all the relief, and is done again only by the other model.
    assert [event.step for event in events(place, "attempt_started")] == [0, 1, 1, 1, 1, 0]
    assert (found.attempt, found.lineage) == (6, 2)
    assert (place / "checkpoints" / "step-00000001").is_dir()
    assert (place / "checkpoints-2" / "step-00000001").is_dir()


# proves SUP-3, SUP-4: relieved, the run goes on from its checkpoint; every planned step, token and row gets done
@pytest.mark.slow
def test_relief_that_helps(tmp_path: Path) -> None:
    place = tmp_path / "run"
    relieved = {"relief.seq_len_rungs": [96, 64], **faults({"do": "oom", "at": 4, "limit": 64})}
    assert run(place, {**QUICKER, **relieved}) == 0, log_of(place).read_text()
    status = json.loads(mens_sup("status", place, "--json").stdout)
    expected = ["halve_micro_batch", "checkpoint_activations", "shorten_sequence"]
    assert [taken["rung"] for taken in status["relief"]] == expected
    assert [taken["lossless"] for taken in status["relief"]] == [True, True, False]
    assert all(taken["price"] in log_of(place).read_text() for taken in status["relief"])
    assert "% of the rows" in status["relief"][2]["price"]
    assert status["last_failure"]["kind"] == "cuda_oom"
    assert [event.step for event in events(place, "attempt_started")] == [0, 3, 3, 3]
    last = report(place, 4)
    assert last.done == last.planned
    assert last.done["steps"] == 6
    assert json.loads((place / "final" / "data_plan.json").read_text())["segments"] == [
        {"max_length": 96, "first_step": 0},
        {"max_length": 64, "first_step": 3},
    ]


# proves TRN-15, SUP-2
def test_a_nan_stops_at_once_with_advice(tmp_path: Path) -> None:
    place = tmp_path / "run"
    assert run(place, {**QUICKER, **faults({"do": "nan", "at": 3})}) == 1
    said = log_of(place).read_text()
    for words in ("nan_loss at step 2", "gradient norm is nan at optimiser step 3", "Lower train.learning_rate"):
        assert words in said
    assert "Traceback" not in said
    assert state(place).attempt == 1
    assert [event.step for event in events(place, "progress")] == [1, 2]
    assert [path.name for path in checkpoints(place)] == ["step-00000002"]
    assert verify_checkpoint(checkpoints(place)[0]) == []


# proves SUP-7: a batch that cannot be built is met twice and no more; the words name it
@pytest.mark.slow
def test_a_poison_row_is_not_tried_for_ever(tmp_path: Path) -> None:
    place = tmp_path / "run"
    assert run(place, {**QUICKER, **faults({"do": "poison_bin", "bin": 9})}, "--max-attempts", "9") == 1
    found = state(place)
    assert [failure.kind for failure in found.failures] == ["program_error"] * 2
    assert "bin 9 cannot be turned into a tensor" in found.explanation
    assert "deterministic" in found.explanation


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real tmpfs of 5 MiB: five of the checkpoints below."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=5m,mode=0777", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


# proves SUP-13: a disk that fills up in a save costs old checkpoints, never the last good one
@pytest.mark.slow
def test_a_disk_that_fills_up(small_disk: Path) -> None:
    place = small_disk / "run"
    changes = {**QUICKER, "model.lora.r": 64, "train.max_steps": 8, "checkpoint.save_steps": 1}
    stranger = small_disk / "somebody-elses"
    with open(stranger, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk_space(small_disk).free_bytes - MIB)
    assert run(place, changes) == 1
    assert f"{small_disk} has" in log_of(place).read_text()
    assert "free; the next checkpoint needs" in log_of(place).read_text()
    assert state(place).attempt == 0
    stranger.unlink()

    assert run(place, changes) == 0, log_of(place).read_text()
    found = state(place)
    assert [failure.kind for failure in found.failures][1:] == ["disk_full"]
    assert [taken.rung for taken in found.relief] == ["trim_retention"]
    first, second = events(place, "attempt_started")
    saved = [event.step for event in events(place, "checkpoint_verified") if event.attempt == first.attempt]
    # Not even the step whose save failed is lost: it was in shared memory until there was room.
    assert second.step == saved[-1] + 1 == events(place, "snapshot_saved")[-1].step
    assert [verify_checkpoint(path) for path in checkpoints(place)] == [[] for _ in checkpoints(place)]
    assert final_manifest(place).step == 8


def broken(**changes: Any) -> dict[str, Any]:
    return {**QUICK, **{key.replace("__", "."): value for key, value in changes.items()}}


GOOD_ROW = json.dumps({"prompt": "2 + 2?", "completion": "4"})


# proves SUP-2, TRN-9: a broken configuration ends with exit code 2 before any attempt, and leaves nothing behind
@pytest.mark.parametrize(
    ("changes", "rows", "words"),
    [
        (broken(train__learnin_rate=1e-4), None, ("learnin_rate", "Did you mean train.learning_rate")),
        (broken(train__max_steps="12"), None, ("train.max_steps", "whole number")),
        (broken(model__base="/nowhere/model"), None, ("model.base", "/nowhere/model", "no config.json")),
        (broken(data__sources=[{"path": "/nowhere.jsonl"}]), None, ("/nowhere.jsonl cannot be read", "No such file")),
        (broken(), f"{GOOD_ROW}\n{GOOD_ROW}\n{{torn\n", ("rows.jsonl:3", "data.on_bad_row: skip")),
        (broken(), "", ("rows.jsonl is empty",)),
    ],
)
def test_a_broken_configuration(tmp_path: Path, changes: dict[str, Any], rows: str | None, words: list[str]) -> None:
    if rows is not None:
        (tmp_path / "rows.jsonl").write_text(rows)
        changes = {**changes, "data.sources": [{"path": str(tmp_path / "rows.jsonl")}]}
    assert run(tmp_path / "run", changes) == 2
    said = log_of(tmp_path / "run").read_text()
    for text in words:
        assert text in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()
    validated = mens_sup("validate", TINY, *sets(changes))
    assert (validated.returncode, validated.stderr) == (2, said)


def test_status_of_a_completed_run(undisturbed: Path) -> None:
    answer = mens_sup("status", undisturbed, "--json")
    assert answer.returncode == 0
    status = json.loads(answer.stdout)
    assert status.keys() >= STATUS_FIELDS
    assert (status["outcome"], status["attempt"], status["step"], status["planned_steps"]) == ("completed", 1, 12, 12)
    assert status["tokens_seen"] == report(undisturbed, 1).done["tokens"] > 0
    assert status["last_checkpoint"] == "checkpoints/step-00000012"
    assert (undisturbed / status["best_checkpoint"]).is_dir()
    assert (status["relief"], status["last_failure"]) == ([], None)


# proves SUP-14
def test_verify_names_the_file_with_the_flipped_bit(tmp_path: Path, undisturbed: Path) -> None:
    assert mens_sup("checkpoints", "verify", undisturbed).returncode == 0
    place = copy_of(undisturbed, tmp_path / "run")
    flip_a_bit(place / "checkpoints" / "step-00000006")
    answer = mens_sup("checkpoints", "verify", place, "--json")
    assert answer.returncode == 1
    bad = {entry["name"]: entry["faults"] for entry in json.loads(answer.stdout) if entry["verdict"] == "bad"}
    assert list(bad) == ["checkpoints/step-00000006"]
    assert bad["checkpoints/step-00000006"][0]["file"] == "adapter_model.safetensors"


def test_a_completed_run_has_nothing_left_to_do(tmp_path: Path, undisturbed: Path) -> None:
    place = copy_of(undisturbed, tmp_path / "run")
    assert run(place, QUICK) == 0
    assert "completed" in log_of(place).read_text()
    assert state(place).attempt == 1
