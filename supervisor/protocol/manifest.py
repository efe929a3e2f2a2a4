"""A checkpoint's manifest: what makes a folder of files a checkpoint that can be trusted."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1


class FileRecord(msgspec.Struct, frozen=True):
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """``manifest.json``, written last.

    ``files``: every other file of the checkpoint, by path relative to it.
    ``identity``: what a resumed run must agree with (data, base, template, adapter, ...), each a
    short readable value or a digest. ``finite``: the writer has seen only finite weights and moments.
    ``eval_loss``: token-weighted, in nats per token, when an evaluation ended at this very step, ``eval_loss_stderr``
    its standard error where that is known.
    ``interim``: no save was due at this step; retention keeps it only as long as it is the newest.
    """

    format_version: int
    step: int
    planned_steps: int
    tokens_seen: int
    rows_seen: int
    epoch: float
    attempt: int
    lineage: int
    created: float
    finite: bool
    files: dict[str, FileRecord]
    identity: dict[str, str]
    versions: dict[str, str]
    eval_loss: float | None = None
    interim: bool = False
    eval_loss_stderr: float | None = None


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a checkpoint: which file (or the manifest) and what."""

    file: str
    problem: str

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


def digest_file(path: Path) -> FileRecord:
    digest = hashlib.sha256()
    size = 0
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            size += len(chunk)
    return FileRecord(size, digest.hexdigest())


def digest_tree(root: Path) -> dict[str, FileRecord]:
    """Records of all files below ``root`` but the manifest, by relative path, in sorted order."""
    found: dict[str, FileRecord] = {}
    for folder, _, names in sorted(os.walk(root)):
        for name in sorted(names):
            path = Path(folder, name)
            relative = path.relative_to(root).as_posix()
            if relative != MANIFEST_NAME:
                found[relative] = digest_file(path)
    return found


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest into a *staged* checkpoint; the caller's rename makes it visible."""
    (directory / MANIFEST_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")


def read_manifest(directory: Path) -> Manifest:
    """Raises FileNotFoundError or msgspec.DecodeError (a torn or foreign manifest)."""
    return msgspec.json.decode((directory / MANIFEST_NAME).read_bytes(), type=Manifest)


def verify_checkpoint(directory: Path) -> list[Fault]:
    """Everything wrong with a checkpoint; an empty list means that it can be trusted.

    Checks the manifest, each file's presence, size and SHA-256, that nothing unlisted was added,
    that safetensors files are well-formed and that the writer saw only finite values.
    """
    try:
        manifest = read_manifest(directory)
    except FileNotFoundError:
        return [Fault(MANIFEST_NAME, "missing: the checkpoint was never finished or its manifest was deleted")]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return [Fault(MANIFEST_NAME, f"torn or not a manifest ({error})")]
    if manifest.format_version != FORMAT_VERSION:
        return [Fault(MANIFEST_NAME, f"format version {manifest.format_version}, this program reads {FORMAT_VERSION}")]
    faults = []
    if not manifest.finite:
        faults.append(Fault(MANIFEST_NAME, "the weights or optimiser moments were not finite when it was written"))
    for name, record in manifest.files.items():
        faults.extend(_verify_file(directory, name, record))
    present = {
        Path(folder, name).relative_to(directory).as_posix()
        for folder, _, names in os.walk(directory)
        for name in names
    }
    for name in sorted(present - set(manifest.files) - {MANIFEST_NAME}):
        faults.append(Fault(name, "not listed in the manifest"))
    return faults


def _verify_file(directory: Path, name: str, record: FileRecord) -> list[Fault]:
    path = directory / name
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return [Fault(name, "missing")]
    if size != record.size:
        return [Fault(name, f"{size} bytes, the manifest says {record.size}")]
    if digest_file(path).sha256 != record.sha256:
        return [Fault(name, "content differs from the SHA-256 in the manifest (flipped bits)")]
    if name.endswith(".safetensors"):
        problem = safetensors_problem(path, size)
        return [Fault(name, problem)] if problem else []
    return []


def safetensors_problem(path: Path, size: int) -> str | None:
    """Why a file of ``size`` bytes is no whole safetensors file, or None."""
    with open(path, "rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
        if length > size - 8:
            return "not a safetensors file (header longer than the file)"
        try:
            header = json.loads(file.read(length))
            ends = _data_ends(header)
        except (ValueError, RecursionError):
            return "not a safetensors file (unreadable header)"
    if ends is None:
        return "not a safetensors file (its header names no data offsets for a tensor)"
    if max(ends, default=0) != size - 8 - length:
        return "safetensors data is shorter or longer than its header says"
    return None


def _data_ends(header: Any) -> list[int] | None:
    """Where each tensor's data ends, in bytes after the header; None when the header doesn't say so for all."""
    if not isinstance(header, dict):
        return None
    ends = []
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        match entry:
            case {"data_offsets": [int(begin), int(end)]} if 0 <= begin <= end:
                ends.append(end)
            case _:
                return None
    return ends
