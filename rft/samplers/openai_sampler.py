"""Sampling from any server that speaks OpenAI's interface. It renders the prompts by itself."""

from __future__ import annotations

import ipaddress
import json
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from rft.config import SamplerSection, SamplingSection
from rft.samplers.asking import Answer, Asking, Declined, NoAnswer, Patience
from rft.samplers.http_sampler import Dialect, MalformedError, Owed, Silence, choice_of, finish_of
from rft.samplers.restarts import Announce
from rft.samplers.sampler import (
    Completion,
    Refused,
    Request,
    SamplerIdentity,
    SamplerLostError,
    SamplerUnusableError,
)
from supervisor.redact import hide_secrets
from trainer.data.messages import Message

CHAT = "chat/completions"
PATIENCE = Patience(tries=7)
_ANSWER_SECONDS = 1800.0
_NAMES_SHOWN = 12


class OpenAISampler:
    """See :class:`rft.samplers.sampler.Sampler`."""

    def __init__(
        self,
        section: SamplerSection,
        sampling: SamplingSection,
        announce: Announce,
        patience: Patience = PATIENCE,
    ) -> None:
        self._section = section
        self._sampling = sampling
        self._announce = announce
        self._base_url = check_base_url(section.base_url)
        self._key = read_key(Path(section.api_key_file)) if section.api_key_file else None
        self._options = _options(section, sampling)
        self._owed = Owed(Dialect(CHAT, self._body, self._read), section.max_model_len, self._scrub)
        self._refused: list[Refused] = []
        self._patience = patience
        self._silence: Silence | None = None
        self._asking: Asking | None = None

    @property
    def loading(self) -> bool:
        return False

    def start(self, beat: Callable[[], None] = lambda: None) -> SamplerIdentity:
        self._asking = Asking(
            self._client, self._section.max_num_seqs, self._patience, self._section.max_requests_per_minute
        )
        if self._key is not None and self._base_url.startswith("http://") and not _near(self._base_url):
            self._announce(f"the key goes to {self._host} unencrypted; use https")
        owner = self._check_model(self._asking)
        self._check_options(self._asking)
        return SamplerIdentity(
            kind=self._section.type,
            model=self._section.model,
            model_digest=None,
            adapter=None,
            adapter_digest=None,
            adapter_effect=None,
            template_hash=None,
            engine=f"{owner} at {self._host}",
            device="remote",
            dtype="unknown",
        )

    def room(self) -> int:
        return max(0, 2 * self._section.max_num_seqs - len(self._owed))

    def submit(self, requests: Sequence[Request]) -> None:
        assert self._asking is not None, "started"
        self._refused += self._owed.add(requests, self._asking)

    def wait(self, seconds: float) -> list[Completion | Refused]:
        assert self._asking is not None, "started"
        ready: list[Completion | Refused] = [*self._refused]
        self._refused = []
        answered, silence = self._owed.take(self._asking, 0.0 if ready else seconds)
        ready += answered
        self._silence = self._silence or silence
        if self._silence is not None and not ready:  # what was answered beside it is given first
            raise SamplerLostError(
                f"The server at {self._host} did not answer a request in {self._patience.tries} tries; the last time: "
                f"{self._silence.reason}."
            )
        return ready

    def close(self) -> None:
        if self._asking is not None:
            self._asking.close()
            self._asking = None

    @property
    def _host(self) -> str:
        return urlsplit(self._base_url).netloc.rpartition("@")[2]

    def _client(self) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key is not None else {}
        limit = self._section.max_num_seqs
        return httpx2.AsyncClient(
            base_url=self._base_url,
            headers=headers,
            timeout=httpx2.Timeout(30.0, read=_ANSWER_SECONDS, pool=None),
            limits=httpx2.Limits(max_connections=limit, max_keepalive_connections=limit),
        )

    def _scrub(self, text: str) -> str:
        if self._key is not None:
            text = text.replace(self._key, "[key]")
        return str(hide_secrets(text))

    def _check_model(self, asking: Asking) -> str:
        """Does the server know it? Returns who serves it. Raises SamplerUnusableError."""
        outcome = asking.one("models", None)
        if isinstance(outcome, NoAnswer):
            raise SamplerUnusableError(
                f"sampler.base_url: nobody answers at {self._host} ({self._scrub(outcome.reason)}). Start the server, "
                "or correct the address."
            )
        if isinstance(outcome, Declined):
            if outcome.status in (401, 403):
                raise SamplerUnusableError(self._owed.turned_away(outcome))
            return "a server"  # one without a list; asking it for a completion shows the rest
        served = {str(item.get("id")): str(item.get("owned_by", "a server")) for item in outcome.body.get("data") or []}
        if served and self._section.model not in served:
            names = ", ".join(sorted(served)[:_NAMES_SHOWN]) + (", ..." if len(served) > _NAMES_SHOWN else "")
            raise SamplerUnusableError(
                f"sampler.model: the server at {self._host} does not serve {self._section.model}; it serves {names}."
            )
        return served.get(self._section.model, "a server")

    def _check_options(self, asking: Asking) -> None:
        """Ask for one token with all that the job will ask for. Raises SamplerUnusableError."""
        limits = {"max_tokens", "max_completion_tokens"}
        messages = [{"role": "user", "content": "Say yes."}]
        while True:
            short = {name: 1 if name in limits else value for name, value in self._options.items()}
            outcome = asking.one(CHAT, {**short, "messages": messages, "seed": 0})
            if isinstance(outcome, Answer):
                break
            if isinstance(outcome, NoAnswer):
                raise SamplerUnusableError(
                    f"sampler.base_url: the server at {self._host} cannot answer a question of two words: "
                    f"{self._scrub(outcome.reason)}. Look at its log; it may need a smaller model or a shorter context."
                )
            if outcome.status != 400 or not self._give_way(outcome.text):
                raise SamplerUnusableError(self._owed.turned_away(outcome))
        if self._sampling.logprobs and "logprobs" in self._options:
            try:
                missing = _logprobs(choice_of(outcome.body)) is None
            except MalformedError as error:
                raise SamplerUnusableError(f"sampler.base_url: the server's answer is not OpenAI's: {error}.") from None
            if missing:
                self._announce("the server gives no log-probabilities; the samples are kept without")

    def _give_way(self, text: str) -> bool:
        """Drop or rename the option that the server objects to, if that changes nothing of what is sampled."""
        if "max_completion_tokens" in text and "max_tokens" in self._options:
            self._options["max_completion_tokens"] = self._options.pop("max_tokens")
            return True
        if "logprob" in text and self._options.pop("logprobs", None) is not None:
            self._announce("the server gives no log-probabilities; the samples are kept without")
            return True
        return False

    def _body(self, request: Request) -> dict[str, Any]:
        body = {**self._options, "messages": [as_openai(message) for message in request.messages], "seed": request.seed}
        if request.tools:
            body["tools"] = list(request.tools)
        return body

    def _read(self, request: Request, body: dict[str, Any], seconds: float) -> Completion | Refused:
        choice = choice_of(body)
        message, usage = choice.get("message"), body.get("usage") or {}
        if not isinstance(message, dict):
            raise MalformedError("its choice has no message")
        if choice.get("finish_reason") == "content_filter":
            return Refused(request.task_id, request.index, request.seed, "the server's content filter cut its answer")
        logprobs = _logprobs(choice) if self._sampling.logprobs else None
        drawn = usage.get("completion_tokens")
        if not isinstance(drawn, int):
            if logprobs is None:
                raise MalformedError("it does not say how many tokens were used (usage.completion_tokens)")
            drawn = len(logprobs)
        return Completion(
            task_id=request.task_id,
            index=request.index,
            seed=request.seed,
            text=_text(message),
            token_ids=None,
            logprobs=logprobs,
            finish=finish_of(choice),
            prompt_tokens=int(usage.get("prompt_tokens") or len(request.prompt_ids)),
            completion_tokens=drawn,
            seconds=seconds,
        )


def check_base_url(url: str | None) -> str:
    """With a slash at its end. Raises SamplerUnusableError."""
    if url is None:
        raise SamplerUnusableError("sampler.base_url: type: openai needs the server's address, ending in /v1.")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SamplerUnusableError("sampler.base_url: it must begin with http:// or https:// and name a host.")
    if parts.username or parts.password:
        raise SamplerUnusableError("sampler.base_url: it must not hold a user or password; use sampler.api_key_file.")
    return url.rstrip("/") + "/"


def read_key(path: Path) -> str:
    """The key on a file's first line. Raises SamplerUnusableError, which never shows any of it."""
    try:
        path = path.expanduser()
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SamplerUnusableError(f"sampler.api_key_file: {path} cannot be read ({reason}).") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SamplerUnusableError(
            f"sampler.api_key_file: others may read or change {path} (mode {stat.S_IMODE(mode):o}). Run chmod 600."
        )
    key = lines[0].strip() if lines else ""
    if not key or not key.isascii() or any(character.isspace() for character in key):
        raise SamplerUnusableError(f"sampler.api_key_file: the first line of {path} is not a key.")
    return key


def as_openai(message: Message) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "type": "function",
                "id": call.id or f"call_{number}",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for number, call in enumerate(message.tool_calls)
        ]
    if message.tool_call_id:
        turn["tool_call_id"] = message.tool_call_id
    if message.name:
        turn["name"] = message.name
    return turn


def _options(section: SamplerSection, sampling: SamplingSection) -> dict[str, Any]:
    options: dict[str, Any] = {
        "model": section.model,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_new_tokens,
        "n": 1,
    }
    if sampling.top_k:
        options["top_k"] = sampling.top_k
    if sampling.stop:
        options["stop"] = list(sampling.stop)
    if sampling.logprobs:
        options["logprobs"] = True
    if section.chat_template_kwargs:
        options["chat_template_kwargs"] = section.chat_template_kwargs
    return options


def _text(message: dict[str, Any]) -> str:
    """Tool calls that the server has taken out of the text are put back as most models write them."""
    parts = [message["content"]] if message.get("content") else []
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        try:
            arguments = json.loads(function.get("arguments") or "{}")
        except json.JSONDecodeError:
            arguments = function.get("arguments")
        said = json.dumps({"name": function.get("name"), "arguments": arguments}, ensure_ascii=False)
        parts.append(f"<tool_call>\n{said}\n</tool_call>")
    return "\n".join(parts)


def _logprobs(choice: dict[str, Any]) -> tuple[float, ...] | None:
    content = (choice.get("logprobs") or {}).get("content")
    if not isinstance(content, list):
        return None
    try:
        return tuple(float(entry["logprob"]) for entry in content)
    except (KeyError, TypeError, ValueError):
        return None


def _near(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return host == "localhost"
