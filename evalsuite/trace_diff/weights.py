"""The weights that a linear layer works with, whatever holds them, and what they would be in a coarser form."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import bitsandbytes.functional
import torch
from bitsandbytes.nn import Linear4bit
from peft.tuners.lora import LoraLayer

_AT_ONCE = 1 << 22
"""Weights that are widened at once."""
_BLOCK_ROWS = 64
"""NF4 quantises stretches of 64 weights: any 64 rows are whole stretches."""


def is_linear(module: torch.nn.Module) -> bool:
    base = module.base_layer if isinstance(module, LoraLayer) else module
    return isinstance(base, torch.nn.Linear)


def coarse_output(module: torch.nn.Module, inputs: torch.Tensor, noise: float, nf4: bool, seed: str) -> torch.Tensor:
    """What a linear layer would make of ``inputs`` with weights quantised (if ``nf4``), then inexact by ``noise``."""
    wide = inputs.float()
    draw = generator(seed, wide.device)
    parts = []
    for weight in _effective(module):
        coarse = _through_nf4(weight) if nf4 else weight
        parts.append(torch.nn.functional.linear(wide, inexact(coarse, noise, draw)))
    base = module.base_layer if isinstance(module, LoraLayer) else module
    assert isinstance(base, torch.nn.Linear)
    output = torch.cat(parts, dim=-1)
    return output if base.bias is None else output + base.bias.float()


def inexact(tensor: torch.Tensor, noise: float, draw: torch.Generator) -> torch.Tensor:
    """Each number off by up to ``noise`` of itself, at random."""
    off = torch.rand(tensor.shape, generator=draw, device=tensor.device, dtype=torch.float32)
    return tensor.float() * (1 + noise * (2 * off - 1))


def generator(seed: str, device: torch.device) -> torch.Generator:
    """Numbers that are the same in every run."""
    return torch.Generator(device=device).manual_seed(zlib.crc32(seed.encode()))


def _effective(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Its weights with all adapters on them, a number of rows at a time, in float32."""
    base = module.base_layer if isinstance(module, LoraLayer) else module
    assert isinstance(base, torch.nn.Linear)
    weight: torch.Tensor = base.weight
    if isinstance(base, Linear4bit):
        weight = bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state)  # type: ignore[attr-defined]
    deltas: list[tuple[torch.Tensor, torch.Tensor, float]] = []
    if isinstance(module, LoraLayer) and not module.merged:
        deltas = [
            (module.lora_A[name].weight, module.lora_B[name].weight, module.scaling[name])
            for name in module.active_adapters
            if name in module.lora_A
        ]
    each = max(_BLOCK_ROWS, _AT_ONCE // max(1, weight.shape[1]) // _BLOCK_ROWS * _BLOCK_ROWS)
    for start in range(0, weight.shape[0], each):
        rows = weight[start : start + each].float()
        for down, up, scaling in deltas:
            rows = rows + scaling * (up[start : start + each].float() @ down.float())
        yield rows


def _through_nf4(weight: torch.Tensor) -> torch.Tensor:
    packed, state = bitsandbytes.functional.quantize_4bit(weight.contiguous(), blocksize=64, quant_type="nf4")
    coarse: torch.Tensor = bitsandbytes.functional.dequantize_4bit(packed, state)
    return coarse
