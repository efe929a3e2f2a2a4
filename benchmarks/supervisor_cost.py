"""Memory and processor time of the supervisor while its trainer works quietly (the scripted trainer of the tests)."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine
import psutil

PROJECT = Path(__file__).parents[1]
START_SECONDS = 3.0
STEP_SECONDS = 0.5
"""A progress event twice a second, more than real trainings have."""

CONFIG = """\
kind: scripted
train: {{max_steps: {steps}, step_seconds: {seconds}, adapter_bytes: 4194304}}
checkpoint: {{save_steps: 50}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    print(f"supervisor cost, {options.seconds:.0f} s, {machine.describe()}")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "quiet.yaml"
        steps = int((options.seconds + 4 * START_SECONDS) / STEP_SECONDS)
        config.write_text(CONFIG.format(steps=steps, seconds=STEP_SECONDS))
        supervisor = subprocess.Popen(
            [Path(sys.executable).with_name("mens-sup"), "run", config, "--run-dir", Path(folder) / "run"],
            env={**os.environ, "PYTHONPATH": str(PROJECT / "tests" / "stand_ins")},
            stdout=subprocess.DEVNULL,
        )
        process = psutil.Process(supervisor.pid)
        time.sleep(START_SECONDS)
        before, began = process.cpu_times(), time.monotonic()
        resident = 0
        while time.monotonic() - began < options.seconds:
            resident = max(resident, process.memory_info().rss)
            time.sleep(1.0)
        after, took = process.cpu_times(), time.monotonic() - began
        supervisor.terminate()
        supervisor.wait()
    used = after.user + after.system - before.user - before.system
    print(f"  {used:.2f} s of processor time in {took:.0f} s")
    machine.verdict("most resident memory, in MB", resident / 1e6, 80.0, at_least=False)
    machine.verdict("processor time, in per cent of one core", 100 * used / took, 0.5, at_least=False)


if __name__ == "__main__":
    main()
