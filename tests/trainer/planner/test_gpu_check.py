"""The script for a CUDA machine, as much of it as a CPU can run. proves TRN-16."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
BARE = """
import importlib.abc, importlib.util, runpy, sys
MISSING = {"pydantic", "msgspec", "xxhash", "trl", "datasets", "psutil", "rich", "ruamel", "pynvml"}
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in MISSING:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
look = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name.split(".")[0] in MISSING else look(name, *a)
sys.argv = ["gpu_check", *sys.argv[2:]]
runpy.run_path("benchmarks/gpu_check.py", run_name="__main__")
"""


def gpu_check(*options: str, bare: bool = False) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", BARE, "-"] if bare else [sys.executable, "benchmarks/gpu_check.py"]
    return subprocess.run(
        [*command, *options], cwd=PROJECT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_cpu_proves_the_script_with_nothing_but_the_four_libraries() -> None:
    done = gpu_check("--cpu-dry", bare=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "gpu check on CPU, a tiny shape" and lines[-1] == "all within 7 %"
    assert len(lines) == 6


@pytest.mark.slow
def test_without_a_gpu_it_says_so() -> None:
    done = gpu_check()
    assert done.returncode == 2 and "no CUDA GPU here" in done.stderr
