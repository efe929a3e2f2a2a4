"""From bins of the data plan to tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trainer.data.plan import DataPlan
from trainer.data.token_rows import TokenRows
from trainer.head_loss import IGNORED
from trainer.ranks import NOTHING

PAD_MULTIPLE = 8


@dataclass(frozen=True)
class BinCollator:
    """Turns ``[{"bin": i}, ...]`` into one micro-batch.

    Output, with B bins and T tokens of the longest one (rounded up to a multiple of 8):
    ``input_ids``, ``labels``, ``position_ids``: int64 [B, T]; ``rows``, ``tokens``: what they hold,
    padding aside. There is no attention mask on purpose: positions that restart at 0 are what tells
    the attention that documents in one bin must not see each other; a mask of ones would hide them.
    Padding forms a document of its own; so does a bin that is :data:`NOTHING`. ``flatten`` puts all bins into one
    sequence [1, sum of lengths], which the variable-length flash kernels want.
    """

    rows: TokenRows
    plan: DataPlan
    pad_token_id: int
    flatten: bool = False

    def __call__(self, examples: Sequence[dict[str, int]]) -> dict[str, Any]:
        bins = [self._bin(int(example["bin"])) for example in examples]
        rows = sum(row_count for _, row_count in bins)
        tokens = sum(arrays.shape[1] for arrays, _ in bins)
        if self.flatten and tokens:
            stacked = np.concatenate([arrays for arrays, _ in bins], axis=1)[:, None, :]
        else:
            width = -(-max(1, *(arrays.shape[1] for arrays, _ in bins)) // PAD_MULTIPLE) * PAD_MULTIPLE
            stacked = np.stack([self._padded(arrays, width) for arrays, _ in bins], axis=1)
        tensors = torch.from_numpy(stacked)
        return {
            "input_ids": tensors[0],
            "labels": tensors[1],
            "position_ids": tensors[2],
            "rows": rows,
            "tokens": tokens,
        }

    def _bin(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        """int64 [3, T] of ids, labels and positions of one bin, and its number of rows."""
        if index == NOTHING:
            return np.zeros((3, 0), np.int64), 0
        max_length = self.plan.max_length_of_bin(index)
        row_ids = self.plan.bin(index)
        parts = []
        for row in row_ids:
            fitted = self.rows.fitted(int(row), max_length)
            ids = fitted.ids
            labels = np.where(fitted.labels, ids, IGNORED)
            # The token before the first one belongs to another document and must not predict it.
            labels[0] = IGNORED
            parts.append(np.stack([ids.astype(np.int64), labels.astype(np.int64), np.arange(len(ids), dtype=np.int64)]))
        return np.concatenate(parts, axis=1), len(row_ids)

    def _padded(self, arrays: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
        missing = width - arrays.shape[1]
        padding = np.stack(
            [
                np.full(missing, self.pad_token_id, dtype=np.int64),
                np.full(missing, IGNORED, dtype=np.int64),
                np.arange(missing, dtype=np.int64),
            ]
        )
        return np.concatenate([arrays, padding], axis=1)
