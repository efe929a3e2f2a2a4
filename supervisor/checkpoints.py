"""Which checkpoints are trusted, which are kept, and where the bad ones go."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from supervisor.protocol.atomic import STAGING_PREFIX, fsync_directory, replace_symlink
from supervisor.protocol.manifest import MANIFEST_NAME, Fault, Manifest, read_manifest, verify_checkpoint
from supervisor.protocol.paths import RunPaths, checkpoint_name, checkpoint_step
from supervisor.sensors.disk import tree_bytes

MOST_READERS = 4
"""Checkpoints that are verified at a time: more would only make a disk seek."""


@dataclass(frozen=True)
class CheckpointInfo:
    """One checkpoint as found on disk. ``faults`` is empty when it verifies; ``size`` is in bytes.

    ``manifest`` is None when there is no readable one.
    """

    path: Path
    step: int
    size: int
    manifest: Manifest | None
    faults: tuple[Fault, ...]

    @property
    def good(self) -> bool:
        return not self.faults

    @property
    def eval_loss(self) -> float | None:
        return self.manifest.eval_loss if self.manifest else None

    @property
    def interim(self) -> bool:
        return self.manifest is not None and self.manifest.interim


def checkpoint_folders(directory: Path) -> list[Path]:
    """The checkpoint folders of one lineage, oldest step first; staged and foreign entries left out."""
    if not directory.is_dir():
        return []
    found = [(checkpoint_step(entry.name), entry) for entry in directory.iterdir() if entry.is_dir()]
    return [entry for step, entry in sorted((step, entry) for step, entry in found if step is not None)]


def inspect_checkpoint(path: Path) -> CheckpointInfo:
    """Read and verify one checkpoint. Every file is read: seconds for gigabytes."""
    step = checkpoint_step(path.name)
    faults: list[Fault] = []
    manifest = None
    try:
        faults = verify_checkpoint(path)
        manifest = read_manifest(path)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        faults = faults or [Fault(MANIFEST_NAME, "unreadable")]
    except OSError as error:
        faults = [Fault(Path(error.filename or path).name, f"cannot be read ({error.strerror})")]
    if manifest is not None and not faults and manifest.step != step:
        faults = [Fault(MANIFEST_NAME, f"is of step {manifest.step}, the folder's name says {step}")]
    return CheckpointInfo(path, step if step is not None else -1, tree_bytes(path), manifest, tuple(faults))


def inspect_lineage(directory: Path) -> list[CheckpointInfo]:
    """All checkpoints of one lineage, verified, oldest step first. Every core reads some: a crash waits for this."""
    from concurrent.futures import ThreadPoolExecutor  # takes a while to import, and most commands verify nothing

    with ThreadPoolExecutor(min(MOST_READERS, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(inspect_checkpoint, checkpoint_folders(directory)))


def best_checkpoint(infos: Sequence[CheckpointInfo]) -> CheckpointInfo | None:
    """The good one with the lowest evaluation loss, the earlier one on a tie; None if none was evaluated."""
    rated = [(info.eval_loss, info.step, info) for info in infos if info.good and info.eval_loss is not None]
    return min(rated, key=lambda entry: entry[:2])[2] if rated else None


def to_delete(
    infos: Sequence[CheckpointInfo], keep: int, best: Path | None, protected: Collection[Path] = ()
) -> list[CheckpointInfo]:
    """What retention removes, oldest first: good ones beyond the newest ``keep``.

    Never the newest good one (whatever ``keep`` says), never ``best``, never one of ``protected``. An interim one
    is kept only as the newest, so that a row of crashes does not push out those further apart.
    Bad ones are left to the quarantine and do not count as kept.
    """
    good = sorted((info for info in infos if info.good), key=lambda info: info.step)
    regular = [info for info in good[:-1] if not info.interim]
    kept = {info.path for info in (*good[-1:], *(regular[1 - keep :] if keep > 1 else []))}
    return [info for info in good if info.path not in kept and info.path != best and info.path not in protected]


def delete_checkpoint(path: Path) -> None:
    """Hide the checkpoint by one rename, then remove it: a half-deleted one is never visible."""
    hidden = path.with_name(f"{STAGING_PREFIX}deleted-{path.name}-{os.getpid()}")
    os.rename(path, hidden)
    fsync_directory(path.parent)
    shutil.rmtree(hidden)


def quarantine_checkpoint(path: Path, quarantine: Path) -> Path:
    """Move a distrusted checkpoint aside under a name that is free there; nothing is deleted."""
    quarantine.mkdir(parents=True, exist_ok=True)
    target = quarantine / path.name
    number = 2
    while target.exists():
        target = quarantine / f"{path.name}.{number}"
        number += 1
    os.rename(path, target)
    fsync_directory(quarantine)
    fsync_directory(path.parent)
    return target


def ever_saved(paths: RunPaths, lineage: int) -> bool:
    """Was there ever a checkpoint in this lineage, good or quarantined? Then a run never starts from zero."""
    quarantine = paths.quarantine(lineage)
    return bool(checkpoint_folders(paths.checkpoints(lineage))) or (quarantine.is_dir() and any(quarantine.iterdir()))


def link_checkpoint(link: Path, target: Path) -> bool:
    """Point ``link`` (in the run directory) at a checkpoint; True when that changed something."""
    relative = target.relative_to(link.parent).as_posix()
    if link.is_symlink() and str(link.readlink()) == relative:
        return False
    replace_symlink(link, relative)
    return True


def linked_checkpoint(link: Path) -> Path | None:
    """The checkpoint that ``link`` names, or None when there is no link or nothing behind it."""
    if not link.is_symlink():
        return None
    target = link.parent / link.readlink()
    return target if target.is_dir() else None


def planned_checkpoint(paths: RunPaths, lineage: int, planned_steps: int) -> CheckpointInfo | None:
    """The verified checkpoint of the last planned step, or None."""
    path = paths.checkpoints(lineage) / checkpoint_name(planned_steps)
    if not path.is_dir():
        return None
    info = inspect_checkpoint(path)
    return info if info.good else None
