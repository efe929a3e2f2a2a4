"""A file that a run writes outside its folder, and the manifest beside it by which it is known as the run's own.

Such a file never replaces anything but an earlier one of the same run, and never stands without a manifest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from supervisor.problems import InputError
from supervisor.protocol.atomic import write_atomic


def check_target(out: Path, manifest_path: Path, run_dir: Path, key: str) -> None:
    """Raises InputError when ``out`` cannot be written or is not this run's. The manifest names it under ``key``."""
    if out.is_dir():
        raise InputError(f"{out} is a folder; name a file, such as {out / 'corpus.jsonl'}.")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent} is no folder; make it first.")
    if not out.exists():
        return
    try:
        manifest = json.loads(manifest_path.read_bytes())
        ours = manifest.get("run") == run_dir.resolve().name and manifest.get(key) == out.name
    except (FileNotFoundError, ValueError, AttributeError):
        ours = False
    if not ours:
        raise InputError(f"{out} exists and was not written from {run_dir}, so it stays. Name another file.")


@contextmanager
def claimed(out: Path, manifest_path: Path, run_dir: Path, key: str) -> Iterator[None]:
    """While the file is written: killed before its own manifest is there, it is still known as the run's."""
    fresh = not manifest_path.exists()
    if fresh:
        claim = {key: out.name, "run": run_dir.resolve().name, "unfinished": True}
        write_atomic(manifest_path, json.dumps(claim).encode() + b"\n")
    try:
        yield
    except BaseException:
        if fresh:
            manifest_path.unlink(missing_ok=True)
        raise
