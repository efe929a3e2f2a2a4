"""Where things are kept that can be made again. No torch."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "MENS_CACHE"


def cache_root() -> Path:
    """``$MENS_CACHE``, else ``$XDG_CACHE_HOME/mens-supervisor``, else ``~/.cache/mens-supervisor``."""
    if explicit := os.environ.get(CACHE_VARIABLE):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mens-supervisor"
