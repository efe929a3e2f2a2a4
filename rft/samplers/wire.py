"""What a sampler and its worker say to each other; the bodies of :mod:`.frames`. No torch."""

from __future__ import annotations

from typing import Any

import msgspec

from rft.samplers.sampler import Sampling


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    """First message to a worker: the sampler section as JSON values, how to draw, and what the renderer knows.

    ``engine``: arguments for vLLM's engine.
    """

    section: dict[str, Any]
    sampling: Sampling
    keep_logprobs: bool
    model_path: str
    stop_token_ids: tuple[int, ...]
    probe: tuple[tuple[str, str], ...]
    probe_ids: tuple[int, ...]
    chat_template: str
    engine: dict[str, Any] = {}


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Draw one completion; ``key`` comes back with it."""

    key: int
    seed: int
    prompt_ids: tuple[int, ...]


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The worker can be asked. ``warning``: a sentence about what is not as good as it should be, or empty."""

    engine: str
    device: str
    dtype: str
    adapter_effect: float | None = None
    adapter_noise: float | None = None
    warning: str = ""


class Unusable(msgspec.Struct, frozen=True, tag="unusable"):
    """The worker will never be ready; one paragraph."""

    problem: str


class Drawn(msgspec.Struct, frozen=True, tag="drawn"):
    key: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish: str
    seconds: float


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    key: int
    problem: str


ToWorker = Setup | Ask
FromWorker = Ready | Unusable | Drawn | Rejected
