"""How long `mens-sup plan` takes for QLoRA of a 4B-class model that was never planned before: prints a table.

Each row is a whole `mens-sup plan configs/qwen3-4b-16gb.yaml` in a process of its own with an empty cache. CPU seconds
are those of the command and of the program that it asks; on a busy machine the wall clock says more about the others.
The target is 40 s.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = Path(__file__).parents[1] / "configs" / "qwen3-4b-16gb.yaml"
TARGET_SECONDS = 40.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="*", default=[512, 1024, 2048], help="sequence lengths")
    options = parser.parse_args()
    print("tokens  micro-batch  checkpointing  predicted GiB  wall s  CPU s", flush=True)
    worst = 0.0
    for tokens, micro, checkpointing in itertools.product(options.tokens, (1, 2), (True, False)):
        with tempfile.TemporaryDirectory() as folder:
            peak, wall, cpu = plan(Path(folder), tokens, micro, checkpointing)
        worst = max(worst, min(wall, cpu))
        found = f"{peak / 2**30:>13.2f}  {wall:>6.1f}  {cpu:>5.1f}"
        print(f"{tokens:>6}  {micro:>11}  {checkpointing!s:>13}  {found}", flush=True)
    return 0 if worst <= TARGET_SECONDS else 1


def plan(folder: Path, tokens: int, micro: int, checkpointing: bool) -> tuple[int, float, float]:
    """Predicted bytes, and the seconds that it took."""
    rows = folder / "rows.jsonl"
    rows.write_text('{"prompt": "a", "completion": "b"}\n', encoding="utf-8")
    settings = {
        "data.sources": [{"type": "jsonl", "path": str(rows)}],
        "model.fallback": None,
        "train.max_length": tokens,
        "train.per_device_train_batch_size": micro,
        "train.gradient_checkpointing": checkpointing,
    }
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    command = [sys.executable, "-P", "-m", "supervisor.cli", "plan", str(CONFIG), "--gpu-gib", "16", "--json", *sets]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        command, env={**os.environ, "MENS_CACHE": str(folder / "cache")}, capture_output=True, text=True, check=False
    )
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode == 2:
        raise RuntimeError(done.stdout + done.stderr)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return int(json.loads(done.stdout)["memory"]["peak_bytes"]), wall, cpu


if __name__ == "__main__":
    sys.exit(main())
