"""The share of a run's time that goes into checkpoints at the default interval.

A short real run of configs/quickstart.yaml; seconds per save and per optimiser step are taken from its events.
The quickstart's steps (512 tokens) are about the shortest there are, so the share is an upper one.
"""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import machine
from short_run import events_of_run

from supervisor.config_sections import CheckpointSettings

STEPS, SAVE_STEPS = 12, 3


def main() -> None:
    interval = CheckpointSettings().save_steps
    print(f"checkpoint cost, configs/quickstart.yaml, {machine.describe()}")
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        settings = {
            "train.max_steps": STEPS,
            "checkpoint.save_steps": SAVE_STEPS,
            "eval.eval_steps": STEPS,
            "eval.eval_on_start": "false",
            "data.validation.max_rows": 2,
        }
        events = events_of_run("quickstart.yaml", run_dir, settings)
    saves = [float(event.data["seconds"]) for event in events if event.kind == "checkpoint"]
    size = max(int(event.data["bytes"]) for event in events if event.kind == "checkpoint")
    marks = {event.step: event.time for event in events if event.kind == "progress" and event.step is not None}
    # A save lies between the progress of its step and that of the next one; the first step warms up.
    steps = [marks[b] - marks[a] for a, b in pairwise(sorted(marks)) if a % SAVE_STEPS]
    print(f"  {len(saves)} saves of {size / 2**20:.1f} MiB: {mean(saves):.3f} s on average, {max(saves):.3f} s at most")
    print(f"  {len(steps)} optimiser steps: {median(steps):.2f} s in the middle, {min(steps):.2f} s at least")
    share = 100 * mean(saves) / (interval * median(steps) + mean(saves))
    machine.verdict(f"share of the time in saves, one every {interval} steps, in per cent", share, 2.0, at_least=False)


if __name__ == "__main__":
    main()
