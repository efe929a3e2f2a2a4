"""The box's trainer in a federation: an ordinary training whose steps belong to rounds.

Between two steps it takes the newest task from its mailbox, begins from that broadcast with fresh moments and a short
warm-up, trains for the task's seconds, hands in what it has, and waits. All else is as in any training: supervised,
snapshotted, resumed. One that is killed in the middle of a round begins that round anew. Told that the federation is
over, it ends as completed, with a checkpoint.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trainer.errors import CheckpointIncompatibleError, ConfigurationError
from trainer.federated.common import Common, common, differences
from trainer.federated.mailbox import Done, Mailbox, Task
from trainer.federated.packed import Flat, Layout, digest, layout_of, named, of_rank, pack, padded, parted
from trainer.frozen_adapter import put_frozen
from trainer.moments import reset_moments

if TYPE_CHECKING:
    from trainer.sft import SupervisedSFTTrainer

POLL_SECONDS = 0.5


class FederatedRounds(TrainerCallback):  # type: ignore[misc]
    """Raises ConfigurationError for a training in several processes: each would take its own way through the rounds."""

    def __init__(self, trainer: SupervisedSFTTrainer, mailbox: Mailbox) -> None:
        if trainer.ranks.size > 1:
            raise ConfigurationError(
                "federated: a box takes part with one process, and launch.processes says more. Set it to 1; further "
                "cards of this box can take part as nodes of their own."
            )
        self.trainer = trainer
        self.reporter = trainer.reporter
        self.mailbox = mailbox
        self._task: Task | None = None
        self._began = 0.0
        self._before = Counted(0, 0, 0)
        self._first_step = 0

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        newest = self.mailbox.task()
        if newest is not None and newest.over:
            self._leave(newest)
            return
        if self._task is not None:
            if newest is not None and newest != self._task:
                self.reporter.event("federated", f"round {self._task.round} is left for round {newest.round}")
                self._task = None
            elif time.monotonic() - self._began >= self._task.train_seconds and state.global_step > self._first_step:
                self._hand_in(self._task, state.global_step)
                self._task = None
        if self._task is None:
            self._task = self._next_task()
            if self._task is not None and self._task.over:
                self._leave(self._task)
                return
            if self._task is not None:
                self._begin(self._task, state.global_step)
        self._warm_up(state.global_step)

    def _next_task(self) -> Task | None:
        """Waits for it; None when the training is asked to stop meanwhile."""
        self.reporter.event("federated", "waiting for a round")
        while not self.reporter.stop_requested:
            task = self.mailbox.task()
            if task is not None and (task.over or self.mailbox.done(task.round, task.broadcast) is None):
                return task
            self.reporter.beat()
            time.sleep(POLL_SECONDS)
        return None

    def _leave(self, task: Task) -> None:
        """The step that is under way is the last, and changes nothing."""
        self._task = None
        self.trainer.ending = f"the federation is over after {task.round} rounds"
        for group in self.trainer.optimizer.param_groups:
            group["lr"] = 0.0

    def _begin(self, task: Task, step: int) -> None:
        trainer = self.trainer
        if trainer.snapshots is not None:
            trainer.snapshots.wait_for_copy()
        model = trainer.accelerator.unwrap_model(trainer.model)
        ours = layout_of(_adapter(model))
        if ours != task.layout:
            raise CheckpointIncompatibleError(
                f"the federation's adapter has rank {task.layout.rank} and {len(task.layout.layers)} layers, this "
                f"training's rank {ours.rank} and {len(ours.layers)}. Use the federation's base and model.lora."
            )
        here = self._common()
        if task.common is None or task.common != here:
            wrong = differences(task.common, here) if task.common is not None else "it does not say how"
            raise CheckpointIncompatibleError(
                f"this training is not set up as the federation is ({wrong}), so its adapter would be for another "
                "model or for other prompts. Use the federation's model.base, model.revision, model.quantization, "
                "model.lora, model.chat_template, model.chat_template_kwargs and data.system_prompt_file."
            )
        adapter, frozen_layout, frozen = parted(task.layout, self.mailbox.broadcast(task))
        set_peft_model_state_dict(model, _tensors(task.layout, adapter))
        if task.frozen_room:
            room = of_rank(task.layout, task.frozen_room)
            put_frozen(model, _tensors(room, padded(frozen_layout, frozen, room.rank)))
        optimizer: Any = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # accelerate may have wrapped it
        reset_moments(optimizer)
        self._began = time.monotonic()
        self._before = counted(trainer)
        self._first_step = step
        self.reporter.event("federated", f"round {task.round} begins, {task.train_seconds} seconds", round=task.round)

    def _common(self) -> Common:
        found = self.trainer.provenance
        revision = found.identity["base"].rpartition("@")[2]
        return common(self.trainer.sections.model, revision, str(found.template["template_hash"]))

    def _hand_in(self, task: Task, step: int) -> None:
        flat = pack(task.layout, _adapter(self.trainer.accelerator.unwrap_model(self.trainer.model)))
        seconds = time.monotonic() - self._began
        labels, tokens, rows = (now - before for now, before in zip(counted(self.trainer), self._before, strict=True))
        steps = step - self._first_step
        done = Done(task.round, task.broadcast, digest(flat), labels, tokens, steps, round(seconds, 3), rows)
        self.mailbox.put_done(done, flat)
        self.reporter.event(
            "federated", f"round {task.round} is done: {steps} steps, {labels} label tokens in {seconds:.0f} seconds",
            round=task.round, steps=steps, label_tokens=labels,
        )  # fmt: skip

    def _warm_up(self, step: int) -> None:
        if self._task is None or self._task.warmup_steps == 0:
            return
        share = min(1.0, (step - self._first_step + 1) / self._task.warmup_steps)
        scheduled = self.trainer.lr_scheduler.get_last_lr()
        for group, rate in zip(self.trainer.optimizer.param_groups, scheduled, strict=True):
            group["lr"] = rate * share


class Counted(NamedTuple):
    """What a trainer has trained on since it began."""

    label_tokens: int
    tokens: int
    rows: int


def counted(trainer: SupervisedSFTTrainer) -> Counted:
    return Counted(int(trainer.label_tokens_done), trainer.tokens_done, trainer.rows_done)


def _tensors(layout: Layout, flat: Flat) -> dict[str, torch.Tensor]:
    """Copies, under the names of adapter_model.safetensors."""
    return {name: torch.from_numpy(array.copy()) for name, array in named(layout, flat).items()}


def _adapter(model: torch.nn.Module) -> dict[str, Any]:
    """Copies, under the names of adapter_model.safetensors."""
    tensors = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: tensor.detach().float().cpu().numpy().copy() for name, tensor in tensors.items()}
