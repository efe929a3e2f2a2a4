"""A model that continues many texts at once, each with arithmetic of its own.

Every forward pass has one shape: the next token of as many texts as there are rows, idle rows included. All linear
layers then do the same sums whoever else is there, and attention, which is where texts of different lengths would need
padding, is computed for each text by itself, on the keys and values that are its own. So what a text's next token
is depends on the text alone. A prompt is read in a pass of its own, once for all samples that begin with it.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

ATTENTION = "mens_rowwise"
KEPT_PROMPTS = 4
"""Prompts whose keys and values are kept; samples of a task follow each other."""
IDLE_TOKEN = 0

Memory = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Keys and values by layer, each (1, heads, positions, width)."""


@dataclass
class Text:
    """A text that is being continued; ``length`` positions of its memory are filled, the next token is ``token``."""

    memory: Memory
    length: int
    token: int


@dataclass
class _Pass:
    """What attention has to know about the forward pass that runs: a prompt that is read, or the texts by row."""

    prompt: Memory | None = None
    rows: Sequence[Text | None] = ()


@dataclass
class _Read:
    memory: Memory
    logits: torch.Tensor


@dataclass
class Rows:
    """``count`` texts at a time on one model, which must be in evaluation mode."""

    model: PreTrainedModel
    count: int
    device: torch.device
    autocast: torch.dtype | None = None
    _prompts: OrderedDict[tuple[int, ...], _Read] = field(default_factory=OrderedDict)

    def forget_prompts(self) -> None:
        self._prompts.clear()

    def begin(self, prompt: tuple[int, ...], more: int) -> tuple[Text, torch.Tensor]:
        """A text that begins with ``prompt`` and has room for ``more`` tokens; and the logits (1, vocabulary) of its
        first one. Its ``token`` is to be set before the next step."""
        read = self._prompts.get(prompt)
        if read is None:
            read = self._read(prompt)
            self._prompts[prompt] = read
            if len(self._prompts) > KEPT_PROMPTS:
                self._prompts.popitem(last=False)
        else:
            self._prompts.move_to_end(prompt)
        memory = {layer: (_with_room(k, more), _with_room(v, more)) for layer, (k, v) in read.memory.items()}
        return Text(memory, len(prompt), IDLE_TOKEN), read.logits

    def step(self, rows: Sequence[Text | None]) -> torch.Tensor:
        """Take in each text's ``token``; returns the logits (rows, vocabulary) of the next ones. None: an idle row."""
        assert len(rows) == self.count, "every pass has the same shape"
        ids = [text.token if text else IDLE_TOKEN for text in rows]
        positions = [text.length if text else 0 for text in rows]
        logits = self._forward(ids, positions, _Pass(rows=rows))
        for text in rows:
            if text is not None:
                text.length += 1
        return logits

    def logprobs(self, ids: Sequence[int]) -> torch.Tensor:
        """Log-probabilities (len(ids) - 1) of each token but the first, given those before it."""
        logits = self._forward(ids, range(len(ids)), _Pass(prompt={}), keep=0).float()
        following = torch.tensor(list(ids[1:]), device=logits.device)
        return torch.log_softmax(logits[:-1], dim=-1).gather(-1, following[:, None])[:, 0]

    def _read(self, prompt: tuple[int, ...]) -> _Read:
        memory: Memory = {}
        logits = self._forward(prompt, range(len(prompt)), _Pass(prompt=memory), keep=1)
        return _Read(memory, logits)

    def _forward(self, ids: Sequence[int], positions: Sequence[int], current: _Pass, keep: int = 0) -> torch.Tensor:
        with torch.inference_mode(), self._autocasting(), _running(current):
            output: Any = self.model(
                input_ids=torch.tensor([list(ids)], device=self.device),
                position_ids=torch.tensor([list(positions)], device=self.device),
                use_cache=False,
                logits_to_keep=keep,
            )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _autocasting(self) -> contextlib.AbstractContextManager[Any]:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast)


def _with_room(filled: torch.Tensor, more: int) -> torch.Tensor:
    batch, heads, length, width = filled.shape
    whole = filled.new_empty((batch, heads, length + more, width))
    whole[:, :, :length] = filled
    return whole


_current: list[_Pass] = []


@contextlib.contextmanager
def _running(current: _Pass) -> Iterator[None]:
    _current.append(current)
    try:
        yield
    finally:
        _current.pop()


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' interface of attention: (1, heads, tokens, width) -> (1, tokens, heads, width)."""
    current = _current[-1]
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # an attribute of every attention layer
    if current.prompt is not None:
        current.prompt[layer] = (key, value)
        mixed = _of_prompt(query, key, value, scaling, sliding_window)
    else:
        mixed = torch.zeros(
            (1, query.shape[1], query.shape[2], value.shape[-1]), dtype=query.dtype, device=query.device
        )
        for row, text in enumerate(current.rows):
            if text is not None:
                own = slice(row, row + 1)
                keys, values = text.memory[layer]
                keys[:, :, text.length] = key[:, :, row]
                values[:, :, text.length] = value[:, :, row]
                first = max(0, text.length + 1 - sliding_window) if sliding_window else 0
                seen = slice(first, text.length + 1)
                mixed[:, :, own] = _of_row(query[:, :, own], keys[:, :, seen], values[:, :, seen], scaling)
    return mixed.transpose(1, 2).contiguous(), None


def _of_prompt(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None, window: int | None
) -> torch.Tensor:
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    length = query.shape[2]
    if window is None or length <= window:
        return scaled_dot_product_attention(query, key, value, is_causal=length > 1, scale=scaling)
    places = torch.arange(length, device=query.device)
    behind = places[:, None] - places[None, :]
    return scaled_dot_product_attention(query, key, value, attn_mask=(behind >= 0) & (behind < window), scale=scaling)


def _of_row(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None) -> torch.Tensor:
    """One token: the query heads that share a key head are the tokens of one small product."""
    heads, shared = query.shape[1], key.shape[1]
    grouped = query.reshape(1, shared, heads // shared, query.shape[3])
    return scaled_dot_product_attention(grouped, key, value, scale=scaling).reshape(1, heads, 1, value.shape[3])


AttentionInterface.register(ATTENTION, _attention)
