"""How long a run will take: from earlier runs on this machine, never invented."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.config import ConfigError, LoadedConfig, load_document
from supervisor.jobs import Forecasts
from supervisor.pace import known_pace
from supervisor.protocol.events import EventReader
from supervisor.protocol.forecast import DataForecast
from supervisor.protocol.paths import RunPaths
from supervisor.yaml_source import read_yaml

LOOKED_AT = 50
"""The newest runs that are looked through for one like this."""
PROGRESS_USED = 50
FIRST_STEPS = 2
"""Progress of these is left out: the first steps also warm up."""


@dataclass(frozen=True)
class Hours:
    """``seconds`` None: not known. ``source``: where they are from, or why they are not known."""

    seconds: float | None
    source: str
    tokens_per_second: float | None = None


def estimate(config: LoadedConfig, data: DataForecast, runs: Path) -> Hours:
    """From an earlier run of this very configuration, or else from the tokens per second of one like it."""
    pace = known_pace(config.kind, config.sections, config.document)
    if pace is not None:
        steps = data.planned_steps or pace.planned_steps
        source = f"{steps} steps at {pace.seconds_per_step:.2f} s each, as an earlier run like this one took"
        return Hours(steps * pace.seconds_per_step, source)
    speed = speed_of_past_runs(config, runs)
    if speed is None:
        why = f"no run like this one was made here (in {runs}/), and its speed on this machine is unknown"
        return Hours(None, f"{why}; --probe measures it")
    rate, run = speed
    if data.planned_tokens is None:
        return Hours(None, f"the planned tokens are unknown; {run} trained {rate:.0f} tokens/s", rate)
    source = f"{data.planned_tokens} tokens at {rate:.0f} tokens/s, as {run} trained"
    return Hours(data.planned_tokens / rate, source, rate)


def speed_of_past_runs(config: LoadedConfig, runs: Path) -> tuple[float, str] | None:
    """Tokens per second of the newest run alike, and its name."""
    if not isinstance(config.kind, Forecasts) or not runs.is_dir():
        return None
    wanted = _key(config)
    folders = [entry for entry in runs.iterdir() if RunPaths(entry).run_yaml.is_file()]
    folders.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
    for folder in folders[:LOOKED_AT]:
        if _key_of(folder, config) == wanted and (rate := measured_rate(folder)) is not None:
            return rate, folder.name
    return None


def _key(config: LoadedConfig) -> tuple[str, int, str]:
    """Equal for runs that train about as many tokens per second on one machine."""
    assert isinstance(config.kind, Forecasts)
    launch = config.own.launch
    return config.kind.speed_key(config.sections), launch.processes, launch.strategy


def _key_of(folder: Path, config: LoadedConfig) -> tuple[str, int, str] | None:
    try:
        document, _ = read_yaml(RunPaths(folder).run_yaml)
        if document.get("kind") != config.kind.name:
            return None
        return _key(load_document(document, config.kind, source=str(folder)))
    except ConfigError:  # of another version of the schema: a run that tells us nothing
        return None


def measured_rate(folder: Path) -> float | None:
    """The median of tokens per second that a run reported last; None when it didn't get so far."""
    rates: list[float] = []
    for event in EventReader.of_tail(RunPaths(folder).events).new():
        if event.kind == "progress" and (event.step or 0) > FIRST_STEPS:
            rate: Any = event.data.get("tokens_per_second")
            if isinstance(rate, int | float) and rate > 0:
                rates.append(float(rate))
    return statistics.median(rates[-PROGRESS_USED:]) if rates else None
