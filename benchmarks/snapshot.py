"""What a snapshot after every optimiser step costs, as a share of the step.

Short real runs of configs/quickstart.yaml and configs/tiny.yaml. Counted are the seconds in which the training waits
(between two steps, and the optimiser for the copy), and the processor seconds of the thread that copies, digests and
seals, which on a GPU machine cost the training nothing and on a CPU are taken from it.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median

import machine
from short_run import events_of_run


def measure(config: str, steps: int) -> tuple[float, float, float, str]:
    """Seconds of a step, of a snapshot between two steps, and of its thread; and what was taken and skipped."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        settings = {
            "train.max_steps": steps,
            "checkpoint.save_steps": steps,
            "eval.eval_steps": steps,
            "eval.eval_on_start": "false",
            "data.validation.max_rows": 2,
        }
        events = events_of_run(config, run_dir, settings)
    (snapshots,) = [event for event in events if event.kind == "snapshots"]
    marks = [event.time for event in events if event.kind == "progress"]
    taken, skipped = snapshots.data["taken"], snapshots.data["skipped"]
    return (
        median(after - before for before, after in pairwise(marks[1:])),  # the first step warms up
        snapshots.data["seconds_between_steps"] / (taken + skipped),
        snapshots.data["seconds_of_writer"] / max(taken, 1),
        f"{snapshots.data['bytes'] / 2**20:.1f} MiB, {taken} taken, {skipped} skipped",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=16, help="optimiser steps of configs/quickstart.yaml")
    options = parser.parse_args()
    print(f"snapshots, {machine.describe()}")
    for config, steps, target in (("quickstart.yaml", options.steps, 1.0), ("tiny.yaml", 3 * options.steps, None)):
        step, between, thread, what = measure(config, steps)
        print(f"  {config}: {what}; a step takes {step:.3f} s, of which {1000 * between:.1f} ms are waited;")
        print(f"    the thread that copies needs {1000 * thread:.1f} ms of processor time beside the next step")
        for name, seconds in (("waited", between), ("with the thread's time", between + thread)):
            share = 100 * seconds / step
            if target is None:
                print(f"    share {name}: {share:.2f} per cent")
            else:
                machine.verdict(f"share {name}, in per cent", share, target, at_least=False)


if __name__ == "__main__":
    main()
