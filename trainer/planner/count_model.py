"""A model that is there already, made known to a count of live bytes."""

from __future__ import annotations

import torch
from bitsandbytes.functional import QuantState
from bitsandbytes.nn import Params4bit

from trainer.planner.live import LiveBytes
from trainer.planner.trace import ADAPTER, WEIGHTS


def count_model(model: torch.nn.Module, live: LiveBytes) -> None:
    """Make tensors known that were there before the counting began."""
    for parameter in model.parameters():
        live.add(parameter.data, ADAPTER if parameter.requires_grad else WEIGHTS)
        if isinstance(parameter, Params4bit) and parameter.quant_state is not None:
            for tensor in _state_tensors(parameter.quant_state):
                live.add(tensor, WEIGHTS)
    for buffer in model.buffers():
        live.add(buffer, WEIGHTS)


def _state_tensors(state: QuantState) -> list[torch.Tensor]:
    found = [state.absmax, state.code, state.offset]
    if state.state2 is not None:
        found += [state.state2.absmax, state.state2.code]
    return [tensor for tensor in found if isinstance(tensor, torch.Tensor)]
