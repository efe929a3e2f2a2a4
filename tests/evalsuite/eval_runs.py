"""Evaluations as a user starts them, on a tiny random model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from supervisor.protocol.manifest import Manifest, digest_tree, write_manifest

BASE = "random:2x64"
TASKS, SAMPLES = 8, 4


def bench(place: Path, tasks: int = TASKS, samples: int = SAMPLES) -> Path:
    rows = [
        {"id": f"{at}", "prompt": f"Say {at}.", "verifier": "json_schema", "check": {"schema": {"const": at}}}
        for at in range(tasks)
    ]
    (place / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    document = {
        "kind": "eval",
        "seed": 5,
        "tasks": {"sources": [{"name": "say", "type": "jsonl", "path": "tasks.jsonl"}]},
        "sampler": {"device": "cpu", "max_num_seqs": 4, "max_model_len": 256, "start_seconds": 7200.0},
        "sampling": {"samples_per_task": samples, "max_new_tokens": 16},
        "judge": {"cache": False, "workers": 1},
        "limits": {"backoff_seconds": 0, "backoff_max_seconds": 0, "hang_seconds": 3600},
    }
    path = place / "bench.yaml"
    path.write_text(json.dumps(document))
    return path


def command(bench_file: Path, out: Path, *arguments: str) -> list[str]:
    words = [sys.executable, "-m", "supervisor.cli", "eval", "run", str(bench_file), "--model", BASE]
    return [*words, "--out", str(out), "--no-live", *arguments]


def environment(place: Path) -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(place / "cache")}


def evaluate(place: Path, bench_file: Path, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(bench_file, out, *arguments), capture_output=True, text=True, check=False, env=environment(place)
    )


def sealed(folder: Path, template: str, base: str = BASE) -> Path:
    """Make a folder with adapter and template the checkpoint of a training."""
    manifest = Manifest(
        1, 3, 3, 10, 10, 1.0, 1, 1, 0.0, True, digest_tree(folder),
        {"template": template[:16], "base": f"{base}@1"}, {},
    )  # fmt: skip
    write_manifest(folder, manifest)
    return folder
