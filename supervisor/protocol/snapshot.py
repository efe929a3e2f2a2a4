"""A snapshot: the files of a checkpoint in shared memory, sealed last, rewritten after every optimiser step.

Two slots take turns, so that one is whole while the other is written. A slot without a seal is torn. The digests are
fast ones, against flipped bits; the manifest with SHA-256 comes into being when a snapshot is copied to disk.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import xxhash

from supervisor.protocol.manifest import Manifest

SLOTS = ("a", "b")
SEAL_NAME = "seal.json"
_STAGED = ".staging-seal.json"


class SealedFile(msgspec.Struct, frozen=True):
    size: int
    xxh3: str


class Seal(msgspec.Struct, frozen=True):
    """``seal.json``. ``manifest`` is the checkpoint's without its files; ``files``: all of the slot but the seal."""

    manifest: Manifest
    files: dict[str, SealedFile]

    @property
    def size(self) -> int:
        return sum(record.size for record in self.files.values())


class FastDigest:
    """Of a file that is seen piece by piece."""

    def __init__(self) -> None:
        self._digest = xxhash.xxh3_128()
        self._size = 0

    def update(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        self._size += data.nbytes if isinstance(data, memoryview) else len(data)

    @property
    def sealed(self) -> SealedFile:
        return SealedFile(self._size, self._digest.hexdigest())


def sealed_file(data: bytes) -> SealedFile:
    digest = FastDigest()
    digest.update(data)
    return digest.sealed


def break_seal(slot: Path) -> None:
    """Call it before the first byte of the slot is rewritten."""
    (slot / SEAL_NAME).unlink(missing_ok=True)


def seal(slot: Path, sealed: Seal) -> None:
    """Call it when everything else is written: from now on the snapshot counts."""
    staged = slot / _STAGED
    staged.write_bytes(msgspec.json.encode(sealed))
    os.replace(staged, slot / SEAL_NAME)


def read_seal(slot: Path) -> Seal | None:
    """None for a slot that is empty or torn. Raises msgspec.DecodeError for a seal that is no seal."""
    try:
        return msgspec.json.decode((slot / SEAL_NAME).read_bytes(), type=Seal)
    except FileNotFoundError:
        return None
