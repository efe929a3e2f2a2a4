"""Commands as a plain user, for tests that may run as root."""

from __future__ import annotations

import os
import sys
from pathlib import Path

UID = 12345


def as_plain_user(argv: list[str]) -> list[str]:
    """``argv``, run without root's rights. The interpreter may lie in a home that is closed to others: what leads there
    is replaced by empty folders that are open."""
    if os.geteuid() != 0:
        return argv
    prefix = os.path.realpath(sys.base_prefix)
    line = ["bwrap", "--dev-bind", "/", "/"]
    for folder in reversed(Path(prefix).parents[:-1]):
        if not folder.stat().st_mode & 0o001:
            line += ["--perms", "0755", "--tmpfs", str(folder)]
            inner = Path(prefix).relative_to(folder).parts[:-1]
            for depth in range(len(inner)):
                line += ["--perms", "0755", "--dir", str(folder.joinpath(*inner[: depth + 1]))]
            break
    line += ["--ro-bind", prefix, prefix, "--"]
    return [*line, "setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", *argv]
