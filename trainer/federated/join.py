"""``mens-sup federate join``: a box's SuperNode and its own supervised trainer, each started anew when it dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from supervisor.problems import InputError
from trainer.federated import flower
from trainer.federated.identity import AUTHORITY, NODE_FILE, Node
from trainer.federated.leftovers import alone, end_marked
from trainer.federated.mailbox import Mailbox
from trainer.federated.reach import LONGEST_SECONDS, Reach, distrust
from trainer.federated.serve import Stop

FOLDER_VARIABLE = "MENS_FEDERATED_NODE"
MAILBOX = "mailbox"
TRAIN_FILE = "train.yaml"
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Seconds before a SuperNode is started anew. A keyed node that was killed is refused for about a minute."""
STEADY_SECONDS = 120.0
PARTING_SECONDS = 10.0
"""For the SuperNode to bring the coordinator the answer that the end is known here."""
TRAINER_PATIENCE_SECONDS = 120.0
"""For a last snapshot."""


def join(folder: Path, say: Callable[[str], None]) -> int:
    """Until asked to stop or told that all is over (0), or the trainer's supervisor has given up (its exit code).

    Raises InputError.
    """
    folder = folder.resolve()
    try:
        node = msgspec.json.decode((folder / NODE_FILE).read_bytes(), type=Node)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{folder / NODE_FILE}: {error}. Give a node's folder, as federate init makes it.") from None
    if not (folder / TRAIN_FILE).is_file():
        raise InputError(f"{folder / TRAIN_FILE} does not exist. Copy the training there; data is this box's.")
    flower.programs()
    with alone(folder / "join.lock", f"{folder}: this node"):
        left = end_marked(FOLDER_VARIABLE, str(folder), TRAINER_PATIENCE_SECONDS)
        if left:
            say(f"{left} processes of a join that was killed were ended")
        return _join(folder, node, say)


def _join(folder: Path, node: Node, say: Callable[[str], None]) -> int:
    stop = Stop()
    trainer, link = _Kept(lambda: _trainer(folder)), _Kept(lambda: _supernode(folder, node))
    coordinator = Reach(node.host, node.port)
    _say_distrust(folder, node, say)
    try:
        while not stop.asked:
            if coordinator.lost():
                say(f"the coordinator has not been there for {LONGEST_SECONDS / 3600:.0f} hours; join again when it is")
                return 1
            if (code := trainer.tend()) is not None:
                task = Mailbox(folder / MAILBOX).task()
                if code == 0 and task is not None and task.over:
                    say("the federation is over")
                    time.sleep(PARTING_SECONDS)
                    return 0
                if code >= 0:
                    say(f"the training has ended ({code}); {folder / 'trainer.log'} says why")
                    return code or 1
                say(f"the trainer's supervisor was killed ({code}); it is started anew in {trainer.pause:.0f} seconds")
            if (code := link.tend()) is not None:
                say(f"the SuperNode ended ({code}); it is started anew in {link.pause:.0f} seconds")
                _say_distrust(folder, node, say)
            time.sleep(0.5)
        return 0
    finally:
        for kept, patience in ((link, 15.0), (trainer, TRAINER_PATIENCE_SECONDS)):
            if kept.process is not None:
                end(kept.process, patience)


def _say_distrust(folder: Path, node: Node, say: Callable[[str], None]) -> None:
    if (why := distrust(node.host, node.port, folder / AUTHORITY)) is not None:
        say(why)


@dataclass
class _Kept:
    """A process that is started anew when it has ended, after a pause that grows while it ends soon."""

    start: Callable[[], subprocess.Popen[bytes]]
    process: subprocess.Popen[bytes] | None = None
    pause: float = FIRST_PAUSE
    _began: float = 0.0
    _due: float = 0.0

    def tend(self) -> int | None:
        """Its exit code when it has just ended; it will be started anew. Negative: the signal that killed it."""
        now = time.monotonic()
        if self.process is None:
            if now >= self._due:
                self.process, self._began = self.start(), now
            return None
        code = self.process.poll()
        if code is not None:
            self.pause = FIRST_PAUSE if now - self._began > STEADY_SECONDS else min(2 * self.pause, LONGEST_PAUSE)
            end(self.process, 0.0)  # what it had started lives on, and would answer for a node that is gone
            self.process, self._due = None, now + self.pause
        return code


def _trainer(folder: Path) -> subprocess.Popen[bytes]:
    """The federation says how long is trained, so the data may be passed over as often as that takes."""
    program = Path(sys.executable).parent / "mens-sup"
    with open(folder / "trainer.log", "ab") as log:
        return subprocess.Popen(
            [str(program), "run", str(folder / TRAIN_FILE), "--run-dir", str(folder / "run"), "--force-overfit",
             "--set", f"federated.mailbox={folder / MAILBOX}"],
            env={**os.environ, FOLDER_VARIABLE: str(folder)}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip


def _supernode(folder: Path, node: Node) -> subprocess.Popen[bytes]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    with open(folder / "supernode.log", "ab") as log:
        return subprocess.Popen(
            flower.supernode(folder, node.host, node.port, port),
            env=flower.environment(folder / "flower", {FOLDER_VARIABLE: str(folder)}),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def end(process: subprocess.Popen[bytes], patience: float) -> None:
    """Asks it to end, and ends what is left of its session after ``patience`` seconds."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(5)
