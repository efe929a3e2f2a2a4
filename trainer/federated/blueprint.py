"""What the adapter of a training's file is, found in a process of its own, as it takes torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from supervisor.problems import InputError
from supervisor.protocol.atomic import write_atomic
from trainer.federated.common import differences
from trainer.federated.packed import Blueprint


def blueprint(train: Path, *options: str) -> Blueprint:
    """``options``: as trainer.federated.size takes them. Raises InputError."""
    answer = subprocess.run(
        [sys.executable, "-P", "-m", "trainer.federated.size", str(train), *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        return msgspec.json.decode(answer.stdout, type=Blueprint)
    except msgspec.DecodeError:
        said = " ".join(answer.stderr.split()[-60:]) or f"exit code {answer.returncode}"
        raise InputError(f"{train}: what its adapter is, is not known: {said}.") from None


def standing_blueprint(path: Path, train: Path, *, begun: bool) -> Blueprint:
    """All that goes into ``final/``, for which the base must be here; kept in ``path``, for the coordinator's process.

    ``begun``: the rounds have begun with the one in ``path``, so what all boxes have in common may not change any more;
    the rest, such as gates, may. Raises InputError.
    """
    before = msgspec.json.decode(path.read_bytes(), type=Blueprint) if begun and path.is_file() else None
    base = ["--begun-with", before.identity["base"]] if before is not None else []
    found = blueprint(train, "--whole", *base)
    if before is not None and (wrong := changed(before, found)):
        raise InputError(
            f"{train} was changed after the rounds had begun: {wrong}. Set it back, or make a new federation."
        )
    write_atomic(path, msgspec.json.encode(found))
    return found


def changed(begun: Blueprint, now: Blueprint) -> str:
    """What boxes that have begun with one could not go on with; empty where there is no such thing."""
    if begun.layout != now.layout:
        return f"rank {now.layout.rank} instead of {begun.layout.rank}, or other layers"
    return differences(begun.common, now.common) if begun.common is not None and now.common is not None else ""
