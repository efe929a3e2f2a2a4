"""A foreign trainer's own checkpoints: which are whole. proves SUP-14 for any trainer."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path

import pytest

from supervisor.command.own_checkpoints import find_checkpoints
from supervisor.jobs import OwnCheckpoint


def safetensors(path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\1" * 16)


def checkpoint(folder: Path, step: int) -> Path:
    place = folder / f"checkpoint-{step}"
    place.mkdir(parents=True)
    safetensors(place / "model.safetensors")
    with zipfile.ZipFile(place / "optimizer.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"x" * 100)
    (place / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (place / "config.json").write_text("{}")
    return place


def found(folder: Path) -> list[OwnCheckpoint]:
    return find_checkpoints(folder, "checkpoint-*", "trainer_state.json")


def test_whole_ones_in_the_order_of_their_steps(tmp_path: Path) -> None:
    for step in (10, 9, 100):
        checkpoint(tmp_path, step)
    (tmp_path / "runs").mkdir()
    (tmp_path / "quarantine").mkdir()
    assert [(entry.step, entry.faults) for entry in found(tmp_path)] == [(9, ()), (10, ()), (100, ())]
    assert found(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("model.safetensors", "shorter or longer than its header says"),
        ("optimizer.pt", "torn"),
        ("trainer_state.json", "torn: not JSON"),
    ],
)
def test_torn_files(tmp_path: Path, file: str, words: str) -> None:
    place = checkpoint(tmp_path, 5)
    data = (place / file).read_bytes()
    (place / file).write_bytes(data[: len(data) - 3])
    (entry,) = found(tmp_path)
    assert [fault.file for fault in entry.faults] == [file]
    assert words in str(entry.faults[0])


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt"])
def test_empty_files(tmp_path: Path, file: str) -> None:
    (checkpoint(tmp_path, 5) / file).write_bytes(b"")
    assert [str(fault) for fault in found(tmp_path)[0].faults] == [f"{file}: empty"]


def test_what_is_missing(tmp_path: Path) -> None:
    place = checkpoint(tmp_path, 5)
    (place / "trainer_state.json").unlink()
    assert "the save was not finished" in str(found(tmp_path)[0].faults[0])
    assert find_checkpoints(tmp_path, "checkpoint-*", None)[0].faults == ()
    (place / "model.safetensors").unlink()
    (place / "optimizer.pt").unlink()
    assert "holds no weights" in str(found(tmp_path)[0].faults[1])


def test_a_shard_that_its_index_names(tmp_path: Path) -> None:
    place = checkpoint(tmp_path, 5)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-2.safetensors: missing" in str(found(tmp_path)[0].faults[0])
    (place / "model.safetensors.index.json").write_text('{"weight_map": ')
    assert "not an index of shards" in str(found(tmp_path)[0].faults[0])


def test_the_step_is_the_one_that_its_name_says(tmp_path: Path) -> None:
    checkpoint(tmp_path, 5).rename(tmp_path / "checkpoint-50")
    assert "is of step 5, the name says 50" in str(found(tmp_path)[0].faults[0])


def test_files_as_checkpoints(tmp_path: Path) -> None:
    safetensors(tmp_path / "epoch_2.safetensors")
    (tmp_path / "epoch_3.safetensors").write_bytes(b"half")
    (tmp_path / "epoch_4.safetensors.tmp").touch()  # being saved: neither good nor torn
    entries = find_checkpoints(tmp_path, "epoch_*", None)
    assert [(entry.step, bool(entry.faults)) for entry in entries] == [(2, False), (3, True)]
