"""``SupervisedCallback``: one line that lets any ``transformers`` Trainer speak the run directory's contract.

    trainer = Trainer(..., callbacks=[SupervisedCallback()])

It beats, reports progress, evaluations and checkpoints, saves and stops at the next step when it is asked to, ends at
once when loss or gradients are no longer finite, and writes the exit report with planned and done steps. Only rank 0
writes. Without a supervisor it does nothing.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from supervisor.protocol.attempt import SPEC_VARIABLE, AttemptSpec, ExitKind, ExitReport, read_spec, write_exit_report
from supervisor.protocol.events import EventLog
from supervisor.protocol.heartbeat import HeartbeatWriter, Phase
from supervisor.protocol.paths import RunPaths

logger = logging.getLogger(__name__)

_FIGURES = ("loss", "learning_rate", "grad_norm")


class NonFiniteTrainingError(RuntimeError):
    """Loss or gradients are no longer finite; what is trained after that is worth nothing."""


class SupervisedCallback(TrainerCallback):  # type: ignore[misc]
    """See the module. Make it before training begins, in every rank."""

    def __init__(self) -> None:
        path = os.environ.get(SPEC_VARIABLE)
        self._supervised = bool(path)
        self._writer = _Writer(read_spec(Path(path))) if path and os.environ.get("RANK", "0") == "0" else None
        self._anybody_supervised = self._supervised
        self._stop = False
        self._stopped = False
        self._training = False
        self._previous: Any = None
        self._began = 0.0
        self._first_step = 0
        self._evaluated = -1
        if not path:
            logger.warning("SupervisedCallback: not started by mens-sup run, so there is nobody to report to.")

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # On several machines only one of them need be supervised; all ranks take part in the agreement or none.
        self._anybody_supervised = _any_rank(self._supervised, args)
        self._stopped = False
        self._training = True
        self._first_step = state.global_step
        if self._supervised:
            self._catch_sigterm()
        if self._writer is not None:
            self._writer.begin(state.global_step, state.max_steps)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._writer is not None:
            self._writer.beat(Phase.WARMING_UP if state.global_step == self._first_step else Phase.TRAINING)

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._writer is not None:
            self._writer.beat()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step == self._first_step + 1:
            self._began = time.monotonic()  # the first step also warms up, so the rate counts from its end
        if self._writer is not None:
            self._writer.beat(Phase.TRAINING, state.global_step)
        self._stop_if_asked(args, state, control)
        if self._writer is not None and control.should_evaluate:
            self._writer.beat(Phase.EVALUATING)
        elif self._writer is not None and control.should_save:
            self._writer.beat(Phase.SAVING)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # Before and after training nobody beats: who has begun to is expected to go on.
        if self._writer is not None and self._training:
            self._writer.beat(Phase.EVALUATING)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._stop_if_asked(args, state, control)
        self._evaluated = state.global_step
        if self._writer is not None and self._training:
            self._writer.beat(Phase.SAVING if control.should_save else Phase.TRAINING)
            if losses := _figures(metrics or {}, ("eval_loss",)):
                self._writer.event("evaluation", state.global_step, **losses)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._writer is not None:
            self._writer.beat(Phase.TRAINING)
            path = Path(args.output_dir).absolute() / f"checkpoint-{state.global_step}"
            self._writer.event("checkpoint", state.global_step, path=str(path))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        logs = logs or {}
        if self._supervised and (bad := _not_finite(logs, fp16=bool(args.fp16))) is not None:
            message = f"{bad} is {logs[bad]} at optimiser step {state.global_step}"
            if self._writer is not None:
                self._writer.report(ExitKind.NAN_LOSS, message, state.global_step, state.max_steps)
            raise NonFiniteTrainingError(message)
        if self._writer is not None and "loss" in logs:
            self._writer.event("progress", state.global_step, **_figures(logs, _FIGURES), **self._rates(state))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._training = False
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None
        if self._writer is None:
            return
        done, planned = state.global_step, state.max_steps
        if self._stopped and done < planned:
            self._writer.report(ExitKind.INTERRUPTED, "asked to stop; a checkpoint was saved", done, planned)
        elif done < planned and _stops_early(state) and control.should_training_stop and self._evaluated == done:
            message = f"early stopping ended the training at step {done} (planned: at most {planned})"
            self._writer.report(ExitKind.COMPLETED, message, done, done, stopped_early=message)
        else:
            self._writer.report(ExitKind.COMPLETED, f"{done} of {planned} planned optimiser steps done", done, planned)

    def _rates(self, state: TrainerState) -> dict[str, Any]:
        """Planned steps, tokens where transformers counts them, and the time left once a rate is known."""
        data: dict[str, Any] = {"planned_steps": state.max_steps}
        if state.num_input_tokens_seen:
            data["tokens_seen"] = int(state.num_input_tokens_seen)
        timed = state.global_step - self._first_step - 1
        if timed > 0:
            seconds = (time.monotonic() - self._began) / timed
            data["eta_seconds"] = seconds * (state.max_steps - state.global_step)
        return data

    def _stop_if_asked(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        """Save and stop in every rank at the same step when any rank was asked to."""
        if not self._anybody_supervised or self._stopped or not _any_rank(self._stop, args):
            return
        self._stopped = True
        control.should_evaluate = False
        control.should_save = True
        control.should_training_stop = True
        if self._writer is not None:
            message = f"stopping at optimiser step {state.global_step} with a checkpoint"
            self._writer.event("stopping", state.global_step, message)

    def _catch_sigterm(self) -> None:
        try:
            self._previous = signal.signal(signal.SIGTERM, self._on_sigterm)
        except ValueError:  # only the main thread may
            logger.warning("SupervisedCallback: training outside the main thread can't be asked to save and stop.")

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self._stop = True


class _Writer:
    """One attempt's heartbeat, events and exit report."""

    def __init__(self, spec: AttemptSpec) -> None:
        paths = RunPaths(Path(spec.run_dir))
        self._paths = paths.attempt(spec.attempt)
        self._events = EventLog(paths.events, "trainer", spec.attempt)
        self._made: HeartbeatWriter | None = None

    @property
    def _heartbeat(self) -> HeartbeatWriter:
        """Made when training begins: who has never beaten may prepare its data for as long as it wants."""
        if self._made is None:
            self._made = HeartbeatWriter(self._paths.heartbeat)
        return self._made

    def begin(self, step: int, planned: int) -> None:
        self._paths.exit_report.unlink(missing_ok=True)  # of an earlier training of the same program
        self._heartbeat.beat(Phase.WARMING_UP, step, planned)
        self.event("plan", step, planned_steps=planned)

    def beat(self, phase: Phase | None = None, step: int | None = None) -> None:
        changed = phase is not None and phase is not self._heartbeat.phase
        self._heartbeat.beat(phase, step)
        if changed:
            self.event("phase", self._heartbeat.step, phase=self._heartbeat.phase.name.lower())

    def event(self, kind: str, step: int, message: str = "", **data: Any) -> None:
        try:
            self._events.append(kind, message, step=step, **data)
        except OSError as error:  # a full disk must not end a training that could go on
            logger.warning("SupervisedCallback: an event could not be written: %s", error)

    def report(self, kind: ExitKind, message: str, done: int, planned: int, stopped_early: str = "") -> None:
        phase = self._heartbeat.phase.name.lower()
        self._heartbeat.beat(Phase.FINISHED, done, planned)
        report = ExitReport(
            kind, message, step=done, phase=phase, planned={"steps": planned}, done={"steps": done},
            stopped_early=stopped_early,
        )  # fmt: skip
        try:
            write_exit_report(self._paths.exit_report, report)
        except OSError as error:
            logger.warning("SupervisedCallback: the exit report could not be written: %s", error)


def _any_rank(mine: bool, args: TrainingArguments) -> bool:
    """Is it true in any rank? Every rank must ask."""
    if args.world_size <= 1:
        return mine
    import torch
    from torch import distributed

    if not distributed.is_initialized():
        return mine
    flag = torch.tensor(int(mine), device=args.device)
    distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
    return bool(flag.item())


def _not_finite(logs: dict[str, Any], *, fp16: bool) -> str | None:
    """The figure that is not finite. Under fp16 the loss scaler skips steps with infinite gradients by design."""
    names = ("loss",) if fp16 else ("loss", "grad_norm")
    return next((name for name in names if _number(logs.get(name)) and not _finite(logs[name])), None)


def _stops_early(state: TrainerState) -> bool:
    """Is transformers' EarlyStoppingCallback at work? The Trainer lists callbacks that have a state."""
    return "EarlyStoppingCallback" in (getattr(state, "stateful_callbacks", None) or {})


def _figures(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Those of ``names`` that are finite numbers."""
    return {name: float(values[name]) for name in names if _finite(values.get(name))}


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(value: Any) -> bool:
    return _number(value) and math.isfinite(value)
