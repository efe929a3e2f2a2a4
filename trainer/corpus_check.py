"""Is there enough data for what is planned, and is it the data that the run began with? Pure, without torch."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.data.corpus import SourceDigest
from trainer.data.mix_spec import MOST_PASSES

TOKENS_PER_PARAMETER = 20
"""Of a model trained from scratch, for the best loss at a given cost (Hoffmann et al. 2022, arXiv 2203.15556)."""


def overfit_problem(planned_tokens: int, corpus_tokens: int) -> str | None:
    """Why ``planned_tokens`` are too many for a corpus of ``corpus_tokens`` (both fitted to the window), or None."""
    if planned_tokens <= MOST_PASSES * corpus_tokens:
        return None
    return (
        f"train: {planned_tokens} tokens are planned and the corpus has {corpus_tokens}, so it would be passed over "
        f"{planned_tokens / corpus_tokens:.1f} times; beyond {MOST_PASSES:g} a model mostly memorises. Lower "
        "train.max_steps or train.num_train_epochs, bring more data, or accept it knowingly with --force-overfit."
    )


def from_scratch_sentence(base: str, planned_tokens: int, parameters: int) -> str:
    """For a base of random weights: how the tokens compare with what training from scratch takes."""
    return (
        f"{base} has random weights, so this is like pretraining: {planned_tokens} tokens for {parameters} trained "
        f"parameters are {planned_tokens / parameters:.2g} tokens per parameter, where about {TOKENS_PER_PARAMETER} "
        "are usual. Nothing useful is to be expected from far fewer"
    )


def first_difference(before: Sequence[SourceDigest], now: Sequence[SourceDigest]) -> str:
    """Which source differs first, and how; says so when none does."""
    for index in range(max(len(before), len(now))):
        if index >= len(now):
            return f"the source {before[index].path} is gone"
        if index >= len(before):
            return f"the source {now[index].path} is new"
        old, new = before[index], now[index]
        if old.path != new.path:
            return f"source {index + 1} was {_shown(old)} and is {_shown(new)} now"
        if (old.rows, old.digest, old.held_out) != (new.rows, new.digest, new.held_out):
            was, is_now = f"{old.rows} rows ({_short(old)})", f"{new.rows} rows ({_short(new)})"
            return f"the first source that differs is {old.path}: {was}, now {is_now}"
    for old, new in zip(before, now, strict=True):
        if old.weights != new.weights:
            was, is_now = (found.weights or "none" for found in (old, new))
            return f"the rows of every source are the same, but the weights of {old.path} were {was}, now {is_now}"
    return (
        "the rows of every source are the same, but others of them are kept or held out: which of them are near "
        "duplicates of one another decides that as well, so another version of mens-supervisor may differ"
    )


def _shown(source: SourceDigest) -> str:
    return f"{source.path} ({source.rows} rows, {_short(source)})"


def _short(source: SourceDigest) -> str:
    return source.digest[:12]
