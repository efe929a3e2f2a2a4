"""While a trainer runs: its progress, its new checkpoints, the room on the disk."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from supervisor.checkpoints import (
    CheckpointInfo,
    best_checkpoint,
    checkpoint_folders,
    delete_checkpoint,
    inspect_checkpoint,
    link_checkpoint,
    linked_checkpoint,
    quarantine_checkpoint,
    to_delete,
)
from supervisor.protocol.events import Event, EventReader
from supervisor.protocol.heartbeat import Phase, read_heartbeat
from supervisor.protocol.manifest import read_manifest
from supervisor.sensors.disk import FULL_ERRORS, disk_space, human_bytes
from supervisor.supervise.foreign import foreign_kind, quarantine_folder, shown_place
from supervisor.supervise.opening import Run
from supervisor.supervise.sensing import Sensing
from supervisor.view.wording import number

DISK_SECONDS = 5.0
ROOM_MARGIN_BYTES = 1 << 20
"""Besides a checkpoint: room for logs, events and state."""


def needed_bytes(infos: Collection[CheckpointInfo]) -> int:
    """Room that the next save needs beside what is there: the largest checkpoint so far, and a margin."""
    return max((info.size for info in infos), default=0) + ROOM_MARGIN_BYTES


class Follower:
    """Keeps the run's state up to date from what one trainer writes. To be made before that is launched.

    ``good``: the verified checkpoints so far. ``offset``: where to begin in the event log; None: at its end.
    """

    def __init__(self, run: Run, good: Sequence[CheckpointInfo], sensing: Sensing, offset: int | None = None) -> None:
        self.run = run
        self._sensing = sensing
        sensing.expect()
        self._keep = run.config.own.checkpoint.keep
        self._paths = run.paths.attempt(run.state.attempt)
        self._folder = run.paths.checkpoints(run.state.lineage)
        size = run.paths.events.stat().st_size if run.paths.events.exists() else 0
        self._reader = EventReader(run.paths.events, offset=size if offset is None else offset)
        self._seen_mtime = 0
        self._known = {info.path: info for info in good}
        self._disk_checked = 0.0
        self._warned_low = False

    @property
    def good(self) -> tuple[CheckpointInfo, ...]:
        """The verified checkpoints that are on disk, oldest step first."""
        return tuple(sorted(self._known.values(), key=lambda info: info.step))

    def began(self, trainer_pid: int) -> None:
        """The trainer has been started."""
        self._sensing.begin(trainer_pid, *self._checkpoint_bytes())

    def tick(self, *, last: bool = False) -> None:
        """Look once. ``last``: the trainer has ended, take in everything and write the state."""
        self._take_events()
        beat = read_heartbeat(self._paths.heartbeat)
        if beat is not None:
            if beat.phase > Phase.LOADING:  # before that a resumed trainer doesn't know its step yet
                self.run.state.step = beat.step
            self.run.state.planned_steps = beat.planned_steps or self.run.state.planned_steps
        try:
            saved = self._take_checkpoints(look_anyway=last)
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                raise
            saved = False  # no room for a link or a folder: the trainer may go on, the next launch looks again
            self.run.journal.event("warning", f"new checkpoints are not looked after yet: {error.strerror}")
        if time.monotonic() - self._disk_checked > DISK_SECONDS:
            self._disk_checked = time.monotonic()
            self._check_room()
        if last:
            self._sensing.end(*self._checkpoint_bytes())
        else:
            self._sensing.tick(*self._checkpoint_bytes())
        self.run.journal.save(force=saved or last)

    def _take_events(self) -> None:
        for event in self._reader.new():
            if event.source == "trainer" and event.attempt == self.run.state.attempt:
                take_facts(self.run, event)

    def take_in(self) -> None:
        """The supervisor itself has added a checkpoint."""
        self._take_checkpoints(look_anyway=True)
        self.run.journal.save()

    def _take_checkpoints(self, look_anyway: bool) -> bool:
        """Verify new checkpoints, apply retention; True when there was one. Cheap when nothing is new."""
        if foreign_kind(self.run) is not None:
            return False  # wherever its own are: they may be half saved, and are looked at before the next attempt
        try:
            mtime = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        if mtime == self._seen_mtime and not look_anyway:
            return False
        self._seen_mtime = mtime
        new = [path for path in checkpoint_folders(self._folder) if path not in self._known or self._rated(path)]
        for path in new:
            info = inspect_checkpoint(path)
            if info.good:
                if path not in self._known:
                    self._accept(info)
                self._known[path] = info
            else:
                self._known.pop(path, None)
                quarantine(self.run, info.path, info.step, info.faults)
        if new:
            apply_retention(self.run, self._known)
        return bool(new)

    def _rated(self, path: Path) -> bool:
        """Has an evaluation been made up for that belongs to this known checkpoint?"""
        if self._known[path].eval_loss is not None:
            return False
        try:
            return read_manifest(path).eval_loss is not None
        except (OSError, msgspec.DecodeError):
            return False  # no manifest any more, or no whole one: the next launch verifies it

    def _accept(self, info: CheckpointInfo) -> None:
        state = self.run.state
        state.last_checkpoint = info.path.relative_to(self.run.paths.root).as_posix()
        if info.manifest is not None:
            state.tokens_seen = info.manifest.tokens_seen
        self.run.journal.event(
            "checkpoint_verified", f"checkpoint of step {info.step} is verified", step=info.step, bytes=info.size
        )

    def _checkpoint_bytes(self) -> tuple[int, int]:
        """What the checkpoints take up, and what more retention lets them: the best and a new one besides `keep`."""
        sizes = [info.size for info in self._known.values()]
        most = (self._keep + 2) * max(sizes, default=0)
        return sum(sizes), max(0, most - sum(sizes))

    def _check_room(self) -> None:
        infos = list(self._known.values())
        space = disk_space(self.run.paths.root)
        needed = needed_bytes(infos)
        low = space.free_bytes < needed + max((info.size for info in infos), default=0)
        if low and not self._warned_low:
            self.run.journal.event(
                "disk_low",
                f"{space.mount} has {human_bytes(space.free_bytes)} free, the next checkpoint needs "
                f"{human_bytes(needed)}",
                free_bytes=space.free_bytes,
                needed_bytes=needed,
            )
        self._warned_low = low


def take_facts(run: Run, event: Event) -> None:
    """What a trainer's event tells about the run: the corpus, the plan, the tokens so far."""
    if event.kind == "corpus":
        run.facts = dict(event.data)
    tokens, planned = event.data.get("tokens_seen"), event.data.get("planned_steps")
    if isinstance(tokens, int):
        run.state.tokens_seen = tokens
    if isinstance(planned, int):
        run.state.planned_steps = planned
    if event.kind == "progress" and (loss := number(event.data, "loss")) is not None:
        run.state.loss = loss
    if event.kind == "evaluation" and (loss := number(event.data, "eval_loss")) is not None:
        run.state.eval_loss = loss


def quarantine(run: Run, path: Path, step: int, faults: Sequence[object]) -> None:
    """Move a bad checkpoint aside and say so, naming every file and what is wrong with it."""
    moved = quarantine_checkpoint(path, quarantine_folder(run, path))
    place = shown_place(run, moved)
    named = [str(fault) for fault in faults]
    run.journal.event(
        "checkpoint_quarantined",
        f"the checkpoint of step {step} is not trusted and was moved to {place}: {'; '.join(named)}",
        step=step,
        faults=named,
        path=place,
    )


def apply_retention(run: Run, known: dict[Path, CheckpointInfo]) -> None:
    """Update ``best``, then delete what retention does not keep; ``known`` loses the deleted ones."""
    best = update_best(run, list(known.values()))
    final = linked_checkpoint(run.paths.final)
    keep = run.config.own.checkpoint.keep
    for info in to_delete(list(known.values()), keep, best, [final] if final else []):
        delete_checkpoint(info.path)
        del known[info.path]
        message = f"checkpoint of step {info.step} deleted: checkpoint.keep is {keep}"
        run.journal.event("checkpoint_deleted", message, step=info.step)


def update_best(run: Run, infos: Sequence[CheckpointInfo]) -> Path | None:
    """Point ``best`` at the checkpoint with the lowest evaluation loss; returns its path or None."""
    best = best_checkpoint(infos)
    if best is None:
        return None
    run.state.best_checkpoint = best.path.relative_to(run.paths.root).as_posix()
    if link_checkpoint(run.paths.best, best.path):
        run.journal.event(
            "best", f"best so far: step {best.step}, evaluation loss {best.eval_loss:.4f}", step=best.step
        )
    return best.path
