"""Whose fault a GPU without memory is: ours, another process's, or the size of the model. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from supervisor.diagnosis.kinds import FailureKind

_UNITS = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "bytes": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9}
_SIZE = r"([\d.]+) (bytes|[KMGT]i?B)"
FOREIGN_SHARE = 0.25
"""Of the card, held by others, from which on they are to blame when we hold less than twice as much."""


@dataclass(frozen=True)
class GpuMemory:
    """What an out-of-memory message says, in bytes; None where it doesn't."""

    asked: float | None
    total: float | None
    free: float | None
    own: float | None
    """Held by this process, at least."""

    @property
    def foreign(self) -> float | None:
        """Held by other processes."""
        if self.total is None or self.free is None or self.own is None:
            return None
        return max(self.total - self.free - self.own, 0.0)


def read_gpu_memory(message: str) -> GpuMemory:
    """The figures of torch's message, in the forms of its versions 1.x and 2.x."""
    used = _sum(
        _size(message, rf"Of the allocated memory {_SIZE} is allocated"),
        _size(message, rf"and {_SIZE} is reserved by PyTorch"),
    )
    return GpuMemory(
        asked=_size(message, rf"Tried to allocate {_SIZE}"),
        total=_size(message, rf"total capaci?ty of {_SIZE}", rf"{_SIZE} total capacity"),
        free=_size(message, rf"of which {_SIZE} is free", rf"{_SIZE} free"),
        own=_largest(
            _size(message, rf"this process has {_SIZE} memory in use"),
            used,
            _size(message, rf"{_SIZE} reserved in total by PyTorch"),
            _size(message, rf"{_SIZE} already allocated"),
        ),
    )


def is_foreign(memory: GpuMemory) -> bool:
    """Do others hold so much that a smaller batch of ours is not the answer?"""
    if memory.foreign is None or memory.total is None or memory.own is None or memory.total <= 0:
        return False
    overhead = 1.2 * 2**30  # a context and libraries; old messages leave them out of our share
    others = memory.foreign - overhead
    return others >= FOREIGN_SHARE * memory.total and memory.own <= 2 * others


_LOADING = re.compile(
    r"in (?:from_pretrained|_load_pretrained_model|_load_state_dict_into\w*|load_state_dict\w*"
    r"|load_model\w*|load_weights|load_checkpoint\w*"
    r"|set_module_tensor_to_device|dispatch_model|load_checkpoint_in_model|_load_from_checkpoint"
    r"|_load_optimizer_and_scheduler|load_adapter"
    r"|load_pretrained_model|create_model|build_model|init_model|setup_model|get_peft_model"
    r"|prepare_model_for_kbit_training|create_quantized_param"
    r"|initialize_model|initialize|_prepare_deepspeed|prepare_model|_prepare_fsdp\w*|_configure_distributed_model"
    r"|_wrap_model|fully_shard|materialize_\w+|caching_allocator_warmup|_move_model_to_device"
    r"|quantize\w*"
    r"|_?convert_param\w*|load_\w*base\w*|merge_and_unload"
    r"|_init_weights|deepspeed_init|_initialize_params|set_initial_params|load_quantized\w*|model_init)\b"
    r"|\.from_pretrained\(|(?:model|module|self)\s*=\s*model\.(?:to|cuda)\(|load_model\("
    r"|model\.(?:to|cuda)\((?:[\"']cuda|device|args\.device|0|\))"
)
_WORKING = re.compile(
    r"in (?:training_step|train_step|backward|_engine_run_backward|compute_loss|generate"
    r"|evaluation_loop|evaluate|prediction_step|optimizer_step"
    r"|execute_model|profile_run|_dummy_run|determine_available_memory|capture_model|training_loop"
    r"|train_one_epoch|run_step|sample|decode)\b|in step\b"
)


def struck_while_loading(context: str) -> bool:
    """Does the traceback stand in the loading of weights, and not in a step, an evaluation or a generation?"""
    return bool(_LOADING.search(context)) and not _WORKING.search(context)


def refine(message: str, context: str, *, steps_before: bool, loading: bool) -> FailureKind:
    """Which of the three kinds of full GPU memory. ``loading``: the log says that weights were being loaded."""
    if is_foreign(read_gpu_memory(message)):
        return FailureKind.CUDA_OOM_FOREIGN
    if struck_while_loading(context) and not steps_before:
        return FailureKind.OOM_AT_LOAD
    if loading and not steps_before and not _WORKING.search(context):
        return FailureKind.OOM_AT_LOAD
    return FailureKind.CUDA_OOM


def _size(message: str, *patterns: str) -> float | None:
    for pattern in patterns:
        if found := re.search(pattern, message):
            try:
                return float(found[1]) * _UNITS.get(found[2], 2.0**30)
            except ValueError:
                return None
    return None


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None else one + (other or 0.0)


def _largest(*sizes: float | None) -> float | None:
    known = [size for size in sizes if size is not None]
    return max(known) if known else None
