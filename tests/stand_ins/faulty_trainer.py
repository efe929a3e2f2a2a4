"""The real trainer with something going wrong in it.

$MENS_FAULTS is a JSON list of mappings ``{"do": WHAT, "at": STEP, "attempt": N, ...}``; without ``attempt`` a
fault strikes in every attempt, with ``"once": PATH`` only while there is no such file, which it makes. ``at`` is
the 1-based optimiser step in whose course it strikes:

- ``oom``: out of memory in every step from ``at`` on while micro-batch x max_length exceeds ``limit``;
- ``nan``: a NaN in the gradients;
- ``exit``: the process ends at once with exit code ``code``;
- ``die_evaluating``: SIGKILL in the evaluation after step ``at``, before its batch ``batch``; with ``supervisor`` true
  the supervisor is killed first;
- ``save_enospc``: no space left in the middle of a checkpoint's files;
- ``poison_bin``: building a training batch with bin ``bin`` of the plan fails;
- any name of mishaps.py: that happens in the middle of the step.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from mishaps import MISHAPS

import trainer.run
from supervisor.protocol.attempt import SPEC_VARIABLE, read_spec
from trainer.__main__ import main
from trainer.checkpoint import StepState
from trainer.collate import BinCollator
from trainer.sft import SupervisedSFTTrainer

VARIABLE = "MENS_FAULTS"


def faults_now() -> list[dict[str, Any]]:
    attempt = read_spec(Path(os.environ[SPEC_VARIABLE])).attempt
    faults = json.loads(os.environ.get(VARIABLE, "[]"))
    return [fault for fault in faults if fault.get("attempt", attempt) == attempt]


def strikes(fault: dict[str, Any], step: int) -> bool:
    """Is it this fault's step, and has it not struck already? Marks one that strikes once."""
    if step != fault.get("at"):
        return False
    if "once" not in fault:
        return True
    try:
        Path(fault["once"]).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class FaultyTrainer(SupervisedSFTTrainer):
    evaluated = 0

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Any:
        step = self.state.global_step + 1
        train = self.sections.train
        size = train.per_device_train_batch_size * train.max_length
        for fault in faults_now():
            if fault["do"] == "oom" and step >= fault["at"] and size > fault["limit"]:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            if fault["do"] == "exit" and strikes(fault, step):
                os._exit(fault["code"])
            if fault["do"] in MISHAPS and strikes(fault, step):
                MISHAPS[fault["do"]]()
        loss = super().training_step(model, inputs, num_items_in_batch)
        if any(fault["do"] == "nan" and strikes(fault, step) for fault in faults_now()):
            gradient = next(parameter.grad for parameter in model.parameters() if parameter.grad is not None)
            gradient.view(-1)[0] = float("nan")
        return loss

    def _token_losses(self, inputs: dict[str, Any]) -> torch.Tensor:
        step = self.state.global_step
        for fault in faults_now():
            if fault["do"] == "die_evaluating" and step == fault["at"]:
                if self.evaluated == fault["batch"]:
                    if fault["supervisor"]:
                        os.kill(os.getppid(), signal.SIGKILL)
                    os.kill(os.getpid(), signal.SIGKILL)
                self.evaluated += 1
        return super()._token_losses(inputs)

    def _write_trainer_state(self, staged: Path, state: StepState) -> None:
        if any(fault["do"] == "save_enospc" and strikes(fault, self.state.global_step) for fault in faults_now()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(staged / "optimizer.safetensors"))
        super()._write_trainer_state(staged, state)


def poison(index: int) -> None:
    build = BinCollator.__call__

    def call(self: BinCollator, examples: Sequence[dict[str, int]]) -> dict[str, Any]:
        training = self.plan.spec.bins_per_step > 1
        if training and any(example["bin"] == index for example in examples):
            raise IndexError(f"bin {index} cannot be turned into a tensor")
        return build(self, examples)

    BinCollator.__call__ = call  # type: ignore[method-assign]


if __name__ == "__main__":
    # Not faults_now(): a standby is started before its attempt is told.
    for fault in json.loads(os.environ.get(VARIABLE, "[]")):
        if fault["do"] == "poison_bin":
            poison(fault["bin"])
    trainer.run.SupervisedSFTTrainer = FaultyTrainer  # type: ignore[misc]
    sys.exit(main())
