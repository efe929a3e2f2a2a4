"""The live bytes of a real training on real tensors: what a prediction is held against where there is no GPU to ask."""

from __future__ import annotations

from typing import Any

import torch
from bitsandbytes.functional import QuantState
from bitsandbytes.nn import Params4bit

from trainer.planner.live import LiveBytes
from trainer.planner.trace import ADAPTER, WEIGHTS
from trainer.sft import SupervisedSFTTrainer


class CountingTrainer(SupervisedSFTTrainer):
    """The real trainer; ``live`` knows the peak of the whole of its ``train()``, evaluations and saves included.

    Each operator passes through Python once more, so it is slower; what it computes is the same.
    """

    live: LiveBytes

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self.live = LiveBytes(self.model.get_base_model().config.get_text_config().vocab_size)
        count_model(self.model, self.live)
        with self.live, self.live.phase("training"):
            return super().train(*args, **kwargs)

    @property
    def peak_bytes(self) -> int:
        return self.live.phases["training"].total


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
