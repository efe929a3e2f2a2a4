"""Processes that are found again by what stands in their environment, however detached they are."""

from __future__ import annotations

import os
from pathlib import Path


def marked(variable: str, value: str) -> list[int]:
    """Living processes with ``variable=value`` in the environment that they began with, other than this one."""
    mark = f"{variable}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:  # gone meanwhile, a zombie, or somebody else's: not one that we could end
            continue
        if mark in environment.split(b"\0"):
            found.append(int(entry.name))
    return sorted(found)
