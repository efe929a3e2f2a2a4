"""Supervised fine-tuning on TRL's SFTTrainer, with what this job needs to be exact.

The loop, accumulation, clipping, optimiser and trackers are transformers' and TRL's. Ours: the data
plan as the only order, fp32 adapters, a token-weighted evaluation, non-finite gradients as the end of
the step, staged checkpoints and an exact resume, and a stop at the next step boundary.
"""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import EvalLoopOutput
from trl import SFTTrainer

from supervisor.protocol.heartbeat import Phase
from supervisor.protocol.manifest import Manifest
from trainer import head_loss
from trainer.checkpoint import (
    DataPosition,
    Progress,
    Provenance,
    StepState,
    add_eval_loss,
    load_adapter,
    ranks_of,
    rng_file,
    trim_log_history,
    write_checkpoint,
    write_trainer_state,
)
from trainer.collate import BinCollator
from trainer.config import SftSections
from trainer.data.plan import DataPlan
from trainer.errors import NonFiniteError, StopRequestedError
from trainer.evaluation import Evaluations
from trainer.evaluation_pass import EvaluationPass, computed_by
from trainer.frozen_adapter import frozen_parameters
from trainer.kept_batches import EvaluationKey, KeptBatches
from trainer.loss_spike import LossSpikeGuard, spike_sentence
from trainer.model import trainable_parameters
from trainer.moments import carry_moments
from trainer.pace import Pace, memory_bytes
from trainer.peak_memory import Reached
from trainer.ranks import ALONE, Ranks, StepExchange, bins_of_rank, share_only_gradients
from trainer.reporting import Reporter
from trainer.schedule import lr_factor, warmup_steps
from trainer.snapshots import open_snapshots
from trainer.step_boundary import EvaluationInterruptedError, StepBoundary, StoppedEarlyError
from trainer.step_state import StateCollector, random_state, read_optimiser_state, restore_random_state
from trainer.training_arguments import training_arguments


class SupervisedSFTTrainer(SFTTrainer):  # type: ignore[misc]  # trl ships no types
    """One attempt at a run.

    ``train_bins``/``eval_bins`` are collators over the training and the validation plan, ``sample_bins`` one over some
    training rows to compare the latter with. ``start_step`` optimiser steps are done already; ``resumed`` is the
    manifest of the checkpoint to continue from and ``resume_from`` its folder, both None for a fresh start.
    """

    def __init__(
        self,
        *,
        model: PeftModel,
        tokenizer: PreTrainedTokenizerBase,
        sections: SftSections,
        reporter: Reporter,
        train_bins: BinCollator,
        eval_bins: BinCollator,
        sample_bins: BinCollator,
        evaluations: Evaluations,
        start_step: int,
        provenance: Provenance,
        resume_from: Path | None,
        resumed: Manifest | None,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        self.sections = sections
        self.reporter = reporter
        self.plan: DataPlan = train_bins.plan
        self.rows = train_bins.rows
        self.provenance = provenance
        self.resume_from = resume_from
        self.resumed = resumed
        self.eval_bins = eval_bins
        self.evaluation_pass = EvaluationPass(
            eval_bins,
            sample_bins,
            sections.eval.per_device_eval_batch_size,
            ranks,
            reporter,
            KeptBatches(reporter.paths.kept_batches(ranks.index), reporter.warn),
        )
        self.evaluations = evaluations
        self.start_step = start_step
        self.tokens_done = resumed.tokens_seen if resumed else 0
        self.rows_done = resumed.rows_seen if resumed else 0
        self.label_tokens_done: int | torch.Tensor = 0  # a tensor is left one: reading it would wait for the GPU
        self._step_label_tokens: int | torch.Tensor = 0
        self.ending: str | None = None
        """Why the training ends with the step that is under way, before its last planned one."""
        self.grad_norm_clipped: float | None = None
        self.ranks = ranks
        self.exchange = StepExchange(ranks)
        self.snapshots = open_snapshots(reporter) if ranks.first else None
        self._collector: StateCollector | None = None
        self._rows_fingerprint: str | None = None
        self._loss_spikes = LossSpikeGuard()
        self.pace = Pace(self.tokens_done)
        self.reached = Reached(0, evaluated=False)
        self._step_tokens = 0
        adapter = {name: parameter.data.clone() for name, parameter in trainable_parameters(model).items()}
        # At the last step nothing is left; a data set must not be empty.
        first_bin = min(self.start_step * self.plan.spec.bins_per_step, self.plan.total_bins - 1)
        super().__init__(
            model=model,
            args=training_arguments(sections, reporter, self.plan.total_steps, device),
            train_dataset=Dataset.from_dict({
                "bin": bins_of_rank(
                    first_bin, self.plan.total_bins, sections.train.per_device_train_batch_size, ranks
                )
            }),
            data_collator=train_bins,
            processing_class=tokenizer,
            callbacks=[StepBoundary(self)],
        )
        head_loss.attach(self.model.get_base_model())
        # SFTTrainer casts the adapter of a quantised model to bfloat16; take the fp32 values back.
        for name, parameter in trainable_parameters(self.model).items():
            parameter.data = adapter[name]
        if ranks.size > 1:
            share_only_gradients(self.model)

    # --- order and schedule -------------------------------------------------------------------

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> torch.utils.data.Sampler[int]:
        """In the plan's order: it is shuffled already, and starts at the resumed position."""
        return torch.utils.data.SequentialSampler(train_dataset if train_dataset is not None else self.train_dataset)

    def _move_model_to_device(self, model: torch.nn.Module, device: torch.device) -> None:
        if self.ranks.size == 1:  # a model that is divided among ranks must not be moved as a whole
            super()._move_model_to_device(model, device)

    def get_train_dataloader(self) -> Any:
        if self.ranks.size == 1:
            return super().get_train_dataloader()
        # Not through accelerate, which would deal the batches out once more: these are this rank's own.
        return torch.utils.data.DataLoader(
            self.train_dataset,
            batch_size=self.sections.train.per_device_train_batch_size,
            sampler=self._get_train_sampler(),
            collate_fn=self.data_collator,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        total, train = self.plan.total_steps, self.sections.train
        warmup = warmup_steps(total, train.warmup_ratio)
        self.lr_scheduler: torch.optim.lr_scheduler.LambdaLR = torch.optim.lr_scheduler.LambdaLR(
            optimizer or self.optimizer, lambda step: lr_factor(step, total, warmup, train.lr_scheduler_type)
        )
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Moments and position come from the checkpoint, settings from the configuration.

        The state of an optimiser or schedule carries its settings along; restored whole, it would silently
        undo a change of them that the user has accepted.
        """
        settings = [
            {key: value for key, value in group.items() if key != "params"} for group in self.optimizer.param_groups
        ]
        base_lrs = list(self.lr_scheduler.base_lrs)
        if checkpoint is not None:
            self.optimizer.load_state_dict(read_optimiser_state(Path(checkpoint)))
            self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / "scheduler.pt", weights_only=True))
        factor = self.lr_scheduler.lr_lambdas[0](self.lr_scheduler.last_epoch)
        self.lr_scheduler.base_lrs = base_lrs
        for group, configured, base_lr in zip(self.optimizer.param_groups, settings, base_lrs, strict=True):
            group.update(configured)
            group["lr"] = base_lr * factor
        self.lr_scheduler._last_lr = [group["lr"] for group in self.optimizer.param_groups]
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)  # accelerate may have wrapped it
        if checkpoint is not None and isinstance(optimizer, torch.optim.Optimizer) and carry_moments(optimizer):
            self.reporter.warn(f"the optimiser's moments were carried over to {self.sections.train.optim}")

    # --- the step -----------------------------------------------------------------------------

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Any:
        self.exchange.count(inputs.pop("rows"), inputs.pop("tokens"))
        self._step_tokens = max(self._step_tokens, inputs["input_ids"].numel())
        self.reporter.beat()
        return super().training_step(model, inputs, num_items_in_batch)

    def end_step(self) -> None:
        """Count what all ranks have trained on, and agree on whether to stop."""
        rows, tokens = self.exchange.finish(self.reporter.stop_requested, random_state)
        self.rows_done += rows
        self.tokens_done += tokens
        self.label_tokens_done = self.label_tokens_done + self._step_label_tokens
        self.reached = replace(self.reached, batch_tokens=max(self.reached.batch_tokens, self._step_tokens))

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        """Label tokens of the window over all ranks; gradients are averaged over them, so a rank has its share."""
        items = super()._get_num_items_in_batch(batch_samples, device)
        self._step_label_tokens = items
        return items if self.ranks.size == 1 else items / self.ranks.size

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """Nats summed over the labels of this micro-batch, over those of the whole accumulation window."""
        summed: torch.Tensor = model(**inputs, use_cache=False, summed_loss=True)
        if num_items_in_batch is None:
            raise ValueError("a loss without the window's label tokens would weigh micro-batches, not tokens")
        loss: torch.Tensor = summed / num_items_in_batch
        return loss

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        """The norm before clipping; measures the one after it and refuses a non-finite gradient."""
        norm = super()._get_grad_norm(model, grad_norm)
        value = float(norm)
        if not np.isfinite(value):
            raise NonFiniteError(
                f"the gradient norm is {value} at optimiser step {self.state.global_step + 1}; the step was not taken. "
                "Lower train.learning_rate or train.max_grad_norm, or look at the rows of this step."
            )
        gradients = [p.grad for p in trainable_parameters(model).values() if p.grad is not None]
        self.grad_norm_clipped = float(torch.nn.utils.get_total_norm(gradients))
        return norm

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add what we measure, drop TRL's token count (it counts padding), report it as progress."""
        training = "loss" in logs
        if training:
            logs["grad_norm_clipped"] = self.grad_norm_clipped if self.grad_norm_clipped is not None else float("nan")
        super().log(logs, start_time)
        logs.pop("num_tokens", None)
        if training:
            self._report_progress(logs)

    def _report_progress(self, logs: dict[str, float]) -> None:
        step = self.state.global_step
        spike = self._loss_spikes.spike(logs["loss"])
        if spike is not None:
            self.reporter.event("alarm", spike_sentence(step, logs["loss"], spike), what="loss_spike")
        rate = self.pace.tokens_per_second(self.tokens_done)
        left = self.plan.planned_tokens - self.plan.tokens_before_step(step)
        self.reporter.event(
            "progress",
            loss=logs["loss"],
            learning_rate=logs["learning_rate"],
            grad_norm=logs.get("grad_norm"),
            grad_norm_clipped=logs["grad_norm_clipped"],
            tokens_per_second=round(rate, 1),
            eta_seconds=round(left / rate) if rate else None,
            tokens_seen=self.tokens_done,
            rows_seen=self.rows_done,
            epoch=self.epoch_at(step),
            memory_bytes=memory_bytes(self.args.device),
            planned_steps=self.plan.total_steps,
        )

    def remember_losses(self) -> None:
        """What the loss-spike guard had seen before this attempt, so that resuming does not blind it."""
        self._loss_spikes = LossSpikeGuard(entry["loss"] for entry in self.state.log_history if "loss" in entry)

    # --- evaluation ---------------------------------------------------------------------------

    def get_eval_dataloader(self, eval_dataset: Any = None) -> torch.utils.data.DataLoader[Any]:
        return self.evaluation_pass.batches(self.eval_bins)

    def evaluation_loop(
        self,
        dataloader: torch.utils.data.DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Nats per label token over the whole validation set: sum over sum, not a mean of batch means."""
        started = time.monotonic()
        with self.reporter.within(Phase.EVALUATING):
            self.model.eval()
            found = self.evaluation_pass.run(self._evaluation_key(), self._token_losses)
        self.reached = replace(self.reached, evaluated=True)
        self.pace.leave_out(started)
        self.evaluations.take(self.state.global_step, found)
        losses = found.validation
        metrics = {
            f"{metric_key_prefix}_loss": losses.loss,
            f"{metric_key_prefix}_label_tokens": float(losses.label_tokens),
        }
        return EvalLoopOutput(predictions=np.empty(0), label_ids=None, metrics=metrics, num_samples=len(losses.tokens))

    def _token_losses(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Of each labelled position of a batch, without dropout."""
        prepared = self._prepare_inputs(dict(inputs))
        with torch.no_grad(), self.compute_loss_context_manager():
            return self.compute_loss(self.model, {**prepared, "per_token": True}, num_items_in_batch=1)

    def _evaluation_key(self) -> EvaluationKey:
        model = self.accelerator.unwrap_model(self.model)
        frozen = {f"frozen {name}": each for name, each in frozen_parameters(model).items()}
        adapter = {**trainable_parameters(model), **frozen}
        return self.evaluation_pass.key(
            self.provenance.lineage, self.state.global_step, adapter, computed_by(self.provenance, self.args.device)
        )

    def evaluate_first(self) -> None:
        """An evaluation before any step. What was resumed from gets its result: it may be the best checkpoint."""
        try:
            self.evaluate()
        except EvaluationInterruptedError:
            raise StopRequestedError("asked to stop during the first evaluation; nothing new to save") from None
        if self.resume_from is not None and self.ranks.first:
            add_eval_loss(self.resume_from, self.evaluations.standing.loss, self.evaluations.standing.stderr)

    def only_evaluate(self) -> None:
        """Make up for the evaluation after the last step; there is nothing left to train."""
        self.state.global_step = self.start_step
        self.accelerator.prepare_model(self.model, evaluation_mode=True)  # as train() prepares it: autocast
        self._load_from_checkpoint(str(self.resume_from))
        self.reporter.beat(step=self.start_step, planned_steps=self.start_step)
        self.evaluate_first()

    def evaluation_due(self, step: int) -> bool:
        """Whether an evaluation belongs to this step and has not been done yet."""
        every = self.sections.eval.eval_steps or self.reporter.spec.save_steps
        due = self.sections.eval.eval_on_start if step == 0 else step % every == 0 or step >= self.plan.total_steps
        return due and self.evaluations.standing.step != step

    # --- checkpoints --------------------------------------------------------------------------

    def train(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().train(*args, **kwargs)
        except StoppedEarlyError:
            return None
        finally:
            if self.snapshots is not None:
                self.snapshots.close()

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        try:
            super()._maybe_log_save_evaluate(*args, **kwargs)
        except EvaluationInterruptedError:
            self._save_checkpoint(self.model, None)
            self.control.should_training_stop = True

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        if not self.ranks.first:
            return
        step = self.state.global_step
        final = self.reporter.paths.checkpoint(step, self.reporter.spec.lineage)
        if final.exists():
            # The one this attempt resumed from: nothing has been trained since.
            return
        started = time.monotonic()
        with self.reporter.within(Phase.SAVING):
            write_checkpoint(final, self.step_state(), self.provenance, self._write_trainer_state)
        size = sum(file.stat().st_size for file in final.iterdir())
        self.reporter.event(
            "checkpoint", path=str(final), seconds=round(self.pace.leave_out(started), 3), bytes=size,
            tokens_seen=self.tokens_done,
        )  # fmt: skip

    def _write_trainer_state(self, staged: Path, state: StepState) -> None:
        self.reporter.beat()  # a save is as long as its files are large
        write_trainer_state(staged, state)
        self.reporter.beat()

    def step_state(self) -> StepState:
        """Everything that a checkpoint of the present step holds; its tensors are the live ones."""
        if self._collector is None:
            model = self.accelerator.unwrap_model(self.model)
            self._collector = StateCollector(model, self.optimizer, self.lr_scheduler)
        self.state.log_history = trim_log_history(self.state.log_history)
        step = self.state.global_step
        position = functools.partial(self.position_at, step)
        return self._collector.collect(
            self.state, self.progress(), position, self.evaluations.encoded, self.exchange.rng_of_others
        )

    def take_snapshot(self, *, interim: bool) -> None:
        """Hand the present step to the snapshots. ``interim``: no save is due at it."""
        if self.snapshots is not None:
            self.snapshots.take(self.step_state, self.provenance, interim)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        load_adapter(self.model if model is None else model, Path(resume_from_checkpoint))

    def _load_rng_state(self, checkpoint: str) -> None:
        if self.ranks.size == 1:
            super()._load_rng_state(checkpoint)
            return
        recorded = ranks_of(self.resumed) if self.resumed is not None else 1
        if self.ranks.size > recorded:
            self.reporter.event(
                "accepted_change",
                f"the checkpoint has the random state of {recorded} of {self.ranks.size} ranks; the others draw their "
                "dropout masks from the seed",
            )
        if self.ranks.index < recorded:
            restore_random_state(Path(checkpoint) / rng_file(self.ranks.index))

    def epoch_at(self, step: int) -> float:
        """Passes over the training rows done after ``step`` optimiser steps."""
        return self.plan.rows_before_step(step) / len(self.rows)

    def position_at(self, step: int) -> DataPosition:
        if self._rows_fingerprint is None:
            self._rows_fingerprint = self.rows.fingerprint()
        return DataPosition(self.plan.spec.segments, step, self.plan.fingerprint(self._rows_fingerprint, step))

    def progress(self) -> Progress:
        step, standing = self.state.global_step, self.evaluations.standing
        evaluated = standing.step == step
        return Progress(
            step=step,
            planned_steps=self.plan.total_steps,
            tokens_seen=self.tokens_done,
            rows_seen=self.rows_done,
            epoch=self.epoch_at(step),
            eval_loss=standing.loss if evaluated else None,
            eval_loss_stderr=standing.stderr if evaluated else None,
        )
