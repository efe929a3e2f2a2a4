"""proves RFT-4 with everything real: supervisor, transformers sampler, judges in a sandbox; kill -9 to all of them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from test_kill_job import stored
from toy_job import final_set

KILLS = int(os.environ.get("MENS_KILLS", "20"))
PATIENCE = 1200.0
TASKS, SAMPLES = 12, 6


def job(place: Path) -> Path:
    rows = [
        {"id": f"{at}", "prompt": f"Say {at}.", "entry_point": "say", "tests": [f"assert say() == {at}"]}
        for at in range(TASKS)
    ]
    (place / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    document = {
        "kind": "rft",
        "seed": 5,
        "tasks": {"sources": [{"name": "say", "type": "jsonl", "path": "tasks.jsonl"}]},
        "sampler": {"model": "random:2x64", "device": "cpu", "max_num_seqs": 4, "max_model_len": 256},
        "sampling": {"samples_per_task": SAMPLES, "max_new_tokens": 24},
        "budget": {"adaptive": False},
        "judge": {"cache": False},
        "limits": {"backoff_seconds": 0, "backoff_max_seconds": 0},
    }
    path = place / "job.yaml"
    path.write_text(json.dumps(document))
    return path


def start(path: Path, run_dir: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "supervisor.cli", "rft", "run", str(path), "--run-dir", str(run_dir), "--no-live"]
    with open(run_dir.with_suffix(".log"), "ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}
        )


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the supervisor and to everything below it."""
    try:
        below = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        below = []
    for each in [process, *below]:
        try:
            each.kill()
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue
    process.wait()
    psutil.wait_procs(below, timeout=60)


# proves SUP-6: SIGTERM in the middle loses nothing of what was drawn
@pytest.mark.slow
def test_a_real_job_that_is_asked_to_stop_goes_on_where_it_was(tmp_path: Path) -> None:
    path = job(tmp_path)
    whole = start(path, tmp_path / "whole")
    assert whole.wait(PATIENCE) == 0, (tmp_path / "whole.log").read_text()
    stopped = tmp_path / "stopped"
    process = start(path, stopped)
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and not stored(stopped) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) not in (None, 0)
    assert "asked to stop" in (stopped / "attempts" / "0001" / "exit.json").read_text()
    so_far = final_set(stopped)
    assert so_far and all(row[-1] is not None for row in so_far), "what was stored is judged as well"
    last = start(path, stopped)
    assert last.wait(PATIENCE) == 0, (tmp_path / "stopped.log").read_text()
    assert len(so_far) < len(final_set(stopped)), "it was in the middle"
    assert final_set(stopped) == final_set(tmp_path / "whole")


@pytest.mark.slow
def test_a_real_job_killed_at_random_moments_ends_with_the_same_samples(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1000)
    print(f"seed {seed}, {KILLS} kills")
    dice = random.Random(seed)
    path = job(tmp_path)
    whole = start(path, tmp_path / "whole")
    assert whole.wait(PATIENCE) == 0, (tmp_path / "whole.log").read_text()
    killed = tmp_path / "killed"
    at_work = 0
    for _ in range(KILLS):
        before = stored(killed)
        process = start(path, killed)
        deadline = time.monotonic() + PATIENCE
        if dice.random() < 0.8:  # the others while loading
            while process.poll() is None and stored(killed) == before and time.monotonic() < deadline:
                time.sleep(0.02)
        time.sleep(dice.uniform(0, 1.0))
        at_work += process.poll() is None and stored(killed) > before
        kill_all(process)
    between = stored(killed)
    last = start(path, killed)
    assert last.wait(PATIENCE) == 0, (tmp_path / "killed.log").read_text()
    found = final_set(killed)
    print(f"{at_work} of {KILLS} killed while samples came, {between} of {len(found)} stored by then")
    assert len(found) == TASKS * SAMPLES
    assert [row[:3] for row in found] == [row[:3] for row in final_set(tmp_path / "whole")]
    assert found == final_set(tmp_path / "whole"), "another text or verdict for the same seed"
