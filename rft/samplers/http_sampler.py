"""A sampler behind an HTTP server that speaks OpenAI's interface: what is owed, asked for, answered and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rft.samplers.asking import Asking, Declined, NoAnswer
from rft.samplers.sampler import Completion, Refused, Request, SamplerUnusableError

BROKEN_OFF_TIMES = 3
"""After so many answers to one request that were broken off, the server counts as one that does not answer."""


class MalformedError(Exception):
    """A server's answer lacks what its interface promises; a few words."""


class BrokenOffError(Exception):
    """A server began an answer and gave it up; a few words. It may be asked again."""


@dataclass(frozen=True)
class Dialect:
    """How one kind of server is asked. ``read`` raises MalformedError, BrokenOffError."""

    path: str
    body: Callable[[Request], dict[str, Any]]
    read: Callable[[Request, dict[str, Any], float], Completion | Refused]


@dataclass(frozen=True)
class Silence:
    """The server does not answer any more. ``reason`` in a few words."""

    reason: str


class Owed:
    """Requests on their way to one server. The samplers that use it decide what a silence means."""

    def __init__(self, dialect: Dialect, window: int, scrub: Callable[[str], str]) -> None:
        self._dialect = dialect
        self._window = window
        self._scrub = scrub
        self._owed: dict[int, Request] = {}
        self._next_key = 0
        self._broken_off: Counter[int] = Counter()
        self._ended: str | None = None

    def __len__(self) -> int:
        return len(self._owed)

    def add(self, requests: Sequence[Request], asking: Asking) -> list[Refused]:
        """Ask for ``requests``; those that can never be served come back."""
        refused: list[Refused] = []
        for request in requests:
            if len(request.prompt_ids) >= self._window:
                problem = (
                    f"its prompt has {len(request.prompt_ids)} tokens, sampler.max_model_len ({self._window}) leaves "
                    "no room for an answer"
                )
                refused.append(Refused(request.task_id, request.index, request.seed, problem))
                continue
            self._owed[self._next_key] = request
            asking.ask(self._next_key, self._dialect.path, self._dialect.body(request))
            self._next_key += 1
        return refused

    def again(self, asking: Asking) -> None:
        """Ask anew for everything that is owed, of a server that has forgotten it."""
        for key, request in self._owed.items():
            asking.ask(key, self._dialect.path, self._dialect.body(request))

    def take(self, asking: Asking, seconds: float) -> tuple[list[Completion | Refused], Silence | None]:
        """What has been answered. Raises SamplerUnusableError when the server turns us away."""
        ready: list[Completion | Refused] = []
        silence: Silence | None = None
        if self._ended is not None:
            raise SamplerUnusableError(self._ended)
        for key, outcome in asking.outcomes(seconds):
            request = self._owed.get(key)
            if request is None:
                continue
            if isinstance(outcome, NoAnswer):
                silence = Silence(self._scrub(outcome.reason))
                continue
            if isinstance(outcome, Declined):
                if outcome.status not in (400, 413, 422):
                    self._ended = self.turned_away(outcome)
                    continue
                problem = f"the server refuses it (status {outcome.status}): {self._scrub(outcome.text)}"
                ready.append(Refused(request.task_id, request.index, request.seed, problem))
            else:
                try:
                    ready.append(self._dialect.read(request, outcome.body, outcome.seconds))
                except BrokenOffError as error:
                    self._broken_off[key] += 1
                    if self._broken_off[key] < BROKEN_OFF_TIMES:
                        asking.ask(key, self._dialect.path, self._dialect.body(request))
                    else:
                        silence = Silence(f"it broke an answer off {BROKEN_OFF_TIMES} times, with {error}")
                    continue
                except MalformedError as error:
                    self._ended = f"sampler.base_url: the server's answer is not what OpenAI's would be: {error}."
                    continue
            del self._owed[key]
            self._broken_off.pop(key, None)
        if self._ended is not None and not ready:  # what was answered beside it is given first
            raise SamplerUnusableError(self._ended)
        return ready, silence

    def turned_away(self, outcome: Declined) -> str:
        """What a status other than of a bad request means, in a paragraph."""
        said = f"It said (status {outcome.status}): {self._scrub(outcome.text)}"
        if outcome.status in (401, 403):
            return f"sampler.api_key_file: the server refuses the key. Put a valid one on its first line. {said}"
        if outcome.status == 404:
            return f"sampler.model: the server does not know this model, or base_url does not end in /v1. {said}"
        return f"sampler.base_url: the server does not do what it was asked for. {said}"


def choice_of(body: dict[str, Any]) -> dict[str, Any]:
    """The one choice of an answer. Raises MalformedError."""
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise MalformedError("it holds not exactly one choice")
    return choices[0]


def finish_of(choice: dict[str, Any]) -> str:
    """stop or length. Raises BrokenOffError for an answer that was given up."""
    if choice.get("finish_reason") in ("abort", "error"):
        raise BrokenOffError(str(choice["finish_reason"]))
    return "length" if choice.get("finish_reason") == "length" else "stop"


