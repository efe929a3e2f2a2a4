"""Adam's moments: across a change of ``train.optim`` none of them starts afresh unseen; on purpose all of them do."""

from __future__ import annotations

from typing import Any

import torch
from bitsandbytes import functional
from bitsandbytes.optim.optimizer import Optimizer2State

BLOCK = 256
"""Values that share one scale in bitsandbytes' 8-bit moments."""


ZEROED = frozenset({"exp_avg", "exp_avg_sq", "state1", "state2", "absmax1", "absmax2"})
KEPT = frozenset({"qmap1", "qmap2"})
"""The code books of 8-bit moments, which all parameters share."""


@torch.no_grad()
def reset_moments(optimizer: torch.optim.Optimizer) -> None:
    """As before the first step, with the very tensors that there are: snapshots and paged memory go on with them.

    8-bit moments are codes with a scale for each block; bitsandbytes begins with zeros in both. Raises ValueError for
    an optimiser that keeps anything else.
    """
    for state in optimizer.state.values():
        for name, value in state.items():
            if name == "step":
                state[name] = value.zero_() if isinstance(value, torch.Tensor) else 0
            elif name in ZEROED and getattr(value, "is_paged", False):
                functional.fill(value, 0)  # the GPU's, wherever its pages lie just now
            elif name in ZEROED:
                value.zero_()
            elif name not in KEPT:
                raise ValueError(f"the state {name} of {type(optimizer).__name__} cannot be set back")


def carry_moments(optimizer: torch.optim.Optimizer) -> int:
    """Turn loaded moments into the form that ``optimizer`` works with; returns for how many parameters.

    Loading puts another optimiser's state under the parameters as it was saved. To 8 bits it is rounded (small
    tensors stay fp32, as bitsandbytes has them), back from 8 bits it is as exact as it was. Call it after
    ``load_state_dict``, with the settings of the groups in place.
    """
    eight_bit = isinstance(optimizer, Optimizer2State)
    foreign = "exp_avg" if eight_bit else "state1"
    carried = 0
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            saved = dict(optimizer.state.get(parameter, {}))
            saved.update(saved.pop(Optimizer2State._FSDP_WRAPPED_QUANT_STATE_KEY, {}))
            if foreign not in saved:
                continue
            optimizer.state.pop(parameter)
            if eight_bit:
                _to_bitsandbytes(optimizer, group, parameter, group_index, index, saved)
            else:
                optimizer.state[parameter] = _to_torch(parameter, saved)
            carried += 1
    return carried


def _to_bitsandbytes(
    optimizer: Any, group: dict[str, Any], parameter: torch.Tensor, group_index: int, index: int, saved: dict[str, Any]
) -> None:
    optimizer.init_state(group, parameter, group_index, index)
    state = optimizer.state[parameter]
    state["step"] = int(saved["step"])
    for number, name in ((1, "exp_avg"), (2, "exp_avg_sq")):
        moment = saved[name].to(parameter.device, torch.float32)
        kept = state[f"state{number}"]
        if kept.dtype != torch.uint8:
            kept.copy_(moment)
            continue
        rounded, scales = functional.quantize_blockwise(moment, code=state[f"qmap{number}"], blocksize=BLOCK)
        kept.copy_(rounded.view_as(kept))
        state[f"absmax{number}"].copy_(scales.absmax)


def _to_torch(parameter: torch.Tensor, saved: dict[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = {"step": torch.tensor(float(saved["step"]))}
    for number, name in ((1, "exp_avg"), (2, "exp_avg_sq")):
        kept = saved[f"state{number}"].to(parameter.device)
        if f"absmax{number}" in saved:  # 8-bit codes, which loading has turned into as many floats
            kept = functional.dequantize_blockwise(
                kept.to(torch.uint8),
                absmax=saved[f"absmax{number}"].to(parameter.device),
                code=saved[f"qmap{number}"].to(parameter.device),
                blocksize=BLOCK,
            )
        state[name] = kept.to(torch.float32).view_as(parameter).clone()
    return state
