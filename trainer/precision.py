"""What is computed in float32 although the model is held in bfloat16.

Products, activations and what is kept for the backward pass are bfloat16: the model's weights are, and the training
step runs under autocast, which also brings the adapter's fp32 weights into the products. Softmax is float32 inside the
attention kernels, the loss in head_loss.py, the adapter and its moments everywhere. What is left are the norms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_STATISTICS = frozenset({
    "mean", "var", "var_mean", "std", "sum", "pow", "rsqrt", "linalg_vector_norm", "native_layer_norm",
    "native_group_norm", "rms_norm", "_fused_rms_norm",
})  # fmt: skip
"""Operators that a norm takes its statistics with, or that are the whole of one."""
_WIDE = (torch.float32, torch.float64)
PROBED_WIDTH = 64
"""Of the input for a norm that has no weights to tell its own."""


class _Narrow(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it without types
    """Notices statistics of numbers narrower than float32."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in _STATISTICS:
            tensors = [value for value in args if isinstance(value, torch.Tensor) and value.is_floating_point()]
            self.found = self.found or any(tensor.dtype not in _WIDE for tensor in tensors)
        return func(*args, **(kwargs or {}))


def norms(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """The layers that normalise: those of torch and whatever calls itself so."""
    for name, module in model.named_modules():
        if "norm" in type(module).__name__.lower() and not any(module.children()):
            yield name, module


def narrow(norm: torch.nn.Module, dtype: torch.dtype) -> bool | None:
    """Does it take its statistics of an input of ``dtype`` in less than float32? None when it wants other inputs."""
    weight = next(iter(norm.parameters()), None)
    shape = tuple(weight.shape) if weight is not None else tuple(getattr(norm, "normalized_shape", (PROBED_WIDTH,)))
    device = weight.device if weight is not None else None
    with torch.no_grad(), _Narrow() as seen:
        try:
            norm(torch.ones((1, 1, *shape), dtype=dtype, device=device))
        except (TypeError, AttributeError, RuntimeError):
            return None
    return bool(seen.found)


def keep_norms_in_float32(model: torch.nn.Module, dtype: torch.dtype) -> list[str]:
    """Make every norm that would compute in ``dtype`` do so in float32; returns their names.

    The RMSNorms of transformers convert inside and are left alone, with weights as narrow as they are. Those that
    don't, LayerNorms above all, get float32 weights; they still take and return ``dtype``. Nothing changes in a float32
    model.
    """
    if dtype in _WIDE:
        return []
    verdicts: dict[type, bool | None] = {}
    changed = []
    for name, module in norms(model):
        kind = type(module)
        if kind not in verdicts:
            verdicts[kind] = narrow(module, dtype)
        if verdicts[kind]:
            _compute_in_float32(module)
            changed.append(name)
    return changed


def _compute_in_float32(norm: torch.nn.Module) -> None:
    norm.float()
    original = norm.forward

    def forward(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        wide: torch.Tensor = original(hidden.float(), *args, **kwargs)
        return wide.to(hidden.dtype)

    norm.forward = forward


def inputs_stay_narrow(model: torch.nn.Module) -> None:
    """Keep PEFT from widening the input of every adapted layer to the adapter's float32 first.

    Autocast narrows it again at once. bitsandbytes' layers on a GPU don't do it; this makes all others alike.
    """
    for module in model.modules():
        if hasattr(module, "cast_input_dtype_enabled"):
            module.cast_input_dtype_enabled = False  # type: ignore[assignment]  # an attribute like any other
