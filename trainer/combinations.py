"""Settings that are fine by themselves and not together. Free of torch."""

from __future__ import annotations

from supervisor.jobs import Problem
from trainer.config import SftSections

PAGED = "paged_adamw_8bit"


def hardware_problems(sections: SftSections) -> list[Problem]:
    """What the device or the compute type cannot do."""
    problems = []
    if sections.device == "cpu" and sections.train.optim == PAGED:
        message = "train.optim: bitsandbytes has no paged memory on the CPU and would quietly take adamw_8bit"
        problems.append(Problem("train.optim", message, "Say adamw_8bit, or adamw_torch."))
    if sections.model.attn_implementation == "flash_attention_2":
        if sections.device == "cpu":
            message = "model.attn_implementation: flash_attention_2 has no kernels for the CPU"
            problems.append(Problem("model.attn_implementation", message, "Say sdpa."))
        if sections.model.dtype == "float32":
            message = "model.attn_implementation: flash_attention_2 has no kernels for float32"
            problems.append(Problem("model.attn_implementation", message, "Say sdpa, or model.dtype: bfloat16."))
    return problems


def launch_problems(sections: SftSections, processes: int, strategy: str) -> list[Problem]:
    """What does not go together with several processes, or with the way in which they share the work."""
    if strategy != "fsdp" or processes > 1:
        return []
    message = "launch.strategy: fsdp divides the model among processes, and there is one"
    return [Problem("launch.strategy", message, "Set launch.processes to the number of GPUs, or say ddp.")]


def federated_problems(sections: SftSections) -> list[Problem]:
    """What has no meaning in the rounds of a federation."""
    train = sections.train
    if sections.federated is None or (train.lr_scheduler_type == "constant" and train.warmup_ratio == 0):
        return []
    message = (
        f"train.lr_scheduler_type is {train.lr_scheduler_type} and train.warmup_ratio {train.warmup_ratio:g}: both are "
        "meant for train.max_steps, but in a federation the rounds say how long is trained, at the same rate in all of "
        "them, each with a warm-up of its own (rounds.warmup_steps in the federation's file)"
    )
    return [Problem("train", message, "Say lr_scheduler_type: constant and warmup_ratio: 0.")]
