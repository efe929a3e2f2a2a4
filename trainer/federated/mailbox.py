"""How a box's Flower process and its trainer meet: a folder, in which every file is whole or absent.

Flower starts a process for every message and the trainer keeps the base in memory for all rounds, so neither is the
other's child, and each may be killed and started again. A question that was answered before keeps its answer: asked
once more for the same round and broadcast, the same delta is handed in, and nothing is trained twice.
"""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import numpy as np

from supervisor.protocol.atomic import write_atomic
from trainer.federated.common import Common
from trainer.federated.packed import Flat, Layout, digest, of_rank

TASK_FILE = "task.json"
KEPT = 3
"""Answers that are kept, newest rounds first."""


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``task.json``: train from the broadcast of ``round`` (``broadcast``: its digest) for ``train_seconds``.

    ``over``: the federation has come to its end after ``round`` rounds, the trainer ends as well; the rest is of no
    account then. ``frozen_rank``: of the second adapter in the broadcast, which is computed with and not trained;
    ``frozen_room``: the rank that it may grow to, 0 where there is none. ``common``: what this box must have in common
    with all others; None where it is over.
    """

    federation: str
    round: int
    broadcast: str
    layout: Layout
    train_seconds: int
    warmup_steps: int
    over: bool = False
    frozen_rank: int = 0
    frozen_room: int = 0
    common: Common | None = None

    @property
    def broadcast_size(self) -> int:
        """Numbers in the broadcast."""
        return self.layout.size + of_rank(self.layout, self.frozen_rank).size


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``done-ROUND.json``: what the trainer did for a task; its adapter (the one that is trained) lies beside it, with
    ``digest``."""

    round: int
    broadcast: str
    digest: str
    label_tokens: int
    tokens: int
    steps: int
    seconds: float
    rows: int


class Mailbox:
    """Raises OSError where the folder cannot be read or written, ValueError for files that are none of ours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put_task(self, task: Task, broadcast: Flat) -> None:
        """The newest task is the one that counts; the trainer leaves an older one at its next step."""
        self._put_array(f"broadcast-{task.round}.npy", broadcast)
        write_atomic(self.folder / TASK_FILE, msgspec.json.encode(task))
        for stale in sorted(self.folder.glob("broadcast-*.npy")):
            if stale.name != f"broadcast-{task.round}.npy":
                stale.unlink(missing_ok=True)

    def put_end(self, task: Task) -> None:
        """A task that is ``over``."""
        write_atomic(self.folder / TASK_FILE, msgspec.json.encode(task))

    def task(self) -> Task | None:
        """None while there is none."""
        try:
            return msgspec.json.decode((self.folder / TASK_FILE).read_bytes(), type=Task)
        except FileNotFoundError:
            return None

    def broadcast(self, task: Task) -> Flat:
        flat = self._array(f"broadcast-{task.round}.npy")
        if digest(flat) != task.broadcast:
            raise ValueError(f"the broadcast of round {task.round} in {self.folder} is not the one of its task")
        return flat

    def put_done(self, done: Done, adapter: Flat) -> None:
        self._put_array(f"adapter-{done.round}.npy", adapter)
        write_atomic(self.folder / f"done-{done.round}.json", msgspec.json.encode(done))
        for number in sorted(self._rounds_done(), reverse=True)[KEPT:]:
            (self.folder / f"done-{number}.json").unlink(missing_ok=True)
            (self.folder / f"adapter-{number}.npy").unlink(missing_ok=True)

    def done(self, number: int, broadcast: str) -> tuple[Done, Flat] | None:
        """None while the round isn't done, or was done from another broadcast."""
        try:
            done = msgspec.json.decode((self.folder / f"done-{number}.json").read_bytes(), type=Done)
        except FileNotFoundError:
            return None
        if done.broadcast != broadcast:
            return None
        adapter = self._array(f"adapter-{number}.npy")
        return (done, adapter) if digest(adapter) == done.digest else None

    def _rounds_done(self) -> list[int]:
        names = [path.stem.partition("-")[2] for path in self.folder.glob("done-*.json")]
        return [int(name) for name in names if name.isdecimal()]

    def _put_array(self, name: str, flat: Flat) -> None:
        buffer = io.BytesIO()
        np.save(buffer, flat, allow_pickle=False)
        write_atomic(self.folder / name, buffer.getvalue())

    def _array(self, name: str) -> Flat:
        flat: Flat = np.load(self.folder / name, allow_pickle=False)
        return flat
