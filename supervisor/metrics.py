"""Metrics of runs as Prometheus text: pure, and as a file for the node exporter's textfile collector.

Only running runs have figures of their own, so that a long history does not become a thousand time series; ended runs
are counted by outcome. A figure that is unknown is left out, never 0.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.protocol.atomic import write_atomic
from supervisor.report.summary import RunSummary, Summaries, run_directories
from supervisor.sensors.snapshot import GpuReading, Unknown
from supervisor.state import Outcome
from supervisor.view.follow import Follower, RunView
from supervisor.view.text import clean
from supervisor.view.wording import number

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "mens_sup_"
_PROGRESS = {
    "loss": ("run_loss", "Training loss, nats per token."),
    "learning_rate": ("run_learning_rate", "Learning rate."),
    "grad_norm": ("run_grad_norm", "Gradient norm before clipping."),
    "tokens_per_second": ("run_tokens_per_second", "Tokens per second."),
    "eta_seconds": ("run_eta_seconds", "Seconds that the trainer expects to need until its last step."),
    "memory_bytes": ("run_memory_bytes", "Peak memory of the trainer as it measures it."),
    "accepted": ("run_samples_accepted", "Samples accepted so far by a sampling job."),
    "accepted_per_second": ("run_accepted_per_second", "Samples accepted per second by a sampling job."),
}


@dataclass(frozen=True)
class DaemonFigures:
    """What a daemon knows besides its runs. ``queue``: how many entries are in each state."""

    queue: Mapping[str, int] = field(default_factory=dict)
    uptime_seconds: float | None = None
    tick_age_seconds: float | None = None
    leases_held: Mapping[str, bool] = field(default_factory=dict)
    version: str = ""


@dataclass(frozen=True)
class _Sample:
    name: str
    help: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


def metrics_text(
    runs: Sequence[RunSummary], views: Iterable[RunView] = (), daemon: DaemonFigures | None = None
) -> str:
    """All metrics in Prometheus' text format. ``views``: of the runs that are running."""
    samples = [*_of_runs(runs), *(sample for view in views for sample in _of_view(view))]
    if daemon is not None:
        samples += _of_daemon(daemon)
    grouped: dict[str, dict[tuple[tuple[str, str], ...], _Sample]] = {}
    for sample in samples:
        grouped.setdefault(sample.name, {}).setdefault(sample.labels, sample)  # a name twice would spoil the whole text
    lines: list[str] = []
    for name, members in grouped.items():
        text = next(iter(members.values())).help
        lines += [f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} gauge"]
        lines += [f"{PREFIX}{name}{_labels(each.labels)} {_value(each.value)}" for each in members.values()]
    return "\n".join(lines) + "\n" if lines else ""


class MetricsSource:
    """The metrics of all runs in a folder, again and again: only running runs are looked at closely. Thread-safe."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._summaries = Summaries()
        self._followers: dict[Path, Follower] = {}
        self._lock = threading.Lock()

    def text(self, daemon: DaemonFigures | None = None) -> str:
        with self._lock:
            found = self._summaries.of(run_directories(self._runs))
            running = [run.directory for run in found if run.running]
            self._followers = {each: self._followers.get(each) or Follower(each) for each in running}
            views = [follower.update() for follower in self._followers.values()]
        return metrics_text(found, views, daemon)


def write_textfile(path: Path, text: str) -> None:
    """Replace ``path`` atomically, as the node exporter asks for; its name must end in .prom. Raises OSError."""
    write_atomic(path, text.encode())


def _of_runs(runs: Sequence[RunSummary]) -> Iterator[_Sample]:
    outcomes = Counter(run.state.outcome.value if run.state else "damaged" for run in runs)
    for outcome in (*(each.value for each in Outcome), "damaged"):
        yield _Sample("runs", "Runs by outcome.", outcomes[outcome], (("outcome", outcome),))
    unattended = sum(run.running and not run.alive for run in runs)
    yield _Sample("runs_unattended", "Runs whose outcome is running and that nobody supervises.", unattended)


def _of_view(view: RunView) -> Iterator[_Sample]:
    state = view.state
    if state is None:
        return
    labels = (("run", state.id), ("kind", state.kind))

    def sample(name: str, text: str, value: float | None, *more: tuple[str, str]) -> Iterator[_Sample]:
        if value is not None:
            yield _Sample(name, text, value, (*labels, *more))

    yield from sample("run_step", "Optimiser steps done, or what the kind of job counts instead.", view.step)
    yield from sample("run_planned_steps", "Steps planned.", view.planned_steps)
    yield from sample("run_attempt", "Number of the present attempt.", state.attempt)
    yield from sample("run_failures", "Attempts that failed.", len(state.failures))
    yield from sample("run_relief", "Rungs of relief taken.", len(state.relief))
    lossy = sum(not taken.lossless for taken in state.relief)
    yield from sample("run_relief_lossy", "Rungs taken that change what is learnt.", lossy)
    yield from sample("run_seconds_used", "Seconds of supervision so far.", state.seconds_used)
    yield from sample("run_updated_timestamp_seconds", "When the supervisor wrote its state last.", state.updated)
    yield from sample("run_supervised", "1 while a supervisor is at work on it.", view.supervisor_alive)
    yield from sample("run_training", "1 while a trainer process runs.", view.beat is not None)
    if view.beat is not None:
        yield from sample("run_silent_seconds", "Seconds since the trainer's last heartbeat.", view.beat.age_seconds)
    if view.tokens_seen:
        yield from sample("run_tokens_seen", "Tokens seen so far.", view.tokens_seen)
    for key, (name, text) in _PROGRESS.items():
        yield from sample(name, text, number(view.progress, key))
    if view.eval_loss is not None:
        yield from sample("run_eval_loss", "Evaluation loss, nats per token.", view.eval_loss[1])
    yield from sample("run_trainer_rss_bytes", "Resident memory of the trainer.", view.trainer_rss_bytes)
    yield from sample("run_disk_free_bytes", "Room left where the run directory lies.", view.disk_free_bytes)
    if view.sensors is not None:
        for found in view.sensors.forecasts:
            text = "Seconds until this mount is full; left out while it is not filling up."
            yield from sample("run_disk_full_seconds", text, found.seconds, ("mount", found.mount))
        gpus = view.sensors.snapshot.gpus
        for gpu in () if isinstance(gpus, Unknown) else gpus:
            for name, text, value in _gpu(gpu):
                yield from sample(name, text, value, ("gpu", str(gpu.index)))


def _gpu(gpu: GpuReading) -> Iterator[tuple[str, str, float | None]]:
    def known(value: int | Unknown) -> float | None:
        return None if isinstance(value, Unknown) else value

    yield "gpu_memory_used_bytes", "Memory in use on the GPU, as the run's sensors saw it last.", known(gpu.used_bytes)
    yield "gpu_memory_total_bytes", "Memory of the GPU.", known(gpu.total_bytes)
    yield "gpu_utilisation_percent", "Utilisation of the GPU.", known(gpu.utilisation_percent)
    yield "gpu_temperature_celsius", "Temperature of the GPU.", known(gpu.temperature_celsius)


def _of_daemon(daemon: DaemonFigures) -> Iterator[_Sample]:
    if daemon.version:
        yield _Sample("daemon_info", "Always 1; the label is the version.", 1, (("version", daemon.version),))
    for state, how_many in daemon.queue.items():
        yield _Sample("queue_entries", "Entries of the queue by state.", how_many, (("state", state),))
    for resource, held in daemon.leases_held.items():
        yield _Sample("lease_held", "1 while an entry holds the resource.", held, (("resource", resource),))
    if daemon.uptime_seconds is not None:
        yield _Sample("daemon_uptime_seconds", "Seconds since the daemon started.", daemon.uptime_seconds)
    if daemon.tick_age_seconds is not None:
        yield _Sample("daemon_tick_age_seconds", "Seconds since its main loop went round.", daemon.tick_age_seconds)


def _labels(labels: Sequence[tuple[str, str]]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_quoted(value)}"' for name, value in labels) + "}"


def _quoted(value: str) -> str:
    return clean(value).replace("\\", "\\\\").replace('"', '\\"').encode("utf-8", "replace").decode()


def _value(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
