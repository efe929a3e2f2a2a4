"""Before the first attempt: will it fit? Said as an event, refused only where it certainly cannot."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from supervisor.jobs import Forecasts
from supervisor.planning.fit import CERTAINLY_TOO_MUCH, Fit
from supervisor.planning.forecaster import Forecaster
from supervisor.planning.plan import forecaster_command, judge_config, predictor
from supervisor.planning.room import find_room, read_gpus
from supervisor.planning.wording import verdict
from supervisor.relief.policy import Stop
from supervisor.sensors.gpu import Gpus
from supervisor.sensors.snapshot import Unknown
from supervisor.state import Outcome
from supervisor.supervise.opening import Run

PATIENCE_SECONDS = 180.0
"""For one prediction. It takes about ten seconds the first time, on a busy machine a few times that."""


def admit(run: Run, going_on: Callable[[], bool]) -> Stop | None:
    """Predict the peak memory of the next attempt; a Stop when it cannot fit whatever relief is taken.

    ``going_on`` is asked now and then; False ends the prediction. Never raises for want of a prediction: an attempt
    shows it as well.
    """
    config = run.config
    kind = config.kind
    how = config.own.limits.admission
    if how == "off" or not isinstance(kind, Forecasts):
        return None
    environment = {**os.environ, **config.own.launch.env}
    wanted = kind.device(config.sections)
    gpus: Gpus = Unknown("not asked") if wanted == "cpu" else read_gpus()
    room = find_room(wanted, None, gpus, environment, config.own.launch.processes)
    with Forecaster(forecaster_command(config, kind), environment, PATIENCE_SECONDS, going_on) as forecaster:
        fit = judge_config(config, room, run.facts, predictor(forecaster, room))
    message = verdict(fit)
    refused = how == "refuse" and fit.hopeless and not has_trained(run)
    if fit.fits is False and not refused:
        message += " It is tried nevertheless; when memory runs out, relief is taken."
    run.journal.event("admission", message, **figures(fit))
    return Stop(Outcome.FAILED_CONFIG, _refusal(message)) if refused else None


def has_trained(run: Run) -> bool:
    """Has an attempt of this very configuration saved a verified checkpoint? Then it fits, whatever is predicted."""
    saved = run.state.last_checkpoint
    if saved is None or run.taken_over:
        return False
    checkpoint = run.paths.root / saved
    return checkpoint.is_dir() and checkpoint.parent == run.paths.checkpoints(run.state.lineage)


def figures(fit: Fit) -> dict[str, Any]:
    """What the event carries."""
    forecast = fit.forecast
    return {
        "fits": fit.fits,
        "device": fit.room.device,
        "room_bytes": fit.room.total,
        "predicted_bytes": None if forecast.unknown else forecast.peak_bytes,
        "parts": forecast.parts,
        "conditions": forecast.conditions,
        "relief": [step.relief.rung for step in fit.steps],
    }


def _refusal(message: str) -> str:
    return (
        f"{message} That is more than {CERTAINLY_TOO_MUCH:g} times the memory there is, so nothing was started. Take a "
        "smaller base model, a shorter train.max_length, a smaller train.per_device_train_batch_size, or "
        "train.gradient_checkpointing; `mens-sup plan` shows what each part takes. limits.admission: warn tries it "
        "nevertheless."
    )
