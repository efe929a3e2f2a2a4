"""From a ``kill -9`` of the trainer to the first new optimiser step: ours against torchrun around a plain TRL script.

Both train the same model on the same rows with the same batch, save every two steps, and are killed in the middle of
the step after an odd one, so that a checkpoint lies one step back. A step is new when it was not done before the kill.
Ours is killed when its standby waits, as it does for all but the first seconds of an attempt. One side after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import machine

from supervisor.protocol.events import read_events
from supervisor.protocol.heartbeat import Phase, read_heartbeat
from supervisor.protocol.paths import RunPaths
from supervisor.yaml_source import read_yaml
from trainer.base_model import locate
from trainer.cache import cache_root
from trainer.data.messages import Row
from trainer.data.sources import Source, read_source

PROJECT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
TARGETS = {"tiny": 0.25, "quickstart": 0.5}
STEPS = 100_000
"""Never reached."""
SAVE_STEPS = 2
GIVE_UP_SECONDS = 900.0


@dataclass(frozen=True)
class Recovery:
    """``step``: done when it was killed. ``resumed``: where the next attempt began."""

    seconds: float
    step: int
    resumed: int


class Side(ABC):
    """A training with somebody who starts it again."""

    name: str

    def __init__(self, folder: Path, command: list[str | Path], environment: Mapping[str, str]) -> None:
        self._log = folder / "output.log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})

    @abstractmethod
    def may_be_killed(self) -> bool: ...

    @abstractmethod
    def step(self) -> int:
        """Optimiser steps done by the process that trains now; 0 until it has done one."""

    @abstractmethod
    def pid(self) -> int:
        """Of the process that trains."""

    @abstractmethod
    def resumed_at(self) -> int: ...

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait, closely watching; ends the benchmark when the training ends instead."""
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{self.name} did not go on:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.002)

    def recover(self) -> Recovery:
        self.until(self.may_be_killed)
        time.sleep(self._odd_step() / 2)
        done, pid = self.step(), self.pid()
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        self.until(lambda: self.step() > done)
        return Recovery(time.monotonic() - killed, done, self.resumed_at())

    def _odd_step(self) -> float:
        """Wait until an odd step is just done; the seconds that it took."""
        before: float | None = None
        while True:
            begun = self.step()
            self.until(lambda begun=begun: self.step() != begun)  # type: ignore[misc]
            now = time.monotonic()
            if before is not None and self.step() % SAVE_STEPS == 1:
                return now - before
            before = now

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(120)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Ours(Side):
    name = "ours"

    def __init__(self, folder: Path, config: Path) -> None:
        self._paths = RunPaths(folder / "run")
        changes = {
            "train.max_steps": STEPS,
            "train.packing": False,
            "train.gradient_checkpointing": False,
            "checkpoint.save_steps": SAVE_STEPS,
            "eval.eval_on_start": False,
            "eval.eval_steps": STEPS,
            "limits.max_hours": 1000.0,
        }
        options = [part for key, value in changes.items() for part in ("--set", f"{key}={json.dumps(value)}")]
        where = ["--run-dir", self._paths.root, "--max-attempts", "50", "--no-live", "--force-overfit"]
        super().__init__(folder, [BIN / "mens-sup", "run", config, *where, *options], {})

    def may_be_killed(self) -> bool:
        attempt = self._attempt()
        return self.step() > 0 and any(
            event.kind == "standby_ready" and event.attempt == attempt for event in read_events(self._paths.events)
        )

    def step(self) -> int:
        beat = read_heartbeat(self._paths.attempt(self._attempt()).heartbeat)
        return beat.step if beat is not None and beat.phase in (Phase.TRAINING, Phase.SAVING) else 0

    def pid(self) -> int:
        beat = read_heartbeat(self._paths.attempt(self._attempt()).heartbeat)
        assert beat is not None
        return beat.pid

    def resumed_at(self) -> int:
        return max(event.step or 0 for event in read_events(self._paths.events) if event.kind == "attempt_started")

    def _attempt(self) -> int:
        return max((int(folder.name) for folder in self._paths.attempts.glob("0*")), default=1)


class Theirs(Side):
    name = "torchrun around a plain TRL script"

    def __init__(self, folder: Path, config: Path, kills: int) -> None:
        document, _ = read_yaml(config)
        train, lora = document["train"], document["model"]["lora"]
        self._progress, self._pid, self._resumed = (folder / name for name in ("progress", "pid", "resumed"))
        settings = {
            "base": str(locate(document["model"]["base"], None).path),
            "rows": str(write_rows(folder / "rows.jsonl", document)),
            "output": str(folder / "output"),
            "progress": str(self._progress),
            "pid": str(self._pid),
            "resumed": str(self._resumed),
            "max_steps": STEPS,
            "save_steps": SAVE_STEPS,
            "max_length": train["max_length"],
            "micro_batch": train["per_device_train_batch_size"],
            "accumulation": train["gradient_accumulation_steps"],
            "learning_rate": float(train["learning_rate"]),
            "rank": lora["r"],
            "seed": train["seed"],
        }
        (folder / "settings.json").write_text(json.dumps(settings))
        restarts = ["--standalone", "--nproc-per-node", "1", "--max-restarts", str(max(3, kills))]
        command = [BIN / "torchrun", *restarts, PROJECT / "benchmarks" / "plain_trl.py", folder / "settings.json"]
        environment = {"PYTHONWARNINGS": "ignore", "HF_DATASETS_CACHE": str(folder / "datasets")}
        super().__init__(folder, command, environment)

    def may_be_killed(self) -> bool:
        return self.step() > SAVE_STEPS

    def step(self) -> int:
        data = self._progress.read_bytes() if self._progress.exists() else b""
        return struct.unpack("<Q", data)[0] if len(data) == 8 else 0

    def pid(self) -> int:
        return int(self._pid.read_text())

    def resumed_at(self) -> int:
        return int(self._resumed.read_text())


def write_rows(path: Path, document: Mapping[str, Any]) -> Path:
    """The rows of the configuration, as prompt and completion."""
    with open(path, "w") as file:
        for given in document["data"]["sources"]:
            source = Source(given["type"], Path(given["path"]), given.get("max_rows"))
            for row in read_source(source, cache=cache_root() / "declarations"):
                assert isinstance(row, Row)
                turns = [{"role": turn.role, "content": turn.content} for turn in row.messages]
                file.write(json.dumps({"prompt": turns[:-1], "completion": turns[-1:]}) + "\n")
    return path


def measure(side: Side, kills: int) -> float:
    """The median of the seconds to the first new step."""
    try:
        found = [side.recover() for _ in range(kills)]
    finally:
        side.end()
    shown = ", ".join(f"{one.seconds:.2f} s (step {one.step}, resumed at {one.resumed})" for one in found)
    middle = median(one.seconds for one in found)
    print(f"  {side.name}: {middle:.2f} s in the middle of {shown}", flush=True)
    return middle


def compare(name: str, kills: int) -> None:
    config = PROJECT / "configs" / f"{name}.yaml"
    print(f"recovery, configs/{name}.yaml, {machine.describe()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder, side) for side in ("theirs", "ours")]
        for place in places:
            place.mkdir()
        theirs = measure(Theirs(places[0], config, kills), kills)
        ours = measure(Ours(places[1], config), kills)
    machine.verdict(f"kill to first new step, {name}, ours / theirs", ours / theirs, TARGETS[name], at_least=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", choices=sorted(TARGETS), action="append", help="both unless given")
    parser.add_argument("--kills", type=int, default=3, help="of each side")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # so that nothing goes on behind our back
    for name in options.config or ["tiny", "quickstart"]:
        compare(name, options.kills)


if __name__ == "__main__":
    main()
