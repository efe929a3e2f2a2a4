"""ENOSPC at every page and at every file of a save by the real checkpoint writer, on a real small file system."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_runs import Attempt, Tiny

from supervisor.protocol.attempt import ExitKind
from supervisor.protocol.manifest import verify_checkpoint
from supervisor.protocol.paths import RunPaths
from trainer.errors import classify

PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def saved(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attempt]:
    """A real run with checkpoints of steps 1 and 2 on a tmpfs of 4 MiB, its trainer still able to save."""
    root = tmp_path_factory.mktemp("sweep") / "run"
    folder = root / "checkpoints"
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small tmpfs needs root and the permission to mount")
    try:
        yield tiny.run(str(root), {"train.max_steps": 2}, save_steps=1, seen=Attempt(RunPaths(root)))
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def take_away(checkpoint: Path) -> int:
    """Remove a checkpoint; returns the bytes that it took up on the file system."""
    before = free(checkpoint.parent)
    for file in checkpoint.iterdir():
        file.unlink()
    checkpoint.rmdir()
    return free(checkpoint.parent) - before


def free(folder: Path) -> int:
    figures = os.statvfs(folder)
    return figures.f_bavail * figures.f_frsize


def save_fails_whole(run: Attempt) -> bool:
    """Save step 2 once more. True when it failed for want of room, leaving everything as it was."""
    folder, good = run.paths.checkpoints(), run.paths.checkpoint(1)
    failed: Exception | None = None
    try:
        run.built._save_checkpoint(run.built.model, None)
    except Exception as error:  # noqa: BLE001  # what the writer makes of ENOSPC is what is tested
        failed = error
    assert verify_checkpoint(good) == []
    if failed is None:
        assert verify_checkpoint(run.paths.checkpoint(2)) == []
        return False
    assert classify(failed) is ExitKind.DISK_FULL, repr(failed)
    assert {path.name for path in folder.iterdir()} <= {good.name, "stranger"}
    return True


# proves SUP-13, TRN-12: full at byte k of a save, for every page of it: nothing half-written, the one before stays good
def test_full_at_every_page_of_a_save(saved: Attempt) -> None:
    folder = saved.paths.checkpoints()
    size = take_away(saved.paths.checkpoint(2))
    stranger = folder / "stranger"
    failed = []
    for room in range(0, size + 2 * PAGE, PAGE):
        with open(stranger, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, free(folder) - room)
        failed.append(save_fails_whole(saved))
        stranger.unlink()
        if not failed[-1]:
            take_away(saved.paths.checkpoint(2))
    assert len(failed) > 20
    assert failed == sorted(failed, reverse=True), "with more room than it needs a save must not fail"
    assert failed[size // PAGE - 1] and not failed[-1]
    assert not save_fails_whole(saved), "with room again the very same trainer saves"


# proves SUP-13: no inode left, for every file of a save
def test_no_inode_left_for_every_file_of_a_save(saved: Attempt) -> None:
    folder = saved.paths.checkpoints()
    if not saved.paths.checkpoint(2).exists():
        assert not save_fails_whole(saved)
    files = len(list(saved.paths.checkpoint(2).iterdir()))
    take_away(saved.paths.checkpoint(2))
    figures = os.statvfs(folder)
    used = figures.f_files - figures.f_ffree
    failed = []
    for more in range(files + 3):
        limit = f"remount,nr_inodes={used + more}"
        subprocess.run(["mount", "-o", limit, str(folder)], check=True, capture_output=True)
        failed.append(save_fails_whole(saved))
        if not failed[-1]:
            take_away(saved.paths.checkpoint(2))
    subprocess.run(["mount", "-o", "remount,nr_inodes=10000", str(folder)], check=True, capture_output=True)
    assert failed == sorted(failed, reverse=True)
    assert failed[files - 1] and not failed[-1]
