"""What a build that was killed could not remove: its staging folder beside the corpus that it never became."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from pathlib import Path
from typing import BinaryIO

from supervisor.protocol.atomic import STAGING_PREFIX
from trainer.data.build.manifest import DROPPED


def mark_alive(dropped: BinaryIO) -> None:
    """Say that the staging folder is in use, to builds on other machines too, as long as ``dropped`` is open."""
    with contextlib.suppress(OSError):  # some network file systems have no locks; the pid is looked at in any case
        fcntl.flock(dropped, fcntl.LOCK_EX)


def remove_dead_builds(out: Path) -> list[str]:
    """Remove the staging folders of builds of ``out`` that are no more; returns their names. Raises OSError."""
    if not out.parent.is_dir():
        return []
    pattern = re.compile(rf"{re.escape(STAGING_PREFIX + out.name)}-(\d+)")
    removed = []
    for entry in sorted(out.parent.iterdir()):
        found = pattern.fullmatch(entry.name)
        if found and entry.is_dir() and not entry.is_symlink() and not _alive(int(found[1])) and not _in_use(entry):
            shutil.rmtree(entry)
            removed.append(entry.name)
    return removed


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _in_use(staged: Path) -> bool:
    try:
        with open(staged / DROPPED, "rb+") as dropped:
            fcntl.flock(dropped, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
