"""What a sampler is: it takes requests and gives completions, in whatever order they get ready. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from trainer.data.messages import Message


class Sampling(msgspec.Struct, frozen=True):
    """How tokens are drawn. ``top_k`` 0 is off. With top_p 1 and top_k 0 log-probabilities are those of the model."""

    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int
    stop: tuple[str, ...] = ()


class Request(msgspec.Struct, frozen=True):
    """Sample ``index`` of a task. ``prompt_ids`` are what the one renderer made of ``messages`` and ``tools``, with the
    assistant's header at the end; samplers that can take ids take these, so that no other template comes in between."""

    task_id: str
    index: int
    seed: int
    prompt_ids: tuple[int, ...]
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()


class Completion(msgspec.Struct, frozen=True):
    """What was drawn for a request.

    ``text`` without the stop token. ``token_ids`` with it, and ``logprobs`` (nats, one for each id, of the distribution
    that was drawn from); both None where a server does not tell. ``finish``: stop or length.
    """

    task_id: str
    index: int
    seed: int
    text: str
    token_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    finish: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float


class Refused(msgspec.Struct, frozen=True):
    """A request that this sampler can never serve (prompt longer than its window); it is not asked again."""

    task_id: str
    index: int
    seed: int
    problem: str


class SamplerIdentity(msgspec.Struct, frozen=True):
    """What was sampled from, for provenance: it stands with every sample.

    ``model`` as configured, ``model_digest`` over its weights where they are local, ``adapter_digest`` over the
    adapter's file, ``template_hash`` of the renderer, ``engine`` with its version, ``device``. ``quantization`` of the
    base, and ``max_model_len``, which ends long answers; None where a server does not tell.
    ``adapter_effect`` is how the adapter was proven applied: the largest difference between the log-probabilities with
    and without it on a probe, in nats; None without adapter, or where it cannot be told.
    """

    kind: str
    model: str
    model_digest: str | None
    adapter: str | None
    adapter_digest: str | None
    adapter_effect: float | None
    template_hash: str | None
    engine: str
    device: str
    dtype: str
    quantization: str | None = None
    max_model_len: int | None = None


class SamplerUnusableError(Exception):
    """The sampler cannot work as configured (no such model, wrong key, adapter without effect, another template); one
    paragraph with the remedy. Asking again would not help."""


class SamplerLostError(Exception):
    """The sampler's process or server is gone and could not be brought back; one sentence. What was given is safe, what
    was asked for is owed and may be asked for again."""


class Sampler(Protocol):
    """A process (or a server) that samples. One thread uses it.

    Nothing asked for is lost silently: every request ends as a Completion or Refused, or the sampler raises. A process
    that dies is started again a bounded number of times, and what it owed is asked for again with the same seeds.
    """

    @property
    def loading(self) -> bool:
        """It died and is being started again, which takes as long as the first start; meanwhile :meth:`wait` gives
        nothing."""

    def start(self, beat: Callable[[], None] = lambda: None) -> SamplerIdentity:
        """Load; check template, key and adapter. ``beat`` is called now and then meanwhile. Raises SamplerUnusableError
        or SamplerLostError."""

    def room(self) -> int:
        """How many more requests keep it busy; more would only wait in memory."""

    def submit(self, requests: Sequence[Request]) -> None: ...

    def wait(self, seconds: float) -> list[Completion | Refused]:
        """What has got ready; blocks until there is something, for at most ``seconds``. Raises SamplerLostError."""

    def close(self) -> None:
        """End the process and everything it started; may be called twice."""
