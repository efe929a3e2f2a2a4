"""A federation of real processes on this machine, for the tests that kill or cut off parts of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from supervisor.problems import InputError
from supervisor.protocol.attempt import SPEC_VARIABLE
from supervisor.protocol.events import Event
from supervisor.protocol.lock import lock_holder
from supervisor.protocol.marked import marked
from trainer.federated import flower
from trainer.federated.config import load_federation
from trainer.federated.coordinator import STANDING, State, lock_path
from trainer.federated.flower import HOME_VARIABLE
from trainer.federated.identity import COORDINATOR
from trainer.federated.join import FOLDER_VARIABLE, MAILBOX
from trainer.federated.mailbox import Mailbox
from trainer.federated.serve import FILE_VARIABLE, read_state
from trainer.federated.simulate import Laid, lay_out, start

TRAIN = """
kind: sft
device: cpu
model: {base: "random:2x64", quantization: none, lora: {r: 4}}
data: {sources: [{path: rows.jsonl}], validation: {fraction: 0.2, max_rows: 8}}
train: {max_steps: 100000, lr_scheduler_type: constant, warmup_ratio: 0, learning_rate: 0.002,
        per_device_train_batch_size: 2, gradient_accumulation_steps: 1, max_length: 64}
eval: {min_delta: 5.0, eval_steps: 100000, eval_on_start: false}
limits: {max_hours: 2000}
checkpoint: {save_steps: 500}
"""
CAP_SECONDS = float(os.environ.get("MENS_TEST_PATIENCE", "1800"))
"""For one thing to happen, however slow the machine is."""
T = TypeVar("T")


def need_flower() -> None:
    try:
        flower.programs()
    except InputError as error:
        pytest.skip(f"FLOWER IS MISSING, NOTHING WAS SHOWN: {error} (make test-flower)")


def eventually(what: str, found: Callable[[], T | None], cap: float = CAP_SECONDS) -> T:
    """What ``found`` returns, as soon as that is neither None nor False."""
    deadline = time.monotonic() + cap
    while time.monotonic() < deadline:
        answer = found()
        if answer is not None and answer is not False:
            return answer
        time.sleep(0.25)
    raise AssertionError(f"in {cap:.0f} seconds this did not happen: {what}")


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _is_supervised(pid: int) -> bool:
    """A process of a training, not of its supervisor."""
    try:
        return f"{SPEC_VARIABLE}=".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


@dataclass
class RealFederation:
    """``prefix``: a command to run the coordinator, and the nodes, by: in a namespace, or nothing."""

    laid: Laid
    serve_prefix: tuple[str, ...] = ()
    node_prefix: tuple[str, ...] = ()
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, nodes: int, rounds: str, host: str = "127.0.0.1") -> RealFederation:
        rows = [
            {"prompt": f"What is {i} plus 3?", "completion": f"{i} plus 3 makes {i + 3}, the sum."} for i in range(60)
        ]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "train.yaml").write_text(TRAIN)
        (folder / "fed.yaml").write_text(
            f'name: lan\nhost: "{host}"\nnodes: [node1]\ntrain: train.yaml\nrounds: {rounds}\n'
        )
        return cls(lay_out(folder / "fed.yaml", nodes, folder / "lan", host))

    @property
    def root(self) -> Path:
        return self.laid.file.parent

    @property
    def port(self) -> int:
        """Of the front."""
        return load_federation(self.laid.file).port

    def serve(self) -> None:
        self.running["serve"] = start([*self.serve_prefix, *self.laid.commands()[0]], self.root / "serve.log")

    def join(self, node: str, *prefix: str) -> None:
        number = [folder.name for folder in self.laid.nodes].index(node)
        command = [*self.node_prefix, *prefix, *self.laid.commands()[1 + number]]
        self.running[node] = start(command, self.root / f"{node}.log")

    def state(self) -> State | None:
        return read_state(self.root)

    def now(self) -> int:
        """The round that is under way."""
        state = self.state()
        return state.round if state is not None else 0

    def await_end_of(self, number: int) -> None:
        eventually(f"the end of round {number}", lambda: self.now() > number)

    def await_middle(self, *nodes: str) -> int:
        """Until these nodes work on the round that is under way, and have not handed in."""

        def middle() -> int | None:
            number = self.now()
            for node in nodes:
                mailbox = Mailbox(self.root / node / MAILBOX)
                task = mailbox.task()
                if task is None or task.round != number or mailbox.done(number, task.broadcast) is not None:
                    return None
            return number if self.now() == number else None

        return eventually(f"{nodes} in the middle of a round", middle)

    def coordinator(self) -> int:
        return eventually(
            "a living coordinator", lambda: lock_holder(lock_path(self.root / COORDINATOR / STANDING)) or None
        )

    def superlink(self) -> int:
        mine = marked(FILE_VARIABLE, str(self.laid.file.resolve()))
        return next(pid for pid in mine if "flower-superlink" in command_line(pid) and os.getpgid(pid) == pid)

    def processes(self, node: str) -> list[int]:
        """Of a node, beside its join."""
        return marked(FOLDER_VARIABLE, str((self.root / node).resolve()))

    def supernode(self, node: str) -> int:
        return next(pid for pid in self.processes(node) if "flower-supernode" in command_line(pid))

    def trainers(self, node: str) -> list[int]:
        """The one that trains and its standby."""
        return eventually(
            f"a trainer of {node}", lambda: [pid for pid in self.processes(node) if _is_supervised(pid)] or None
        )

    def signal_box(self, node: str, number: signal.Signals) -> None:
        """To the whole box: its join and all that it has started, standing in for the machine."""
        for pid in [self.running[node].pid, *self.processes(node)]:
            kill(pid, number)

    def left(self) -> list[str]:
        """Command lines of all its processes, wherever they hang."""
        pids = {
            *marked(HOME_VARIABLE, str((self.root / COORDINATOR / "flower").resolve())),
            *(pid for node in self.laid.nodes for pid in self.processes(node.name)),
        }
        return [f"{pid}: {command_line(pid)}" for pid in sorted(pids) if command_line(pid)]

    def stop(self, name: str) -> int:
        """Ask it to end; its exit code."""
        self.running[name].terminate()
        return self.running[name].wait(CAP_SECONDS)

    def clean(self) -> None:
        """After a test, however that ended."""
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        for _ in range(100):
            if not self.left():
                return
            for line in self.left():
                kill(int(line.partition(":")[0]), signal.SIGKILL)
            time.sleep(0.1)

    def told_tokens(self, node: str) -> dict[int, list[int]]:
        """The label tokens of each round that a node's trainer says it has done, by its log of events."""
        found: dict[int, list[int]] = {}
        for line in (self.root / node / "run/events.jsonl").read_text().splitlines():
            data = msgspec.json.decode(line, type=Event).data
            if "label_tokens" in data and "round" in data:
                found.setdefault(data["round"], []).append(data["label_tokens"])
        return found


def kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
