"""``mens-sup plan``: everything that can be known of a run before its first step, as one value."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.config import LoadedConfig
from supervisor.config_sections import TRIM_RETENTION, WAIT_FOR_FOREIGN_VRAM
from supervisor.jobs import Forecasts, Relief, Rung
from supervisor.planning.fit import Fit, Room, judge, patched
from supervisor.planning.forecaster import Forecaster, NoForecastError
from supervisor.planning.pace import Hours, estimate
from supervisor.planning.room import find_room, read_gpus
from supervisor.protocol.forecast import DataForecast, Device, MemoryForecast, Question
from supervisor.relief.custom import own_rungs
from supervisor.sensors.snapshot import Unknown
from supervisor.state import ReliefTaken

PATIENCE_SECONDS = 1800.0
"""For one answer: rendering a large corpus for the first time takes minutes, and a busy machine longer."""


@dataclass(frozen=True)
class Disk:
    """Bytes. ``kept``: checkpoints that stay, ``peak`` with the one being written; ``free``: on that disk."""

    checkpoint: int
    kept: int
    peak: int
    cache: int
    free: int


@dataclass(frozen=True)
class Plan:
    """``fallback``: the configuration after the relief that starts a new lineage (a smaller model), if there is one."""

    config: LoadedConfig
    fit: Fit
    data: DataForecast
    hours: Hours
    disk: Disk | None
    fallback: tuple[Relief, Fit] | None


def make_plan(config: LoadedConfig, gpu_gib: float | None, runs: Path) -> Plan:
    """Raises NoForecastError when the kind of job foresees nothing."""
    kind = config.kind
    if not isinstance(kind, Forecasts):
        raise NoForecastError(f"a job of kind {kind.name} is any program; what it will need is known to nobody but it")
    environment = {**os.environ, **config.own.launch.env}
    wanted = kind.device(config.sections)
    gpus = read_gpus() if wanted != "cpu" and gpu_gib is None else Unknown("not asked")
    room = find_room(wanted, gpu_gib, gpus, environment, config.own.launch.processes)
    with Forecaster(forecaster_command(config, kind), environment, PATIENCE_SECONDS) as forecaster:
        data = data_of(forecaster, config.document, room)
        predict = predictor(forecaster, room, data.longest_sequence)
        facts = {"histogram": list(data.histogram)} if data.histogram else {}
        fit = judge_config(config, room, facts, predict)
        fallback = smaller_model(config, room, predict)
    return Plan(config, fit, data, estimate(config, data, runs), _disk(config, fit.forecast, runs), fallback)


def forecaster_command(config: LoadedConfig, kind: Forecasts) -> list[str]:
    return [config.own.launch.python or sys.executable, *kind.forecaster()]


def predictor(
    forecaster: Forecaster, room: Room, longest: int | None = None
) -> Callable[[Mapping[str, Any]], MemoryForecast]:
    """Asks for the memory of a document whose ``longest`` sequence is known or not; what nobody answers is unknown."""
    device: Device = "cuda" if room.device == "cuda" else "cpu"

    def predict(document: Mapping[str, Any]) -> MemoryForecast:
        try:
            return forecaster.memory(Question("memory", dict(document), device, longest))
        except NoForecastError as error:
            return MemoryForecast(unknown=f"no prediction was made: {error}.")

    return predict


def judge_config(
    config: LoadedConfig,
    room: Room,
    facts: Mapping[str, Any],
    predict: Callable[[Mapping[str, Any]], MemoryForecast],
) -> Fit:
    """The fit of a configuration, with the rungs of its own ladder."""
    relief = config.own.relief
    ladder = [name for name in relief.order if name not in (TRIM_RETENTION, WAIT_FOR_FOREIGN_VRAM)]

    def rungs(taken: Sequence[ReliefTaken]) -> Mapping[str, Rung]:
        return {**config.kind.rungs, **own_rungs(relief.own_rungs, taken)}

    return judge(config.document, room, ladder, rungs, facts, predict)


def smaller_model(
    config: LoadedConfig, room: Room, predict: Callable[[Mapping[str, Any]], MemoryForecast]
) -> tuple[Relief, Fit] | None:
    """What the rung that changes the model would change it to, as it stands in the configuration."""
    for rung in config.kind.rungs.values():
        relief = rung(config.document, {})
        if relief is not None and relief.new_lineage:
            after = patched(config.document, relief.patches)
            return relief, judge(after, room, (), lambda _: {}, {}, predict)
    return None


def data_of(forecaster: Forecaster, document: Mapping[str, Any], room: Room) -> DataForecast:
    try:
        return forecaster.data(Question("data", dict(document), "cuda" if room.device == "cuda" else "cpu"))
    except NoForecastError as error:
        return DataForecast(unknown=f"{error}")


def _disk(config: LoadedConfig, forecast: MemoryForecast, runs: Path) -> Disk | None:
    if forecast.unknown:
        return None
    size = forecast.checkpoint_bytes
    kept = size * (config.own.checkpoint.keep + 1)  # the best one stays as well
    place = next(folder for folder in (runs.absolute(), *runs.absolute().parents) if folder.exists())
    return Disk(size, kept, kept + size, forecast.cache_bytes, shutil.disk_usage(place).free)
