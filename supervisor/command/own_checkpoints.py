"""Checkpoints that a program wrote in its own way: which of them are whole. Nothing here loads or changes them.

``transformers`` and most others write straight into the final folder, so a death in the middle of a save leaves a torn
one under a good name. What can be seen without torch: the marker written last, safetensors files as long as their
header says, torch's archives with their end, every shard that an index names.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from supervisor.jobs import OwnCheckpoint
from supervisor.protocol.manifest import Fault, safetensors_problem

TRAINER_STATE = "trainer_state.json"
_ARCHIVES = (".pt", ".pth", ".bin", ".ckpt")
_WEIGHTS = (".safetensors", *_ARCHIVES, ".distcp")
_INDEX = ".index.json"
_LAST_NUMBER = re.compile(r"(\d+)\D*$")


def find_checkpoints(folder: Path, pattern: str, marker: str | None) -> list[OwnCheckpoint]:
    """Everything in ``folder`` that ``pattern`` names and that has a number, examined, lowest step first.

    Of single files only those that end like weights: another one may be what is being saved right now.

    Raises OSError when the folder or one of the files cannot be read.
    """
    if not folder.is_dir():
        return []
    found = []
    for path in folder.glob(pattern):
        number = _LAST_NUMBER.search(path.name)
        if number and (path.is_dir() or path.suffix in _WEIGHTS):
            faults = _faults_of_folder(path, int(number[1]), marker) if path.is_dir() else _faults_of_file(path, path)
            found.append(OwnCheckpoint(path, int(number[1]), tuple(faults)))
    return sorted(found, key=lambda checkpoint: (checkpoint.step, checkpoint.path.name))


def _faults_of_folder(folder: Path, step: int, marker: str | None) -> Iterator[Fault]:
    if marker is not None and not (folder / marker).is_file():
        yield Fault(marker, "missing: the save was not finished")
    if marker == TRAINER_STATE and (problem := _state_problem(folder / marker, step)):
        yield Fault(marker, problem)
    files = [Path(place, name) for place, _, names in os.walk(folder) for name in sorted(names)]
    if not any(file.suffix in _WEIGHTS for file in files):
        yield Fault(folder.name, "holds no weights")
    for file in files:
        yield from _faults_of_file(file, folder)


def _faults_of_file(path: Path, folder: Path) -> Iterator[Fault]:
    name = path.name if path == folder else path.relative_to(folder).as_posix()
    size = path.stat().st_size
    if name.endswith(_INDEX):
        yield from _missing_shards(path, name)
    elif problem := _problem(path, size):
        yield Fault(name, problem)


def _problem(path: Path, size: int) -> str | None:
    if path.suffix not in _WEIGHTS:
        return None
    if size == 0:
        return "empty"
    if path.suffix == ".safetensors":
        return safetensors_problem(path, size)
    return _archive_problem(path) if path.suffix in _ARCHIVES else None


def _archive_problem(path: Path) -> str | None:
    """torch.save writes a zip archive, whose directory stands at its end; what begins differently is not judged."""
    with open(path, "rb") as file:
        if file.read(4) != b"PK\x03\x04":
            return None
    try:
        with zipfile.ZipFile(path):
            return None
    except zipfile.BadZipFile:
        return "torn: the archive's directory, which stands at its end, is not there"


def _missing_shards(index: Path, name: str) -> Iterator[Fault]:
    try:
        shards = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        yield Fault(name, "torn or not an index of shards")
        return
    for shard in sorted(map(str, shards)):
        if not (index.parent / shard).is_file():
            yield Fault(shard, f"missing, although {name} names it")


def _state_problem(path: Path, step: int) -> str | None:
    try:
        state = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None  # said already
    except ValueError:
        return "torn: not JSON"
    done = state.get("global_step") if isinstance(state, dict) else None
    return None if done == step else f"is of step {done}, the name says {step}"
