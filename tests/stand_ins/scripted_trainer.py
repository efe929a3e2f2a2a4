"""A trainer without torch that speaks the run-directory protocol and fails on demand.

The configuration's ``faults`` are mappings ``{at: STEP, do: WHAT, attempt: N, ...}``; without
``attempt`` a fault strikes in every attempt, with ``resumed_from: STEP`` only in those that resumed
from that step's checkpoint. ``at`` counts from 1 and strikes before that step is
done, 0 strikes while loading. The "adapter" is a chain of hashes over the steps, so that it shows
whether a resumed run is the one that was never interrupted.
"""

from __future__ import annotations

import ctypes
import faulthandler
import hashlib
import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from ruamel.yaml import YAML

from supervisor.protocol.atomic import STAGING_PREFIX, staged_directory
from supervisor.protocol.attempt import (
    EXIT_CODES,
    SPEC_VARIABLE,
    AttemptSpec,
    ExitKind,
    ExitReport,
    read_spec,
    write_exit_report,
)
from supervisor.protocol.events import EventLog
from supervisor.protocol.heartbeat import HeartbeatWriter, Phase
from supervisor.protocol.lock import FileLock
from supervisor.protocol.manifest import FORMAT_VERSION, FileRecord, Manifest, digest_tree, write_manifest
from supervisor.protocol.paths import RunPaths
from supervisor.protocol.snapshot import SLOTS, Seal, break_seal, seal, sealed_file

TOKENS_PER_STEP = 100
ROWS_PER_STEP = 8


class Failed(Exception):
    def __init__(self, kind: ExitKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Trainer:
    def __init__(self, spec: AttemptSpec) -> None:
        self.spec = spec
        self.config: dict[str, Any] = YAML(typ="safe").load(Path(spec.effective_config).read_text())
        self.paths = RunPaths(Path(spec.run_dir))
        self.attempt = self.paths.attempt(spec.attempt)
        self.heartbeat = HeartbeatWriter(self.attempt.heartbeat)
        self.events = EventLog(self.paths.events, "trainer", spec.attempt)
        self.planned: int = self.config["train"]["max_steps"]
        self.step = 0
        self.resumed_from: int | None = None
        self.adapter = hashlib.sha256(self.config["model"]["base"].encode()).digest()
        self.stopping = False
        signal.signal(signal.SIGTERM, self._on_sigterm)
        faulthandler.register(signal.SIGUSR1, open(self.attempt.stacks, "ab", buffering=0))  # noqa: SIM115

    def run(self) -> ExitReport:
        self.heartbeat.beat(Phase.LOADING, 0, self.planned)
        self.events.append("corpus", rows=80, tokens=8000)
        if self.spec.resume_from is not None:
            self._load(Path(self.spec.resume_from))
        self._faults(0)
        while self.step < self.planned:
            if self.stopping:
                self._save()
                return self._report(ExitKind.INTERRUPTED, "asked to stop; a checkpoint was saved")
            self.heartbeat.beat(Phase.TRAINING, self.step)
            self._faults(self.step + 1)
            time.sleep(self.config["train"]["step_seconds"])
            self.step += 1
            self.adapter = hashlib.sha256(self.adapter + self.step.to_bytes(8, "little")).digest()
            self.heartbeat.beat(Phase.TRAINING, self.step)
            self.events.append("progress", step=self.step, tokens_seen=self.step * TOKENS_PER_STEP)
            if self.config["train"]["snapshots"] and self.spec.snapshots is not None:
                self._snapshot(Path(self.spec.snapshots) / SLOTS[self.step % 2])
            if self._save_due():
                self._save()
        return self._report(ExitKind.COMPLETED, "all planned steps are done")

    def _load(self, checkpoint: Path) -> None:
        self.step = self.resumed_from = int(checkpoint.name.removeprefix("step-"))
        self.adapter = (checkpoint / "adapter.bin").read_bytes()[:32]

    def _save_due(self) -> bool:
        return self.step % self.spec.save_steps == 0 or self.step == self.planned

    def _contents(self) -> dict[str, bytes]:
        copies: int = self.config["train"]["adapter_bytes"] // 32
        return {"adapter.bin": self.adapter * copies, "optimizer.bin": self.adapter}

    def _snapshot(self, slot: Path) -> None:
        slot.mkdir(exist_ok=True)
        break_seal(slot)
        for name, data in self._contents().items():
            (slot / name).write_bytes(data)
        files = {name: sealed_file(data) for name, data in self._contents().items()}
        seal(slot, Seal(self._manifest({}, interim=not self._save_due()), files))

    def _save(self) -> None:
        final = self.paths.checkpoint(self.step, self.spec.lineage)
        if final.exists():
            return
        self.heartbeat.beat(Phase.SAVING)
        for fault in self.config["faults"]:
            if fault["do"] == "save_fill" and self._struck(fault, self.step):
                _fill(Path(fault["file"]), fault["leave"])
        with staged_directory(final) as folder:
            for name, data in self._contents().items():
                (folder / name).write_bytes(data)
            self._faults_in_save(folder)
            write_manifest(folder, self._manifest(digest_tree(folder)))
        self.events.append("checkpoint", step=self.step)

    def _manifest(self, files: dict[str, FileRecord], interim: bool = False) -> Manifest:
        return Manifest(
            format_version=FORMAT_VERSION,
            step=self.step,
            planned_steps=self.planned,
            tokens_seen=self.step * TOKENS_PER_STEP,
            rows_seen=self.step * ROWS_PER_STEP,
            epoch=self.step / self.planned,
            attempt=self.spec.attempt,
            lineage=self.spec.lineage,
            created=time.time(),
            finite=True,
            files=files,
            identity={"base": self.config["model"]["base"]},
            versions={},
            eval_loss=None if interim else abs(self.step - 6) + 1.0,
            interim=interim,
        )

    def _struck(self, fault: dict[str, Any], step: int) -> bool:
        return (
            fault["at"] == step
            and fault.get("attempt", self.spec.attempt) == self.spec.attempt
            and fault.get("resumed_from", self.resumed_from) == self.resumed_from
        )

    def _faults(self, step: int) -> None:
        for fault in self.config["faults"]:
            if not fault["do"].startswith("save_") and self._struck(fault, step):
                self._strike(fault)

    def _faults_in_save(self, folder: Path) -> None:
        for fault in self.config["faults"]:
            if fault["do"] == "save_kill9" and self._struck(fault, self.step):
                os.kill(os.getpid(), signal.SIGKILL)
            if fault["do"] == "save_sleep" and self._struck(fault, self.step):
                time.sleep(fault["seconds"])
            if fault["do"] == "save_wait" and self._struck(fault, self.step):
                while not Path(fault["file"]).exists():
                    time.sleep(0.02)
            if fault["do"] == "save_enospc" and self._struck(fault, self.step):
                raise OSError(28, "No space left on device", str(folder))

    def _strike(self, fault: dict[str, Any]) -> None:
        what = fault["do"]
        train = self.config["train"]
        if what == "kill9":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "sigterm_self":
            os.kill(os.getpid(), signal.SIGTERM)
        elif what == "segfault":
            ctypes.string_at(0)
        elif what == "raise":
            raise RuntimeError("the optimiser's state does not fit")
        elif what == "exit":
            print(fault.get("stderr", "scripted exit"), file=sys.stderr, flush=True)
            os._exit(fault["code"])
        elif what == "oom" and train["per_device_train_batch_size"] * train["max_length"] > fault["limit"]:
            raise Failed(ExitKind.CUDA_OOM, "CUDA out of memory. Tried to allocate 2.00 GiB")
        elif what == "fail":
            raise Failed(ExitKind(fault["kind"]), fault.get("message", f"scripted {fault['kind']}"))
        elif what == "claim_completed":
            raise Failed(ExitKind.COMPLETED, "all done, honestly")
        elif what == "ignore_sigterm":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif what == "double_fork":
            _double_fork(Path(fault["pid_file"]), new_session=fault.get("new_session", True))
        elif what == "torn_staging":
            torn = self.paths.checkpoints(self.spec.lineage) / f"{STAGING_PREFIX}step-99999999-1"
            torn.mkdir(parents=True)
            (torn / "adapter.bin").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "wait_for_file":
            while not Path(fault["file"]).exists():
                time.sleep(0.02)
        elif what == "sleep":
            if "phase" in fault:
                self.heartbeat.beat(Phase[fault["phase"].upper()])
            time.sleep(fault["seconds"])
        elif what == "deadlock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        elif what == "spin":
            sum(itertools.repeat(0))  # in C, holding the interpreter's lock for ever
        elif what == "stop_self":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif what == "hang":
            while not self.stopping or fault.get("deaf", False):
                time.sleep(0.05)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True

    def _report(self, kind: ExitKind, message: str) -> ExitReport:
        return ExitReport(
            kind=kind,
            message=message,
            step=self.step,
            phase=self.heartbeat.phase.name.lower(),
            planned=_figures(self.planned),
            done=_figures(self.step),
        )

    def report_failure(self, error: Failed) -> ExitReport:
        return self._report(error.kind, str(error))


def _figures(steps: int) -> dict[str, int]:
    return {"steps": steps, "tokens": steps * TOKENS_PER_STEP, "rows": steps * ROWS_PER_STEP}


def _fill(file: Path, leave: int) -> None:
    """Somebody else's file, which leaves ``leave`` bytes free on its disk."""
    figures = os.statvfs(file.parent)
    with open(file, "xb") as stranger:
        os.posix_fallocate(stranger.fileno(), 0, figures.f_bavail * figures.f_frsize - leave)


def _double_fork(pid_file: Path, *, new_session: bool) -> None:
    """A grandchild that outlives its parent, optionally in a session of its own."""
    child = os.fork()
    if child == 0:
        if new_session:
            os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            pid_file.write_text(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    os.waitpid(child, 0)
    while not pid_file.exists() or not pid_file.read_text():
        time.sleep(0.01)


def main() -> int:
    spec = read_spec(Path(os.environ[SPEC_VARIABLE]))
    trainer = Trainer(spec)
    with FileLock(trainer.paths.trainer_lock):
        try:
            report = trainer.run()
        except Failed as error:
            report = trainer.report_failure(error)
        except OSError as error:
            report = trainer.report_failure(Failed(ExitKind.DISK_FULL, f"{error.strerror}: {error.filename}"))
        trainer.heartbeat.beat(Phase.FINISHED)
        print(f"{report.kind.value}: {report.message}", file=sys.stderr)
        write_exit_report(trainer.attempt.exit_report, report)
    return EXIT_CODES[report.kind]


if __name__ == "__main__":
    sys.exit(main())
