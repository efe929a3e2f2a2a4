"""Runs of the scripted trainer that snapshot into a folder in place of /dev/shm."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scripted_runs import config


def snapshotting(memory: Path, *faults: dict[str, Any], save_steps: int = 100, **sections: Any) -> Any:
    checkpoint = {"snapshot": str(memory), "save_steps": save_steps, **sections.pop("checkpoint", {})}
    train = {"snapshots": True, **sections.pop("train", {})}
    return config(*faults, train=train, checkpoint=checkpoint, **sections)


@contextmanager
def mounted(place: Path) -> Iterator[Path]:
    """A real tmpfs of 8 MiB."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0777", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def checkpoints(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())
