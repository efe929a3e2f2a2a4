"""What transformers and TRL are told; what they are not told is decided by this project itself."""

from __future__ import annotations

import torch
from transformers.integrations import get_reporting_integration_callbacks
from trl import SFTConfig

from trainer.config import SftSections
from trainer.errors import ConfigurationError
from trainer.model import compute_dtype
from trainer.reporting import Reporter


def check_trackers(names: list[str]) -> None:
    """Raises ConfigurationError for a tracker that transformers doesn't know or that isn't installed."""
    try:
        for callback in get_reporting_integration_callbacks(names):
            callback()
    except (ValueError, RuntimeError, ImportError) as error:
        raise ConfigurationError(f"train.report_to: {' '.join(str(error).split())}") from error


def training_arguments(sections: SftSections, reporter: Reporter, total_steps: int, device: torch.device) -> SFTConfig:
    train = sections.train
    cpu = device.type == "cpu"
    bf16 = compute_dtype(sections.model, device) is torch.bfloat16
    return SFTConfig(
        output_dir=str(reporter.paths.attempt(reporter.spec.attempt).root / "trainer"),
        max_steps=total_steps,
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        max_grad_norm=train.max_grad_norm,
        per_device_train_batch_size=train.per_device_train_batch_size,
        gradient_accumulation_steps=train.gradient_accumulation_steps,
        gradient_checkpointing=train.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        optim=train.optim,
        adam_beta1=train.adam_beta1,
        adam_beta2=train.adam_beta2,
        adam_epsilon=train.adam_epsilon,
        seed=train.seed,
        logging_steps=train.logging_steps,
        logging_nan_inf_filter=False,
        report_to=train.report_to or "none",
        bf16=bf16,
        use_cpu=cpu,
        # StepBoundary decides on these, the plan on the order and the length.
        save_strategy="no",
        eval_strategy="no",
        ignore_data_skip=True,
        remove_unused_columns=False,
        packing=False,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        dataloader_pin_memory=not cpu,
        disable_tqdm=True,
        # Looking for unused parameters keeps DDP from regrouping the gradients after an attempt's first step: they are
        # summed in the same order in a resumed attempt.
        ddp_find_unused_parameters=True,
        ddp_broadcast_buffers=False,
    )
