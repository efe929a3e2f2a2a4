"""What is known of samples: as they arrive, as they are judged, and as they are stored."""

from __future__ import annotations

import msgspec

from rft.samplers.sampler import Completion, Refused, SamplerIdentity, Sampling
from rft.verifiers.verdict import Verdict

REFUSED = "refused"
"""Outcome of a sample that the sampler can never draw."""


class State(msgspec.Struct, frozen=True):
    """What planning knows of one sample: ``outcome`` None while it is not judged, ``key`` of an accepted one says which
    answers are the same, ``tries`` how often the judge failed on it."""

    index: int
    outcome: str | None
    key: str | None
    tries: int


class Arrived(msgspec.Struct, frozen=True):
    """A completion (or a refusal) and the number of its task."""

    task: int
    got: Completion | Refused


class Judged(msgspec.Struct, frozen=True):
    """A verdict about sample ``index`` of a task. ``key`` for accepted ones; ``tries``: failures of the judge on it."""

    task: int
    index: int
    verdict: Verdict
    key: str | None
    tries: int = 0


class StoredSample(msgspec.Struct, frozen=True):
    """One sample as it stands. ``verdict`` is None while it is not judged; ``refused`` says why it was never drawn.

    ``logprobs`` in nats, one for each of ``token_ids``; both None where the server did not tell. ``sampler`` is a key
    of ``Store.samplers``.
    """

    task: int
    index: int
    seed: int
    text: str
    token_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    finish: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    sampler: int
    attempt: int
    key: str | None
    verdict: Verdict | None
    refused: str | None


class Judgement(msgspec.Struct, frozen=True):
    """What a verdict says in numbers: ``outcome`` None while there is none, ``why`` for what has no value."""

    index: int
    outcome: str | None
    score: float | None
    why: str
    metrics: dict[str, float]


class Origin(msgspec.Struct, frozen=True):
    """What samples were drawn from and how."""

    sampler: SamplerIdentity
    sampling: Sampling


class Totals(msgspec.Struct, frozen=True):
    """``outcomes``: number of samples by outcome, ``unjudged`` among them."""

    outcomes: dict[str, int]
    prompt_tokens: int
    completion_tokens: int

    @property
    def samples(self) -> int:
        return sum(self.outcomes.values())
