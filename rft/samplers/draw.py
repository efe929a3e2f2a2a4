"""Drawing tokens, each sample by random numbers of its own. Pure."""

from __future__ import annotations

import hashlib

import torch

from rft.samplers.sampler import Sampling

_LIKELIEST = 1024


def uniform(seed: int, position: int) -> float:
    """The random number, 0 <= u < 1, by which token ``position`` of a sample is drawn.

    A hash and no generator: there is no state that depends on what else was drawn, or on the device.
    """
    digest = hashlib.sha256(f"{seed}\0{position}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def log_distribution(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Log-probabilities (rows, vocabulary), float32, of the distribution that is drawn from; the model's own at
    temperature 0. In vLLM's order: temperature, top_k, top_p."""
    logits = logits.float()
    if sampling.temperature == 0:
        return torch.log_softmax(logits, dim=-1)
    logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest = torch.topk(logits, sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, float("-inf"))
    if sampling.top_p < 1:
        logits = logits.masked_fill(_beyond(logits, sampling.top_p), float("-inf"))
    return torch.log_softmax(logits, dim=-1)


def _beyond(logits: torch.Tensor, share: float) -> torch.Tensor:
    """Which tokens the likeliest ones with so much probability together can do without.

    Sorting a whole vocabulary takes longer than a small model's step, so the likeliest are tried first.
    """
    vocabulary = logits.shape[-1]
    count = min(_LIKELIEST, vocabulary)
    whole = torch.logsumexp(logits, dim=-1, keepdim=True)
    ordered, places = torch.topk(logits, count, dim=-1)
    shares = torch.exp(ordered - whole)
    before = shares.cumsum(dim=-1, dtype=torch.float64) - shares
    needed = before < share
    needed[:, 0] = True
    beyond = torch.ones_like(logits, dtype=torch.bool).scatter(-1, places, ~needed)
    if count < vocabulary:
        for row in torch.nonzero(needed[:, -1])[:, 0].tolist():  # each by itself, whatever the others need
            ordered, places = torch.sort(logits[row], descending=True, stable=True)
            shares = torch.exp(ordered - whole[row])
            beyond[row] = beyond[row].scatter(-1, places, shares.cumsum(-1, dtype=torch.float64) - shares >= share)
    return beyond


def draw(logits: torch.Tensor, uniforms: list[float], sampling: Sampling) -> tuple[list[int], list[float]]:
    """One token for each row of ``logits`` (rows, vocabulary), and its log-probability (nats).

    The token at which the summed distribution passes the row's number, summed in float64.
    """
    distribution = log_distribution(logits, sampling)
    if sampling.temperature == 0:
        chosen = distribution.argmax(dim=-1, keepdim=True)
    else:
        summed = distribution.exp().cumsum(dim=-1, dtype=torch.float64)
        targets = torch.tensor(uniforms, dtype=torch.float64, device=summed.device)[:, None] * summed[:, -1:]
        chosen = torch.searchsorted(summed, targets, right=True)
    return chosen[:, 0].tolist(), distribution.gather(-1, chosen)[:, 0].tolist()
