"""Was the adapter applied? Servers have accepted one and applied it to nothing, so it is measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence

LEAST_EFFECT = 1e-6
"""In nats: nothing that was trained for a step moves less."""
ABOVE_NOISE = 10.0
"""How many times the difference between two passes of the same model."""


def largest_difference(first: Sequence[float], second: Sequence[float]) -> float:
    """The largest difference between two series of log-probabilities of the same tokens, in nats."""
    return max((abs(a - b) for a, b in zip(first, second, strict=True)), default=0.0)


def effect_problem(effect: float, noise: float, adapter: str, tokens: int) -> str | None:
    """Why ``effect`` is no proof that the adapter was applied, in a paragraph; None when it is one."""
    least = max(LEAST_EFFECT, ABOVE_NOISE * noise)
    if effect > least:
        return None
    return (
        f"sampler.adapter: {adapter} changes nothing: over the {tokens} tokens of a probe the log-probabilities with "
        f"and without it differ by {effect:.3g} nats at most, and more than {least:.3g} would show it (two passes "
        f"without it differ by {noise:.3g}). It is untrained (all its B matrices are zero), belongs to another model, "
        "or the engine did not apply it. Name the adapter of a finished run, or leave sampler.adapter out to sample "
        "from the base."
    )
