"""Where everything of a run lives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AttemptPaths:
    """The files of one attempt, ``attempts/0003/``."""

    root: Path

    @property
    def effective(self) -> Path:
        """The configuration of this attempt, relief applied."""
        return self.root / "effective.yaml"

    @property
    def spec(self) -> Path:
        """What the trainer is told about this attempt (:class:`supervisor.protocol.attempt.AttemptSpec`)."""
        return self.root / "attempt.json"

    @property
    def stdout(self) -> Path:
        return self.root / "stdout.log"

    @property
    def stderr(self) -> Path:
        return self.root / "stderr.log"

    @property
    def heartbeat(self) -> Path:
        return self.root / "heartbeat"

    @property
    def exit_report(self) -> Path:
        return self.root / "exit.json"

    @property
    def stacks(self) -> Path:
        """Where the trainer shows the stacks of its threads when asked; there only if it can."""
        return self.root / "stacks.txt"

    def rank_report(self, rank: int) -> Path:
        """The exit report of one of several processes; the launcher makes ``exit.json`` of all of them."""
        return self.root / f"exit-rank-{rank}.json"

    def rank_log(self, rank: int) -> Path:
        """The output of a rank other than 0."""
        return self.root / f"rank-{rank}.log"

    @property
    def diagnosis(self) -> Path:
        return self.root / "diagnosis.json"


@dataclass(frozen=True)
class RunPaths:
    """The run directory, ``runs/<id>/``."""

    root: Path

    @property
    def run_yaml(self) -> Path:
        """The configuration as submitted and resolved; written once, never rewritten."""
        return self.root / "run.yaml"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def sensors(self) -> Path:
        """What the supervisor's sensors saw last; not durable."""
        return self.root / "sensors.json"

    def kept_batches(self, rank: int = 0) -> Path:
        """Batches of the evaluation that the trainer is in, or was in last (``trainer/kept_batches.py``)."""
        return self.root / (f".evaluation-rank-{rank}.jsonl" if rank else ".evaluation.jsonl")

    @property
    def supervisor_lock(self) -> Path:
        return self.root / "supervisor.lock"

    @property
    def trainer_lock(self) -> Path:
        return self.root / "trainer.lock"

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self.attempts / f"{number:04d}")

    def checkpoints(self, lineage: int = 1) -> Path:
        """Checkpoints of one lineage; a fallback to another base model starts lineage 2, 3, ..."""
        return self.root / "checkpoints" if lineage == 1 else self.root / f"checkpoints-{lineage}"

    def checkpoint(self, step: int, lineage: int = 1) -> Path:
        return self.checkpoints(lineage) / checkpoint_name(step)

    def quarantine(self, lineage: int = 1) -> Path:
        return self.checkpoints(lineage) / "quarantine"

    @property
    def best(self) -> Path:
        """Symbolic link to the checkpoint with the lowest evaluation loss of the current lineage."""
        return self.root / "best"

    @property
    def final(self) -> Path:
        """Symbolic link to the last checkpoint of a completed run."""
        return self.root / "final"


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


def checkpoint_step(name: str) -> int | None:
    """The optimiser step in a checkpoint's folder name, or None for any other name."""
    digits = name.removeprefix("step-")
    return int(digits) if name.startswith("step-") and digits.isdigit() else None
