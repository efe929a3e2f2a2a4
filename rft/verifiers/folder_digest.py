"""What stands in a folder that judging depends on, as a digest for a verifier's version."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

MOST_BYTES = 1 << 30
"""Of larger folders, files are known by size and time of change instead of by content."""
_LEFT_OUT = frozenset({"__pycache__", ".git"})


def folder_digest(folder: str | Path) -> str:
    """32 hexadecimal digits of the names and contents of all files below; of a link, where it points to.

    What cannot be read counts as such: a verifier that needs it will say so.
    """
    found = [Path(place, name) for place, folders, names in _walk(Path(folder)) for name in names]
    try:
        whole = sum(path.lstat().st_size for path in found) <= MOST_BYTES
    except OSError:
        whole = False  # it changes while it is looked at
    digest = hashlib.blake2b(digest_size=16)
    for path in found:
        digest.update(f"{path.relative_to(folder)}\0".encode("utf-8", "surrogateescape"))
        digest.update(_content(path, whole))
    return digest.hexdigest()


def _walk(folder: Path) -> list[tuple[str, list[str], list[str]]]:
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        links = [name for name in folders if Path(place, name).is_symlink()]
        found.append((place, folders, sorted([*names, *links])))
    return found


def _content(path: Path, whole: bool) -> bytes:
    try:
        if path.is_symlink():
            return f"link {path.readlink()}\0".encode("utf-8", "surrogateescape")
        if whole and path.is_file():
            with open(path, "rb") as file:
                return hashlib.file_digest(file, "sha256").digest()
        seen = path.lstat()
        return f"{seen.st_mode} {seen.st_size} {seen.st_mtime_ns}\0".encode()
    except OSError as error:
        return f"unreadable {error.errno}\0".encode()
