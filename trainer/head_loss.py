"""The loss of the language-model head without its logits.

Logits of [tokens, vocabulary] are more than half of a 4B model's memory at 2,048 tokens. Here only
positions that have a label reach the head, a slice of them at a time, and the gradient with respect
to the hidden states is taken in the same pass: two matrix products per slice and nothing kept. It
needs a frozen head, which an adapter that leaves the head alone guarantees.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from trainer.errors import ConfigurationError

IGNORED = -100
"""The label that no loss is computed for."""
SLICE_ELEMENTS = 1 << 25
"""Logits held at once: 128 MiB of float32."""
RESHAPED_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
"""Configuration keys of models that change the logits after the head, which this loss does not do."""


class _SummedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        size = max(1, SLICE_ELEMENTS // weight.shape[0])
        for start in range(0, hidden.shape[0], size):
            part = slice(start, start + size)
            logits = (hidden[part] @ weight.T).float()
            target = targets[part, None]
            normaliser = logits.logsumexp(dim=1, keepdim=True)
            total += (normaliser - logits.gather(1, target)).sum()
            if gradient is not None:
                # d(-log p_target)/d logits = softmax - one-hot
                logits.sub_(normaliser).exp_().scatter_add_(1, target, torch.full_like(normaliser, -1.0))
                gradient[part] = logits.to(weight.dtype) @ weight
            del logits  # else it is still there while the next slice is made: twice the memory
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        # A bfloat16 factor (one over the window's labels) would make every gradient up to 0.4 % too large or small.
        wide = torch.promote_types(gradient.dtype, torch.float32)
        return (gradient.to(wide) * upstream[0].to(wide)).to(gradient.dtype), None, None


def summed_token_loss(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum of -log p(label) in nats over all labelled positions; a float32 scalar.

    ``hidden`` [B, T, H] predicts ``labels`` [B, T] one position to the right; ``weight`` [V, H] is the
    frozen head's.
    """
    shifted = labels[:, 1:]
    chosen = shifted != IGNORED
    return _SummedLoss.apply(hidden[:, :-1][chosen], weight.detach(), shifted[chosen])  # type: ignore[no-any-return,no-untyped-call]


@torch.no_grad()
def token_losses(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """-log p(label) in nats at each labelled position, float32 [N] in the order of ``labels``; no gradient.

    Arguments as those of :func:`summed_token_loss`.
    """
    shifted = labels[:, 1:]
    chosen = shifted != IGNORED
    states, targets = hidden[:, :-1][chosen], shifted[chosen]
    size = max(1, SLICE_ELEMENTS // weight.shape[0])
    parts = []
    for start in range(0, states.shape[0], size):
        part = slice(start, start + size)
        logits = (states[part] @ weight.T).float()
        parts.append(logits.logsumexp(dim=1) - logits.gather(1, targets[part, None]).squeeze(1))
        del logits
    return torch.cat([torch.zeros(0, dtype=torch.float32, device=hidden.device), *parts])


def attach(model: PreTrainedModel) -> None:
    """Give a causal LM's forward the keywords ``summed_loss=True`` and ``per_token=True``.

    It then returns :func:`summed_token_loss` or, with both, :func:`token_losses`.

    Done inside ``forward`` so that whatever wraps the model (PEFT, DDP) stays in charge of the call.
    Raises ConfigurationError for a model whose logits are more than its head's product.
    """
    config = model.config.get_text_config()
    head = model.get_output_embeddings()
    if head is not None and not head.weight.is_floating_point():
        raise ConfigurationError(
            f"model.base: the output head of {model.config.model_type} is quantised ({head.weight.dtype}), and this "
            "trainer's loss multiplies by it directly. Use a base whose head is not; nf4 leaves it in bfloat16."
        )
    reshaped = [key for key in RESHAPED_LOGITS if getattr(config, key, None) not in (None, 1, 1.0)]
    if reshaped or head is None or getattr(head, "bias", None) is not None:
        why = f"sets {reshaped[0]}" if reshaped else "has no plain output head"
        raise ConfigurationError(
            f"model.base: {model.config.model_type} {why}, which this trainer's loss does not support"
        )
    original = model.forward

    def forward(
        *args: Any,
        labels: torch.Tensor | None = None,
        summed_loss: bool = False,
        per_token: bool = False,
        **kwargs: Any,
    ) -> Any:
        if not summed_loss:
            return original(*args, labels=labels, **kwargs)
        if labels is None:
            raise ValueError("summed_loss needs labels")
        hidden = model.base_model(*args, **kwargs).last_hidden_state
        return (token_losses if per_token else summed_token_loss)(hidden, head.weight, labels)

    model.forward = forward
