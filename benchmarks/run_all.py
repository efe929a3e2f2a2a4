"""All benchmarks one after the other, each in a process of its own. See docs/benchmarks.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = (
    "supervisor_cost", "resume_cost", "checkpoint_cost", "snapshot", "throughput", "recovery", "ettr",
    "memory_prediction", "plan_time", "data_build", "store_resume", "adaptive_budget", "judging",
    "bootstrap", "gate_simulation", "federated_scale", "federated_quality",
)  # fmt: skip


def main() -> int:
    failed = [
        name
        for name in NAMES
        if subprocess.run([sys.executable, Path(__file__).with_name(f"{name}.py")], check=False).returncode != 0
    ]
    if failed:
        print(f"could not be run: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
