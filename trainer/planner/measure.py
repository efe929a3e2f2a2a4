"""The live bytes of a real training on real tensors: what a prediction is held against where there is no GPU to ask."""

from __future__ import annotations

from typing import Any

from trainer.planner.count_model import count_model
from trainer.planner.live import LiveBytes
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
