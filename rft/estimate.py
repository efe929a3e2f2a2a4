"""``mens-sup rft run JOB.yaml --dry-run``: tasks, tokens, hours and money before anything is sampled."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rft.budget import rounds
from rft.config import RftSections
from rft.speed import Speed
from rft.spend import Spent, cost, exceeded
from rft.tasks.task import Task

MEASURED_TASKS = 200
"""Prompts that are rendered to learn how long prompts are."""
CHARACTERS_PER_TOKEN = 4.0
"""Where a server renders prompts: about this for English and code."""

CountTokens = Callable[[Task], int]


@dataclass(frozen=True)
class Estimate:
    """``*_most``: when no task stops early and every answer is as long as it may be. None is unknown."""

    tasks: int
    sources: dict[str, int]
    samples_least: int
    samples_most: int
    prompt_tokens_per_task: float
    prompt_tokens_measured: bool
    prompt_tokens_most: int
    completion_tokens_most: int
    completion_tokens_likely: int | None
    hours_most: float | None
    hours_likely: float | None
    cost_most: float | None
    cost_likely: float | None
    speed: str
    cap: str | None

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def estimate(sections: RftSections, tasks: Iterable[Task], count: CountTokens | None, speed: Speed | None) -> Estimate:
    """``count``: the tokens of a task's prompt, None where nobody here can tell."""
    sources: Counter[str] = Counter()
    lengths: list[float] = []
    for task in tasks:
        if sum(sources.values()) < MEASURED_TASKS:
            lengths.append(count(task) if count else _characters(task) / CHARACTERS_PER_TOKEN)
        sources[task.source] += 1
    total = sum(sources.values())
    sampling, spend = sections.sampling, sections.spend
    least = rounds(sections.budget, sampling.samples_per_task)[0] * total
    most = sampling.samples_per_task * total
    prompt = math.fsum(lengths) / len(lengths) if lengths else 0.0
    prompt_most, completion_most = math.ceil(prompt * most), sampling.max_new_tokens * most
    likely = None if speed is None else math.ceil(min(speed.tokens_per_sample, sampling.max_new_tokens) * most)
    hours_most = None if speed is None else completion_most / speed.tokens_per_second / 3600
    hours_likely = None if speed is None or likely is None else likely / speed.tokens_per_second / 3600
    cost_most = _cost(sections, prompt_most, completion_most, hours_most)
    cost_likely = None if likely is None else _cost(sections, prompt_most, likely, hours_likely)
    return Estimate(
        tasks=total,
        sources=dict(sources),
        samples_least=least,
        samples_most=most,
        prompt_tokens_per_task=prompt,
        prompt_tokens_measured=count is not None,
        prompt_tokens_most=prompt_most,
        completion_tokens_most=completion_most,
        completion_tokens_likely=likely,
        hours_most=hours_most,
        hours_likely=hours_likely,
        cost_most=cost_most,
        cost_likely=cost_likely,
        speed=_said(speed),
        cap=exceeded(spend, Spent(prompt_most, completion_most, hours_most or 0.0)),
    )


def render_estimate(found: Estimate) -> str:
    sources = ", ".join(f"{source} {count}" for source, count in found.sources.items())
    how = "" if found.prompt_tokens_measured else " (guessed from their characters)"
    lines = [
        f"tasks: {found.tasks} ({sources})",
        f"samples: {found.samples_least} at least, {found.samples_most} at most",
        f"prompts: {found.prompt_tokens_per_task:.0f} tokens each{how}, at most {found.prompt_tokens_most} in all",
        f"answers: at most {found.completion_tokens_most} tokens"
        + _likely(found.completion_tokens_likely),
        f"speed: {found.speed}",
        _range("hours", found.hours_likely, found.hours_most, "unknown, because the speed is"),
        _range("cost", found.cost_likely, found.cost_most, "unknown: no price is given under spend, or the speed is"),
    ]
    if found.cap:
        lines.append(f"a cap may end the job early: {found.cap}")
    lines.append("Nothing was sampled.")
    return "\n".join(lines)


def _said(speed: Speed | None) -> str:
    if speed is None:
        return "unknown: nothing was sampled this way on this machine yet"
    return (
        f"{speed.tokens_per_second:.0f} tokens/s and {speed.tokens_per_sample:.0f} tokens per sample, measured on "
        f"{speed.samples} samples of an earlier job"
    )


def _range(what: str, likely: float | None, most: float | None, unknown: str) -> str:
    if most is None:
        return f"{what}: {unknown}"
    return f"{what}: at most {most:.2f}" + ("" if likely is None else f", likely under {likely:.2f}")


def _likely(tokens: int | None) -> str:
    return "" if tokens is None else f", likely under {tokens}"


def _characters(task: Task) -> int:
    return sum(len(message.content) for message in task.messages)


def _cost(sections: RftSections, prompt: int, completion: int, hours: float | None) -> float | None:
    if hours is None and sections.spend.price_per_hour:
        return None
    return cost(sections.spend, Spent(prompt, completion, hours or 0.0))
