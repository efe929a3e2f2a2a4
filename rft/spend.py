"""What a job has cost, and whether it may go on. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rft.config import SpendSection


@dataclass(frozen=True)
class Spent:
    """Over all attempts. ``hours`` of sampling, by the clock."""

    prompt_tokens: int
    completion_tokens: int
    hours: float


def has_prices(spend: SpendSection) -> bool:
    return bool(
        spend.price_per_million_prompt_tokens or spend.price_per_million_completion_tokens or spend.price_per_hour
    )


def cost(spend: SpendSection, spent: Spent) -> float | None:
    """In the currency of the prices; None where no price is known."""
    if not has_prices(spend):
        return None
    return (
        spent.prompt_tokens * spend.price_per_million_prompt_tokens / 1e6
        + spent.completion_tokens * spend.price_per_million_completion_tokens / 1e6
        + spent.hours * spend.price_per_hour
    )


def exceeded(spend: SpendSection, spent: Spent) -> str | None:
    """Which cap is reached, a sentence; None while none is."""
    if spend.max_completion_tokens is not None and spent.completion_tokens >= spend.max_completion_tokens:
        return (
            f"{spent.completion_tokens} tokens were sampled, and spend.max_completion_tokens allows "
            f"{spend.max_completion_tokens}"
        )
    if spend.max_hours is not None and spent.hours >= spend.max_hours:
        return f"sampling took {spent.hours:.2f} hours, and spend.max_hours allows {spend.max_hours:g}"
    price = cost(spend, spent)
    if spend.max_cost is not None and price is not None and price >= spend.max_cost:
        return f"the job has cost {price:.2f}, and spend.max_cost allows {spend.max_cost:g}"
    return None
