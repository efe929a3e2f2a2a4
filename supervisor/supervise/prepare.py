"""What the next attempt starts from, and whether the disk has room for what it will save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.checkpoints import CheckpointInfo, best_checkpoint, ever_saved, linked_checkpoint
from supervisor.diagnosis.kinds import FailureKind
from supervisor.diagnosis.values import Diagnosis, fingerprint
from supervisor.jobs import Relief, keeps_own_state
from supervisor.protocol.atomic import remove_staging
from supervisor.relief.policy import Stop
from supervisor.relief.retention import plan_trim
from supervisor.sensors.disk import disk_space, human_bytes
from supervisor.state import Outcome
from supervisor.supervise.follow import needed_bytes, quarantine, update_best
from supervisor.supervise.foreign import foreign_kind, inspect_checkpoints, quarantine_folder, shown_place
from supervisor.supervise.opening import Run
from supervisor.supervise.snapshots import with_snapshot


@dataclass(frozen=True)
class Prepared:
    """What the next attempt starts from. ``good``: all verified checkpoints of the lineage. ``step``: done already."""

    resume: CheckpointInfo | None
    good: tuple[CheckpointInfo, ...]
    step: int


def prepare(run: Run) -> Prepared | Stop:
    """Clean up, verify every checkpoint, quarantine the bad ones, choose the newest good one."""
    state = run.state
    folder = run.paths.checkpoints(state.lineage)
    for parent in (run.paths.root, folder, run.paths.attempts):
        if removed := remove_staging(parent):
            run.journal.event("staging_removed", f"half-written leftovers removed: {', '.join(removed)}")
    if keeps_own_state(run.kind):
        return Prepared(None, (), state.step)
    existed = ever_saved(run.paths, state.lineage) or state.last_checkpoint is not None
    infos = inspect_checkpoints(run)
    for info in infos:
        if not info.good:
            quarantine(run, info.path, info.step, info.faults)
    good = tuple(info for info in infos if info.good)
    good = with_snapshot(run, good)
    update_best(run, good)
    if best_checkpoint(good) is None:
        state.best_checkpoint = None
        run.paths.best.unlink(missing_ok=True)
    if good:
        state.last_checkpoint = shown_place(run, good[-1].path)
        return Prepared(good[-1], good, good[-1].step)
    if existed:
        folder = infos[-1].path.parent if infos else folder
        return Stop(
            Outcome.GAVE_UP,
            f"No trustworthy checkpoint is left in {folder}, although there were some: the bad ones are in "
            f"{quarantine_folder(run, folder / 'any')}, the reason for each stands in {run.paths.events.name}. A "
            "run never starts from zero again by itself. Restore a good checkpoint from a backup into that folder, "
            "or start again on purpose with a new --run-dir.",
        )
    state.last_checkpoint = None
    return Prepared(None, (), 0)


def shortage(run: Run, good: Sequence[CheckpointInfo]) -> Diagnosis | None:
    """A full disk foreseen: there is no room to save beside what is there."""
    space = disk_space(run.paths.root)
    needed = needed_bytes(good)
    if space.free_bytes >= needed and space.free_inodes != 0:
        return None
    cause = "There is no room for the next checkpoint."
    return Diagnosis(
        kind=FailureKind.DISK_FULL,
        confidence=1.0,
        step=run.state.step,
        where="before launch",
        evidence=(),
        retryable=True,
        explanation=cause,
        fingerprint=fingerprint(FailureKind.DISK_FULL, cause),
    )


def possible_trim(run: Run, good: Sequence[CheckpointInfo]) -> Relief | None:
    """What trimming retention would do now, None when it frees nothing."""
    if foreign_kind(run) is not None:
        return None  # its checkpoints are its own
    best, final = best_checkpoint(good), linked_checkpoint(run.paths.final)
    keep = run.config.own.checkpoint.keep
    return plan_trim(good, keep, best.path if best else None, [final] if final else [])


def room(run: Run, good: Sequence[CheckpointInfo]) -> str:
    """Free and needed space, for people."""
    space = disk_space(run.paths.root)
    inodes = "" if space.free_inodes is None else f" and {space.free_inodes} inodes"
    return (
        f"{space.mount} has {human_bytes(space.free_bytes)}{inodes} free; the next checkpoint needs "
        f"{human_bytes(needed_bytes(good))} there, beside the present ones."
    )
