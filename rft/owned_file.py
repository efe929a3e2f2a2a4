"""A file that a run writes outside its folder, and the manifest beside it by which it is known as the run's own.

Such a file never replaces anything but an earlier one of the same run, and never stands without a manifest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from supervisor.problems import InputError
from supervisor.protocol.atomic import write_atomic


@dataclass(frozen=True)
class Owner:
    """A run: its folder, and what no other run has, whatever their folders are called."""

    run_dir: Path
    number: str

    @property
    def words(self) -> dict[str, str]:
        """What a manifest says about it."""
        return {"run": self.run_dir.resolve().name, "run_id": self.number}


def check_target(out: Path, manifest_path: Path, owner: Owner, key: str) -> None:
    """Raises InputError when ``out`` cannot be written or is not this run's. The manifest names it under ``key``."""
    if out.is_dir():
        raise InputError(f"{out} is a folder; name a file, such as {out / 'corpus.jsonl'}.")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent} is no folder; make it first.")
    if not out.exists():
        return
    try:
        manifest = json.loads(manifest_path.read_bytes())
        ours = manifest.get("run_id") == owner.number and manifest.get(key) == out.name
    except (FileNotFoundError, ValueError, AttributeError):
        ours = False
    if not ours:
        raise InputError(f"{out} exists and was not written from {owner.run_dir}, so it stays. Name another file.")


@contextmanager
def claimed(out: Path, manifest_path: Path, owner: Owner, key: str) -> Iterator[None]:
    """While the file is written: killed before its own manifest is there, it is still known as the run's."""
    fresh = not manifest_path.exists()
    if fresh:
        claim = {key: out.name, **owner.words, "unfinished": True}
        write_atomic(manifest_path, json.dumps(claim).encode() + b"\n")
    try:
        yield
    except BaseException:
        if fresh:
            manifest_path.unlink(missing_ok=True)
        raise
