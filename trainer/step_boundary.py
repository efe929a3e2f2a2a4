"""What happens between two optimiser steps: evaluate, save, stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from supervisor.protocol.heartbeat import Phase

if TYPE_CHECKING:
    from trainer.sft import SupervisedSFTTrainer


class EvaluationInterruptedError(Exception):
    """A stop was requested in the middle of an evaluation; the model stands at a step boundary."""


class StoppedEarlyError(Exception):
    """The evaluation that was made up for before the first step says that the training is over."""


class StepBoundary(TrainerCallback):  # type: ignore[misc]
    """Decides at each step boundary: evaluate, save, stop."""

    def __init__(self, trainer: SupervisedSFTTrainer) -> None:
        self.trainer = trainer
        self.reporter = trainer.reporter

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        trainer = self.trainer
        self.reporter.beat(step=state.global_step, planned_steps=trainer.plan.total_steps)
        self.reporter.enter(Phase.WARMING_UP)
        trainer.remember_losses()
        if trainer.evaluation_due(state.global_step):
            trainer.evaluate_first()
            if state.global_step and trainer.evaluations.over:
                raise StoppedEarlyError

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step == self.trainer.start_step:
            self.trainer.pace.restart(self.trainer.tokens_done)
            # Building the batch iterator draws from the global generator, so both a fresh and a resumed
            # attempt set the stream here, with the first batch in hand and nothing computed yet.
            torch.manual_seed(args.seed + self.trainer.ranks.index)
            if self.trainer.resume_from is not None:
                self.trainer._load_rng_state(str(self.trainer.resume_from))

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.trainer.snapshots is not None:
            self.trainer.snapshots.wait_for_copy()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        reason = self.trainer.evaluations.over
        if reason is not None and state.global_step < self.trainer.plan.total_steps:
            self.reporter.event("stopping_early", f"stopping early at optimiser step {state.global_step}: {reason}")
            control.should_save = True
            control.should_training_stop = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        step = state.global_step
        self.reporter.enter(Phase.TRAINING)
        self.reporter.beat(step=step)
        self.trainer.end_step()
        control.should_evaluate = self.trainer.evaluation_due(step)
        last = step >= self.trainer.plan.total_steps
        # An evaluated step is saved as well: it may be the best one.
        control.should_save = step % self.reporter.spec.save_steps == 0 or control.should_evaluate or last
        control.should_log = control.should_log or last
        if self.trainer.ending is not None:
            self.reporter.event("stopping_early", f"stopping early at optimiser step {step}: {self.trainer.ending}")
            control.should_save = True
            control.should_training_stop = True
        if self.trainer.exchange.stop:
            self.reporter.event("stopping", f"stopping at optimiser step {step} with a checkpoint")
            control.should_evaluate = False
            control.should_save = True
            control.should_training_stop = True
        self.trainer.take_snapshot(interim=not control.should_save)
