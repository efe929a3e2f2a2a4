"""What the adapter of a training's file is, found in a process of its own, as it takes torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from supervisor.problems import InputError
from trainer.federated.packed import Blueprint


def blueprint(train: Path, *, whole: bool = False) -> Blueprint:
    """``whole``: with all that goes into ``final/``, for which the base must be here. Raises InputError."""
    answer = subprocess.run(
        [sys.executable, "-P", "-m", "trainer.federated.size", str(train), *(["--whole"] if whole else [])],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        return msgspec.json.decode(answer.stdout, type=Blueprint)
    except msgspec.DecodeError:
        said = " ".join(answer.stderr.split()[-60:]) or f"exit code {answer.returncode}"
        raise InputError(f"{train}: what its adapter is, is not known: {said}.") from None
