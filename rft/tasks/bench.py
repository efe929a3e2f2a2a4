"""Benches by name: task sets that a gate asks and that corpora must not hold."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path

from rft.tasks.bfcl import bfcl_tasks
from rft.tasks.humaneval import humaneval_tasks
from rft.tasks.jsonl import read_tasks
from rft.tasks.task import Task
from supervisor.problems import InputError

HUMANEVAL, BFCL = "humaneval", "bfcl"
BENCHES = (HUMANEVAL, BFCL)


def bench_tasks(name_or_path: str) -> Iterator[Task]:
    """The tasks of ``humaneval``, of ``bfcl`` (its usual categories), or of a JSONL file or glob, in order; their
    source is the bench's name.

    Raises InputError when there are none, or one cannot be read.
    """
    if name_or_path == HUMANEVAL:
        yield from humaneval_tasks(HUMANEVAL)
        return
    if name_or_path == BFCL:
        yield from bfcl_tasks(BFCL)
        return
    path = Path(name_or_path).expanduser()
    if "/" not in name_or_path and not path.exists() and not path.suffix and "*" not in name_or_path:
        close = difflib.get_close_matches(name_or_path, BENCHES, n=1, cutoff=0.5)
        hint = f"Did you mean {close[0]}?" if close else f"Known: {', '.join(BENCHES)}, or a JSONL file with its items."
        raise InputError(f"{name_or_path} is no bench and no file. {hint}")
    found = False
    for task in read_tasks(name_or_path, _bench_name(path)):
        found = True
        yield task
    if not found:
        raise InputError(f"{name_or_path} has no item. Name a file with one task a line.")


def _bench_name(path: Path) -> str:
    stem = path.name.removesuffix(".gz").rpartition(".")[0] or path.name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._") or "bench"
