"""Snapshots in shared memory: a place for each run, and saving the last one when its trainer has died."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from supervisor.checkpoints import CheckpointInfo, best_checkpoint, inspect_checkpoint, to_delete
from supervisor.jobs import keeps_own_state
from supervisor.protocol.atomic import staged_directory
from supervisor.protocol.attempt import read_spec
from supervisor.protocol.lock import lock_holder
from supervisor.protocol.manifest import FileRecord, Manifest, write_manifest
from supervisor.protocol.paths import RunPaths
from supervisor.protocol.snapshot import SEAL_NAME, SLOTS, FastDigest, Seal, SealedFile, read_seal
from supervisor.sensors.disk import FULL_ERRORS, disk_space, human_bytes
from supervisor.sensors.mounts import SHARED_MEMORY
from supervisor.supervise.follow import ROOM_MARGIN_BYTES, Follower, apply_retention, needed_bytes, quarantine
from supervisor.supervise.foreign import foreign_kind
from supervisor.supervise.opening import Run

OWNER_NAME = "owner.json"
STALE_SECONDS = 24 * 3600.0
"""How long the snapshot of a run that nobody works on stays, for somebody to go on with it."""


class TornSnapshotError(Exception):
    """A sealed snapshot whose files are not those that were sealed."""


class _Owner(msgspec.Struct, frozen=True):
    """``owner.json``: whose folder it is. ``started``: of the run, so that a new one in the same place is another."""

    run_dir: str
    started: float


def snapshot_home(run: Run) -> Path | None:
    """The next attempt's folder in shared memory, whether it exists or not; None when snapshots are off."""
    chosen = run.config.own.checkpoint.snapshot
    if chosen == "off" or foreign_kind(run) is not None or keeps_own_state(run.kind):
        return None
    return _home_in(SHARED_MEMORY if chosen == "auto" else Path(chosen), run)


def home_of(run: Run, attempt: int) -> Path | None:
    """The folder of an attempt that was made: the configuration may have changed since. None: it had no snapshots."""
    try:
        spec = read_spec(run.paths.attempt(attempt).spec)
    except FileNotFoundError:
        return None
    # The name is not taken from there: in a copied run directory it would be that of another run.
    return _home_in(Path(spec.snapshots).parent, run) if spec.snapshots else None


def _home_in(place: Path, run: Run) -> Path:
    name = hashlib.sha256(msgspec.json.encode(_owner(run))).hexdigest()[:16]
    return place / f"{_prefix()}{name}"


def fresh_home(run: Run) -> str | None:
    """An empty folder for the attempt that is being prepared, those of the one before gone.

    None, and said why, when there can be none.
    """
    home, before = snapshot_home(run), home_of(run, run.state.attempt - 1)
    if before is not None and before != home:
        _remove_or_say(run, before)
    if home is None:
        return None
    try:
        remove_stale(run, home.parent)
        _remove(home)
        home.mkdir(mode=0o700)
        (home / OWNER_NAME).write_bytes(msgspec.json.encode(_owner(run)))
    except OSError as error:
        steps = run.config.own.checkpoint.save_steps
        run.journal.event(
            "warning",
            f"no snapshots between checkpoints: {home} cannot be used ({error.strerror}). A crash costs up to {steps} "
            "steps; checkpoint.snapshot names another place, or off",
        )
        return None
    return str(home)


def rescue(run: Run, follower: Follower) -> None:
    """After a trainer has ended: what it had done since its last checkpoint becomes a checkpoint."""
    if flush_snapshot(run, follower.good, quiet=True) is not None:
        follower.take_in()


def flush_snapshot(run: Run, good: Sequence[CheckpointInfo], *, quiet: bool = False) -> Path | None:
    """Save the newest whole snapshot if it is newer than all of ``good``; returns the new checkpoint.

    Only without a trainer. Torn and damaged ones are passed over, and said. For want of room nothing is changed;
    with ``quiet`` that is not said, because it will be tried again; ``run.unsaved`` has the reason.
    """
    run.unsaved = ""
    newest = max((info.step for info in good), default=0)
    for slot, sealed in _newer(run, newest):
        manifest = sealed.manifest
        final = run.paths.checkpoint(manifest.step, run.state.lineage)
        if missing := _missing_room(run, good, final, sealed):
            _not_saved(run, manifest.step, newest, missing, quiet=quiet)
            return None
        try:
            save_snapshot(slot, sealed, final)
        except TornSnapshotError as error:
            _distrust(run, slot, f"the snapshot of step {manifest.step} is not trusted: {error}")
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                raise
            _not_saved(run, manifest.step, newest, str(error.strerror), quiet=quiet)
            return None
        else:
            run.journal.event(
                "snapshot_saved",
                f"the state after step {manifest.step} was in shared memory and is a checkpoint now; the newest one "
                f"before it is of step {newest}",
                step=manifest.step,
                bytes=sealed.size,
                steps_kept=manifest.step - newest,
            )
            return final
    return None


def with_snapshot(run: Run, good: tuple[CheckpointInfo, ...]) -> tuple[CheckpointInfo, ...]:
    """``good`` after the last snapshot was saved, if it is newer, and retention has made room for it."""
    saved = flush_snapshot(run, good)
    if saved is None:
        return good
    info = inspect_checkpoint(saved)
    if not info.good:
        quarantine(run, info.path, info.step, info.faults)
        return good
    known = {each.path: each for each in (*good, info)}
    apply_retention(run, known)
    return tuple(sorted(known.values(), key=lambda each: each.step))


def drop_snapshots(run: Run) -> None:
    """Nothing in shared memory is to be used any more."""
    home = home_of(run, run.state.attempt)
    if home is not None:
        _remove(home)


def end_snapshots(run: Run, *, completed: bool) -> None:
    """The run ends. What could not be saved stays a while, for whoever makes room and goes on."""
    home = home_of(run, run.state.attempt)
    if home is None:
        return
    last = run.state.last_checkpoint
    saved = int(last.rpartition("-")[2]) if last and last.rpartition("-")[2].isdigit() else 0
    left = [] if completed else _newer(run, saved)
    if not left:
        _remove_or_say(run, home)
        return
    step = left[0][1].manifest.step
    why, remedy = (f" ({run.unsaved})", "make room, then run again") if run.unsaved else ("", "run again")
    run.journal.event(
        "warning",
        f"the state after step {step} is only in shared memory, {home}: it was not saved{why}. It stays there until "
        f"the machine restarts, or for {STALE_SECONDS / 3600:.0f} h: {remedy}",
        step=step,
    )


def remove_stale(run: Run, place: Path) -> None:
    """Remove our folders of runs that nobody has worked on for a day; also one that is gone may be on a disk that is
    mounted again tomorrow.
    """
    for home in sorted(place.glob(f"{_prefix()}*")):
        try:
            owner = msgspec.json.decode((home / OWNER_NAME).read_bytes(), type=_Owner)
        except (OSError, msgspec.DecodeError):
            continue  # being made right now, or not ours
        try:
            stale = _is_stale(home, owner)
        except OSError as error:
            _say_not_removed(run, home, error)
            continue
        if stale and _remove_or_say(run, home):
            run.journal.event("snapshots_removed", f"old snapshots of another run were removed: {owner.run_dir}")


def _is_stale(home: Path, owner: _Owner) -> bool:
    paths = RunPaths(Path(owner.run_dir))
    if any(lock_holder(lock) is not None for lock in (paths.supervisor_lock, paths.trainer_lock)):
        return False
    files = (home / slot / SEAL_NAME for slot in SLOTS)
    newest = max((file.stat().st_mtime for file in files if file.exists()), default=0.0)
    return time.time() - newest > STALE_SECONDS


def _newer(run: Run, step: int) -> list[tuple[Path, Seal]]:
    """The sealed snapshots of this lineage after ``step``, newest first."""
    home = home_of(run, run.state.attempt)
    if home is None or not home.is_dir() or not _is_private(home):
        return []
    found = []
    for name in SLOTS:
        try:
            sealed = read_seal(home / name)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _distrust(run, home / name, f"the snapshot in {home / name} is not trusted: its seal is none ({error})")
            continue
        if sealed is not None and _fits(sealed.manifest, run, step):
            found.append((home / name, sealed))
    return sorted(found, key=lambda entry: entry[1].manifest.step, reverse=True)


def _fits(manifest: Manifest, run: Run, step: int) -> bool:
    return manifest.lineage == run.state.lineage and manifest.attempt <= run.state.attempt and manifest.step > step


def _missing_room(run: Run, good: Sequence[CheckpointInfo], final: Path, sealed: Seal) -> str:
    """Why saving it would take the room of the next checkpoint; empty when there is room for both.

    Retention makes some, as soon as it is saved.
    """
    info = CheckpointInfo(final, sealed.manifest.step, sealed.size, sealed.manifest, ())
    best = best_checkpoint(good)
    freed = to_delete([*good, info], run.config.own.checkpoint.keep, best.path if best else None)
    space = disk_space(run.paths.root)
    afterwards = needed_bytes([*good, info]) - sum(each.size for each in freed)
    needed = info.size + max(ROOM_MARGIN_BYTES, afterwards)
    if space.free_bytes >= needed and space.free_inodes != 0:
        return ""
    free = human_bytes(space.free_bytes)
    return f"{space.mount} has {free} free, it and the next checkpoint need {human_bytes(needed)}"


def _distrust(run: Run, slot: Path, message: str) -> None:
    """Say it once: without its seal the slot is not looked at again."""
    run.journal.event("warning", message)
    (slot / SEAL_NAME).unlink(missing_ok=True)


def _not_saved(run: Run, step: int, newest: int, why: str, *, quiet: bool) -> None:
    run.unsaved = why
    if quiet:
        return
    run.journal.event(
        "warning",
        f"the snapshot of step {step} cannot be saved: {why}. The run goes on from step {newest}",
        step=step,
    )


def save_snapshot(slot: Path, sealed: Seal, final: Path) -> None:
    """Copy, comparing on the way with what was sealed. Raises TornSnapshotError or OSError, and then leaves nothing."""
    with staged_directory(final) as staged:
        files = {}
        for name, record in sealed.files.items():
            if Path(name).name != name:
                raise TornSnapshotError(f"{name} is no file name")
            seen, files[name] = _copy(slot / name, staged / name)
            if seen != record:
                raise TornSnapshotError(f"{name} differs from what was sealed")
        write_manifest(staged, msgspec.structs.replace(sealed.manifest, files=files))


def _copy(source: Path, target: Path) -> tuple[SealedFile, FileRecord]:
    if not source.is_file():
        raise TornSnapshotError(f"{source.name} is missing")
    fast, strong = FastDigest(), hashlib.sha256()
    with open(source, "rb", buffering=0) as reading, open(target, "wb") as writing:
        while chunk := reading.read(1 << 20):
            fast.update(chunk)
            strong.update(chunk)
            writing.write(chunk)
    return fast.sealed, FileRecord(fast.sealed.size, strong.hexdigest())


def _owner(run: Run) -> _Owner:
    return _Owner(str(run.paths.root.resolve()), run.state.started)


def _prefix() -> str:
    return f"mens-sup-{os.geteuid()}-"


def _is_private(home: Path) -> bool:
    """In a place where everybody may write: a folder of ours that only we may enter."""
    found = home.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _remove(home: Path) -> None:
    if home.is_symlink() or not home.exists():
        return
    if _is_private(home):
        shutil.rmtree(home)


def _remove_or_say(run: Run, home: Path) -> bool:
    """Remove it; False, and said why, when that fails: no run ends for what lies about in memory."""
    try:
        _remove(home)
    except OSError as error:
        _say_not_removed(run, home, error)
        return False
    return True


def _say_not_removed(run: Run, home: Path, error: OSError) -> None:
    run.journal.event("warning", f"the snapshots in {home} cannot be removed: {error.strerror} ({error.filename})")
