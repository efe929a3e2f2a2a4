"""How a run stands, for people and programs: ``mens-sup status``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from supervisor.problems import InputError
from supervisor.protocol.paths import RunPaths
from supervisor.sensors.disk import human_bytes
from supervisor.sensors.report import SensorReport
from supervisor.state import RunState, read_state
from supervisor.view.follow import Follower, RunView
from supervisor.view.resources import gpu_problem, resource_parts
from supervisor.view.text import clean, count, duration
from supervisor.view.wording import number, with_noise


def newest_run(runs: Path) -> Path | None:
    """The run directory under ``runs`` whose state was written last, or None."""
    found = [(path.stat().st_mtime, path.parent) for path in runs.glob("*/state.json")]
    return max(found)[1] if found else None


def known_state(run_dir: Path) -> RunState | None:
    """The run's state, None without one. Raises InputError when it is damaged."""
    paths = RunPaths(run_dir)
    try:
        return read_state(paths.state)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(_damaged(paths, error)) from error


def _damaged(paths: RunPaths, error: Exception) -> str:
    return f"{paths.state} is damaged ({error}). The events are in {paths.events}."


def read_status(run_dir: Path) -> dict[str, Any]:
    """The status as plain data; unknown values are None. Raises InputError when there is no readable run.

    While a run is running, step, tokens and phase come from its heartbeat and newest events.
    ``supervisor_alive`` is there for a run whose outcome is ``running``: False means that nobody is
    supervising it.
    """
    paths = RunPaths(run_dir)
    if not run_dir.is_dir():
        raise InputError(f"{run_dir}: there is no such folder. Name a run's folder, usually one under runs/.")
    try:
        view = Follower(run_dir).update()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(_damaged(paths, error)) from error
    if view.state is None:
        raise InputError(f"{run_dir} holds no run (no state.json). Name a run's folder, usually one under runs/.")
    return _plain(view, view.state)


def _sensor_lines(report: SensorReport) -> Iterator[tuple[str, str]]:
    age = duration(time.time() - report.snapshot.time)
    yield "machine", f"{', '.join(resource_parts(report))} ({age} ago)"
    if (problem := gpu_problem(report)) is not None:
        yield "GPU", f"unknown: {problem}"


def render_status(status: dict[str, Any]) -> str:
    """A few aligned lines."""
    lines = [("run", f"{status['id']}  ({status['kind']})"), ("outcome", _outcome(status))]
    made = status["attempt"] - status["attempts_before"]
    earlier = f", {status['attempts_before']} before that" if status["attempts_before"] else ""
    lines.append(("attempt", f"{made} of {status['max_attempts']}{earlier}"))
    planned = status["planned_steps"]
    lines.append(("step", f"{status['step']} of {'?' if planned is None else planned}"))
    tokens = status["tokens_seen"]
    lines.append(("tokens", "?" if tokens is None else count(tokens)))
    loss, eval_loss = status["loss"], status["eval_loss"]
    if loss is not None or eval_loss is not None:
        shown = "?" if loss is None else f"{loss:.4f}"
        noise = status["eval_loss_stderr"]
        lines.append(("loss", shown + ("" if eval_loss is None else f", evaluation {with_noise(eval_loss, noise)}")))
    if status["seconds_used"] >= 1:
        lines.append(("time used", duration(status["seconds_used"])))
    if status["eta_seconds"] is not None:
        lines.append(("time left", duration(status["eta_seconds"])))
    lines.append(("checkpoint", f"{status['last_checkpoint'] or 'none'}, best {status['best_checkpoint'] or 'none'}"))
    for taken in status["relief"]:
        lines.append(("relief", f"{taken['rung']} before attempt {taken['attempt']}: {taken['price']}"))
    for found in status["gates"].values():
        lines.append(("gate", found["message"]))
    if (failure := status["last_failure"]) is not None:
        where = f"attempt {failure['attempt']}, step {failure['step']}"
        lines.append(("last failure", f"{failure['kind']} ({where}): {failure['message']}"))
    if status["disk_free_bytes"] is not None:
        lines.append(("disk free", human_bytes(status["disk_free_bytes"])))
    if status["sensors"] is not None and status["outcome"] == "running":
        lines += _sensor_lines(msgspec.convert(status["sensors"], SensorReport))
    if status["explanation"]:
        lines.append(("why", status["explanation"]))
    return "\n".join(f"{label:<13}{clean(text)}" for label, text in lines)


def _plain(view: RunView, state: RunState) -> dict[str, Any]:
    status: dict[str, Any] = {
        "id": state.id,
        "kind": state.kind,
        "run_dir": str(view.directory),
        "outcome": state.outcome.value,
        "attempt": state.attempt,
        "attempts_before": state.attempts_before,
        "max_attempts": state.max_attempts,
        "phase": view.phase,
        "step": view.step,
        "planned_steps": view.planned_steps,
        # A trainer that does steps and tells no tokens doesn't count them.
        "tokens_seen": view.tokens_seen if view.tokens_seen or not view.step else None,
        "seconds_used": state.seconds_used,
        "loss": number(view.progress, "loss"),
        "eval_loss": view.eval_loss[1] if view.eval_loss else None,
        "eval_loss_stderr": view.eval_loss_stderr,
        "tokens_per_second": number(view.progress, "tokens_per_second") if view.running else None,
        "eta_seconds": number(view.progress, "eta_seconds") if view.running else None,
        "last_checkpoint": state.last_checkpoint,
        "best_checkpoint": state.best_checkpoint,
        "lineage": state.lineage,
        "relief": msgspec.to_builtins(state.relief),
        "failures": len(state.failures),
        "last_failure": msgspec.to_builtins(state.failures[-1]) if state.failures else None,
        "explanation": state.explanation,
        "gates": {
            name: {"verdict": event.data.get("verdict"), "message": event.message, "result": event.data.get("result")}
            for name, event in view.gates.items()
        },
        "disk_free_bytes": view.disk_free_bytes,
        "trainer_rss_bytes": view.trainer_rss_bytes,
        "sensors": msgspec.to_builtins(view.sensors),
        "started": state.started,
        "updated": state.updated,
    }
    if view.running:
        status["supervisor_alive"] = view.supervisor_alive
    return status


def _outcome(status: dict[str, Any]) -> str:
    text = str(status["outcome"]).replace("_", " ")
    if status.get("supervisor_alive") is False:
        since = duration(time.time() - status["updated"])
        return (
            f"{text}, but no supervisor is alive (last sign {since} ago); "
            f"go on with: mens-sup run --run-dir {status['run_dir']}"
        )
    return f"{text}, {status['phase']}" if status["phase"] else text
