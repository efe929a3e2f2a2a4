"""Files that are either whole or absent: stage in a hidden sibling, fsync, one rename."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

STAGING_PREFIX = ".staging-"
FSYNC_THREADS = 8


def fsync_directory(directory: Path) -> None:
    """Make renames and creations inside ``directory`` durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, data: bytes | Iterable[bytes | memoryview], mode: int = 0o644) -> None:
    """Replace ``path`` by ``data``, whole or in parts; a reader sees the old file or the new one, never a piece.

    ``mode``: the permissions of the new file, less what the umask takes away.
    Raises OSError (for example ENOSPC); the old file is then untouched and the staged one removed.
    """
    staged = path.with_name(f"{STAGING_PREFIX}{path.name}.{os.getpid()}")
    try:
        fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(fd, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def replace_symlink(link: Path, target: str) -> None:
    """Point ``link`` at ``target`` (relative to the link's folder) in one rename."""
    staged = link.with_name(f"{STAGING_PREFIX}{link.name}.{os.getpid()}")
    staged.unlink(missing_ok=True)
    os.symlink(target, staged)
    try:
        os.replace(staged, link)
    except OSError:
        staged.unlink()
        raise
    fsync_directory(link.parent)


@contextmanager
def staged_directory(final: Path) -> Iterator[Path]:
    """Yield a hidden sibling of ``final``; on a clean exit fsync everything in it and rename it.

    If the body raises, the staged folder is removed and ``final`` never appears. ``final`` must
    not exist (FileExistsError): nothing is ever overwritten.
    """
    if final.exists():
        raise FileExistsError(f"{final} exists already and is never overwritten")
    final.parent.mkdir(parents=True, exist_ok=True)
    staged = final.with_name(f"{STAGING_PREFIX}{final.name}-{os.getpid()}")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    try:
        yield staged
        _fsync_tree(staged)
        os.rename(staged, final)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    fsync_directory(final.parent)


def _fsync_tree(directory: Path) -> None:
    """Several files at a time: what a file system writes to its journal, it then writes for all of them at once."""
    from concurrent.futures import ThreadPoolExecutor  # takes a while to import, and most processes save nothing

    found = list(os.walk(directory))
    with ThreadPoolExecutor(FSYNC_THREADS) as pool:
        for _ in pool.map(fsync_file, [Path(root, name) for root, _, names in found for name in names]):
            pass  # raises what the call raised
    for root, _, _ in found:
        fsync_directory(Path(root))


def remove_staging(directory: Path) -> list[str]:
    """Remove what a killed writer left behind; returns the names. Call it only without a writer."""
    if not directory.is_dir():
        return []
    leftovers = [entry for entry in directory.iterdir() if entry.name.startswith(STAGING_PREFIX)]
    for entry in leftovers:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    return sorted(entry.name for entry in leftovers)
