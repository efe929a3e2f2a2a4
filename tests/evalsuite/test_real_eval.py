"""Evaluations with everything real: supervisor, sampler, judges; killed, an adapter of zeros, other templates."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from eval_runs import BASE, SAMPLES, TASKS, bench, command, environment, evaluate, sealed

from evalsuite.scores import SCORES_NAME, read_scores

sys.path.insert(0, str(Path(__file__).parents[1] / "rft"))
from test_kill_job import stored
from toy_job import final_set

KILLS = int(os.environ.get("MENS_KILLS", "3"))
PATIENCE = 3600.0
pytestmark = pytest.mark.slow


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the command, the supervisor and everything below it."""
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


# proves EVL-4: kill -9 in the middle, and the same scores
def test_a_killed_evaluation_ends_with_the_same_scores(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1000)
    print(f"seed {seed}, {KILLS} kills")
    dice = random.Random(seed)
    path = bench(tmp_path)
    whole = evaluate(tmp_path, path, tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    killed, at_work = tmp_path / "killed", 0
    for _ in range(KILLS):
        before = stored(killed)
        with open(tmp_path / "killed.log", "ab") as log:
            process = subprocess.Popen(
                command(path, killed), stdout=log, stderr=log, start_new_session=True, env=environment(tmp_path)
            )
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and stored(killed) == before and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(dice.uniform(0, 0.3))
        at_work += process.poll() is None and before < stored(killed) < TASKS * SAMPLES
        kill_all(process)
        assert not (killed / SCORES_NAME).exists() or stored(killed) == TASKS * SAMPLES
    between = stored(killed)
    last = evaluate(tmp_path, path, killed, "--json")
    assert last.returncode == 0, last.stderr
    print(f"{at_work} of {KILLS} killed while samples came, {between} of {TASKS * SAMPLES} stored by then")
    assert at_work
    assert final_set(killed) == final_set(tmp_path / "whole")
    assert read_scores(killed) == read_scores(tmp_path / "whole") and read_scores(killed).whole
    assert json.loads(last.stdout)["tasks"] == TASKS


# proves EVL-3: an adapter is proven applied, and its template is that of the training
def test_zeros_and_other_templates_are_refused(tmp_path: Path) -> None:
    maker = Path(__file__).parents[1] / "rft" / "samplers" / "adapters.py"
    folders = {}
    for name, scale in (("trained", "0.05"), ("zeros", "0")):
        folders[name] = tmp_path / name
        done = subprocess.run(
            [sys.executable, str(maker), BASE, str(folders[name]), scale], env=environment(tmp_path), check=False
        )
        assert done.returncode == 0
        template = json.loads((folders[name] / "template.json").read_text())["template_hash"]
        sealed(folders[name], template)
    path = bench(tmp_path, 2, 1)
    assert evaluate(tmp_path, path, tmp_path / "good", "--adapter", str(folders["trained"])).returncode == 0
    base = evaluate(tmp_path, path, tmp_path / "base", "--template-of", str(folders["trained"]))
    assert base.returncode == 0, base.stderr
    good, without = read_scores(tmp_path / "good"), read_scores(tmp_path / "base")
    assert good.model.template_hash == without.model.template_hash == template
    assert good.model.adapter is not None and without.model.adapter is None
    assert good.model.adapter_effect_nats is not None and good.model.adapter_effect_nats > 1e-4
    zeros = evaluate(tmp_path, path, tmp_path / "refused", "--adapter", str(folders["zeros"]))
    assert zeros.returncode == 2 and "changes nothing" in zeros.stderr, zeros.stderr
    assert not (tmp_path / "refused" / SCORES_NAME).exists()
    (tmp_path / "other.jinja").write_text(
        (folders["trained"] / "chat_template.jinja").read_text().replace("You are", "You were")
    )
    changed = evaluate(
        tmp_path, path, tmp_path / "changed", "--adapter", str(folders["trained"]),
        "--set", f"sampler.chat_template={tmp_path / 'other.jinja'}",
    )  # fmt: skip
    assert changed.returncode == 2 and "was trained with the chat template" in changed.stderr, changed.stderr
    assert not (tmp_path / "changed" / SCORES_NAME).exists()


# proves EVL-6: a training is judged by itself at its end, and only what passed is exported
def test_a_training_is_judged_at_its_end_and_exported(tmp_path: Path) -> None:
    bench(tmp_path)
    asked = {"bench": "bench.yaml", "candidate": "run", "base": "cached", "release": "none"}
    gate = {"name": "small", "benches": [{**asked, "checks": [{"margin": 0.5}]}]}
    (tmp_path / "gate.yaml").write_text(json.dumps(gate))
    document = {
        "name": "judged", "device": "cpu", "gates": ["gate.yaml"],
        "model": {"base": BASE, "lora": {"r": 4}},
        "data": {"sources": [{"type": "python_declarations", "path": "stdlib", "max_rows": 600}],
                 "validation": {"max_rows": 16}},
        "train": {"max_steps": 3, "max_length": 128, "per_device_train_batch_size": 2, "learning_rate": 0.01},
        "checkpoint": {"save_steps": 3}, "limits": {"hang_seconds": 3600},
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(json.dumps(document))
    run_dir, out = tmp_path / "runs" / "judged", tmp_path / "out"
    program = [sys.executable, "-m", "supervisor.cli"]

    def mens_sup(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*program, *arguments], capture_output=True, text=True, check=False, env=environment(tmp_path)
        )

    done = mens_sup("run", str(tmp_path / "run.yaml"), "--run-dir", str(run_dir), "--no-live")
    assert done.returncode == 0, done.stderr
    status = json.loads(mens_sup("status", str(run_dir), "--json").stdout)
    assert status["outcome"] == "completed" and status["gates"]["small"]["verdict"] == "pass", done.stdout
    assert "small" in (run_dir / "report.html").read_text()
    exported = mens_sup("export", str(run_dir), "--out", str(out))
    assert exported.returncode == 0, exported.stderr
    assert "**small: PASS**" in (out / "README.md").read_text()
    again = mens_sup("run", "--run-dir", str(run_dir), "--no-live")
    assert again.returncode == 0 and "attempt" not in again.stdout, "nothing is asked again"
