"""Whole attempts of the real trainer on a random one-layer model: about a second each, in this process."""

from __future__ import annotations

import contextlib
import copy
import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file

import trainer.run
from supervisor.config import set_key
from supervisor.protocol.attempt import AttemptSpec, ExitReport, write_spec
from supervisor.protocol.events import Event, read_events
from supervisor.protocol.paths import RunPaths
from trainer.config import SftSections
from trainer.reporting import Reporter
from trainer.sft import SupervisedSFTTrainer

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def words(first: int, count: int) -> str:
    return " ".join(WORDS[number % len(WORDS)] for number in range(first, first + count))


def rows_of(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Different rows of 20 to 90 tokens whose answers differ in length by a factor of about 15."""
    return [
        {
            "system": "Count.",
            "instruction": f"Count {number} words.",
            "output": f"{number}: {words(number, number * 7 % 50 + 1)}",
        }
        for number in range(start, start + count)
    ]


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@dataclass
class Tiny:
    """A place with rows, and configurations over them: ``tiny.sections({"train.seed": 2})``."""

    root: Path
    rows: int = 24
    held_out: int = 6
    document: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.train_file = write_rows(self.root / "rows.jsonl", rows_of(self.rows))
        self.held_out_file = write_rows(self.root / "held-out.jsonl", rows_of(self.held_out, start=1000))
        self.document = {
            "device": "cpu",
            "model": {
                "base": "random:1x64",
                "quantization": "none",
                "lora": {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0},
            },
            "data": {
                "sources": [{"type": "jsonl", "path": str(self.train_file)}],
                "validation": {"path": str(self.held_out_file)},
            },
            "train": {
                "learning_rate": 5e-3,
                "max_steps": 3,
                "max_length": 96,
                "per_device_train_batch_size": 2,
                "gradient_accumulation_steps": 2,
            },
            "eval": {"eval_on_start": False, "eval_steps": 1000},
        }

    def with_changes(self, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        document = copy.deepcopy(self.document)
        for key, value in (changes or {}).items():
            set_key(document, key, value)
        return document

    def sections(self, changes: Mapping[str, Any] | None = None) -> SftSections:
        return SftSections.model_validate_json(json.dumps(self.with_changes(changes)))

    def run(self, run_dir: str, changes: Mapping[str, Any] | None = None, **options: Any) -> Attempt:
        return run(self.root / run_dir, self.sections(changes), **options)

    def prepare(
        self,
        run_dir: str,
        changes: Mapping[str, Any] | None = None,
        save_steps: int = 1000,
        force_overfit: bool = False,
    ) -> Path:
        """Write what a supervisor writes before it launches ``python -m trainer``; returns attempt.json."""
        paths = RunPaths(self.root / run_dir)
        files = paths.attempt(1)
        files.root.mkdir(parents=True)
        files.effective.write_text(json.dumps(self.with_changes(changes)), encoding="utf-8")  # JSON is YAML
        spec = AttemptSpec(
            str(paths.root), 1, 1, str(files.effective), None, save_steps, force_overfit=force_overfit
        )
        write_spec(files.spec, spec)
        return files.spec


@dataclass
class Attempt:
    """What is left of an attempt. ``report`` is None when it raised, ``trainer`` when it had not been built."""

    paths: RunPaths
    report: ExitReport | None = None
    trainer: SupervisedSFTTrainer | None = None

    def events(self, kind: str) -> list[Event]:
        return [event for event in read_events(self.paths.events) if event.kind == kind]

    def progress(self, key: str) -> list[Any]:
        return [event.data[key] for event in self.events("progress")]

    def data_of(self, kind: str) -> dict[str, Any]:
        """The data of the one event of this kind."""
        (event,) = self.events(kind)
        return event.data

    def adapter(self, step: int, lineage: int = 1) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = load_file(
            str(self.paths.checkpoint(step, lineage) / "adapter_model.safetensors")
        )
        return tensors

    @property
    def built(self) -> SupervisedSFTTrainer:
        assert self.trainer is not None
        return self.trainer


class NotTrained(SupervisedSFTTrainer):
    """For tests that look at what was built."""

    def train(self, *args: Any, **kwargs: Any) -> None:
        self.create_optimizer()
        self.create_scheduler(self.plan.total_steps)


def run(
    run_dir: Path,
    sections: SftSections,
    *,
    resume_from: Path | None = None,
    number: int = 1,
    save_steps: int = 1000,
    accepted: tuple[str, ...] = (),
    trainer_class: type[SupervisedSFTTrainer] = SupervisedSFTTrainer,
    seen: Attempt | None = None,
    reporter_class: type[Reporter] = Reporter,
    snapshots: Path | None = None,
    force_overfit: bool = False,
) -> Attempt:
    """One attempt, like ``python -m trainer`` without the process.

    ``seen`` is filled in as far as the attempt gets, for attempts that raise.
    """
    attempt = seen if seen is not None else Attempt(RunPaths(run_dir))
    attempt.paths = RunPaths(run_dir)
    attempt.paths.attempt(number).root.mkdir(parents=True, exist_ok=True)
    spec = AttemptSpec(
        str(run_dir), number, 1, "unused", str(resume_from) if resume_from else None, save_steps, accepted,
        str(snapshots) if snapshots else None, force_overfit=force_overfit,
    )  # fmt: skip

    class Kept(trainer_class):  # type: ignore[misc,valid-type]
        def __init__(self, **parts: Any) -> None:
            attempt.trainer = self
            super().__init__(**parts)

    with kept_signal_handler(), patch.object(trainer.run, "SupervisedSFTTrainer", Kept):
        reporter = reporter_class(spec)
        attempt.report = trainer.run.run_attempt(sections, sections.model_dump(mode="json"), spec, reporter)
    return attempt


@contextlib.contextmanager
def kept_signal_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def distance(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> float:
    """The largest difference between two sets of tensors, relative to the largest entry of its tensor."""
    assert set(left) == set(right)
    return max(float((left[name] - right[name]).abs().max() / left[name].abs().max()) for name in left)
