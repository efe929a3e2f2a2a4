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
from pathlib import Path

import msgspec

from supervisor.problems import InputError
from trainer.federated import flower
from trainer.federated.identity import NODE_FILE, Node
from trainer.federated.serve import Stop

FOLDER_VARIABLE = "MENS_FEDERATED_NODE"
MAILBOX = "mailbox"
TRAIN_FILE = "train.yaml"
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Seconds before a SuperNode is started anew. A keyed node that was killed is refused for about a minute."""
STEADY_SECONDS = 120.0


def join(folder: Path, say: Callable[[str], None]) -> int:
    """Until asked to stop, or the trainer's supervisor has given up (its exit code). Raises InputError."""
    folder = folder.resolve()
    try:
        node = msgspec.json.decode((folder / NODE_FILE).read_bytes(), type=Node)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{folder / NODE_FILE}: {error}. Give a node's folder, as federate init makes it.") from None
    if not (folder / TRAIN_FILE).is_file():
        raise InputError(f"{folder / TRAIN_FILE} does not exist. Copy the training there; data is this box's.")
    flower.programs()
    stop = Stop()
    trainer = _trainer(folder)
    link: subprocess.Popen[bytes] | None = None
    began, pause, due = 0.0, FIRST_PAUSE, 0.0
    try:
        while not stop.asked:
            now = time.monotonic()
            if trainer.poll() is not None:
                say(f"the training has ended ({trainer.returncode}); {folder / 'trainer.log'} says why")
                return trainer.returncode or 1
            if link is not None and link.poll() is not None:
                pause = FIRST_PAUSE if now - began > STEADY_SECONDS else min(2 * pause, LONGEST_PAUSE)
                say(f"the SuperNode ended ({link.returncode}); it is started anew in {pause:.0f} seconds")
                end(link, 0.0)  # what it had started lives on, and would answer for a node that is gone
                link, due = None, now + pause
            if link is None and now >= due:
                link, began = _supernode(folder, node), now
            time.sleep(0.5)
        return 0
    finally:
        for process, patience in ((link, 15.0), (trainer, 120.0)):
            if process is not None:
                end(process, patience)


def _trainer(folder: Path) -> subprocess.Popen[bytes]:
    """The federation says how long is trained, so the data may be passed over as often as that takes."""
    program = Path(sys.executable).parent / "mens-sup"
    with open(folder / "trainer.log", "ab") as log:
        return subprocess.Popen(
            [str(program), "run", str(folder / TRAIN_FILE), "--run-dir", str(folder / "run"), "--force-overfit",
             "--set", f"federated.mailbox={folder / MAILBOX}"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
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
