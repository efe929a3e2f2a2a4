"""From a checkpoint's position to the first batch: at step 0 and at the far end of a plan of a million rows.

A trainer that skips batches one by one to get to its position pays for every step done; the plan makes it O(1).
Processor seconds of one thread: the same as those on the wall when nothing else runs.
"""

from __future__ import annotations

import time

import machine
import numpy as np
from datasets import Dataset
from torch.utils.data import DataLoader, SequentialSampler

from trainer.collate import BinCollator
from trainer.data.plan import PlanSpec, Segment, build_plan
from trainer.data.token_rows import TokenRows

ROWS = 1_000_000
MAX_LENGTH = 256
REPEATS = 4
SPEC = PlanSpec(seed=1, packing=True, bins_per_step=16, segments=(Segment(MAX_LENGTH, 0),), epochs=1.0)


def corpus() -> TokenRows:
    rng = np.random.default_rng(0)
    lengths = rng.integers(8, 64, ROWS)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    ids = rng.integers(0, 49_152, offsets[-1], dtype=np.int32)
    labels, keys = np.ones(offsets[-1], np.bool_), tuple("" for _ in range(ROWS))
    return TokenRows(ids, labels, offsets, keys, None, np.arange(ROWS))


def first_batch(rows: TokenRows, fingerprint: str, done: float) -> tuple[int, float, float]:
    """The step at which ``done`` of the plan is done, seconds to make the plan, seconds from it to the first batch."""
    started = time.process_time()
    plan = build_plan(len(rows), rows.lengths, SPEC)
    planned = time.process_time()
    step = min(round(plan.total_steps * done), plan.total_steps - 1)
    plan.fingerprint(fingerprint, step)  # the resumed trainer proves that it continues the same order
    bins = Dataset.from_dict({"bin": np.arange(step * SPEC.bins_per_step, plan.total_bins)})
    loader = DataLoader(bins, batch_size=4, sampler=SequentialSampler(bins), collate_fn=BinCollator(rows, plan, 0))
    next(iter(loader))
    return step, planned - started, time.process_time() - planned


def main() -> None:
    print(f"resume cost, {ROWS} rows, {machine.describe()}")
    rows = corpus()
    fingerprint = rows.fingerprint()
    first_batch(rows, fingerprint, 0.0)
    places = {"step 0": 0.0, "the far end": 1.0}
    tries = [(name, first_batch(rows, fingerprint, done)) for _ in range(REPEATS) for name, done in places.items()]
    totals = []
    for name in places:
        step, plan, batch = min(
            (found for tried, found in tries if tried == name), key=lambda found: found[1] + found[2]
        )
        totals.append(plan + batch)
        print(f"  {name} (step {step}): plan {plan:.2f} s + position to first batch {batch:.3f} s = {totals[-1]:.2f} s")
    machine.verdict("far end / step 0", totals[1] / totals[0], 1.1, at_least=False)


if __name__ == "__main__":
    main()
