"""A sampler in a process of its own that speaks :mod:`.wire`: started, watched, started again, ended."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rft.config import SamplerSection, SamplingSection
from rft.samplers import frames
from rft.samplers.effect import effect_problem
from rft.samplers.kept import Kept
from rft.samplers.renderer import PromptRenderer
from rft.samplers.restarts import EVIDENCE_LINES, Announce, Restarts
from rft.samplers.sampler import (
    Completion,
    Refused,
    Request,
    SamplerIdentity,
    SamplerLostError,
    SamplerUnusableError,
    Sampling,
)
from rft.samplers.weights import adapter_digest, model_digest
from rft.samplers.wire import Ask, Drawn, FromWorker, Ready, Rejected, Setup, Unusable

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Program:
    """How a worker is started: the descriptor's number is appended to ``command``. ``name`` is for people.

    ``hint``: of the log's lines, why it cannot work and what to do about it; None when starting again may help.
    ``engine``: arguments for an engine that loads the model from a folder.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    grace: float
    hint: Callable[[Sequence[str]], str | None] = lambda lines: None
    engine: Callable[[Path], dict[str, str | int | float | bool]] = lambda model: {}


class WorkerSampler:
    """See :class:`rft.samplers.sampler.Sampler`."""

    def __init__(
        self,
        program: Program,
        section: SamplerSection,
        sampling: SamplingSection,
        renderer: PromptRenderer,
        log: Path,
        announce: Announce,
    ) -> None:
        self._program = program
        self._section = section
        self._renderer = renderer
        self._log = log
        self._announce = announce
        self._sampling = sampling_of(sampling)
        self._keep_logprobs = sampling.logprobs
        self._room = 2 * section.max_num_seqs
        self._restarts = Restarts(program.name, section.restarts, log, announce, program.hint)
        self._owed: dict[int, Request] = {}
        self._next_key = 0
        self._kept: Kept | None = None
        self._channel: socket.socket | None = None
        self._frames = frames.Frames()

    def start(self) -> SamplerIdentity:
        ready = self._launch_until_ready()
        known = self._renderer.known
        adapter = Path(self._section.adapter.path) if self._section.adapter else None
        if adapter is not None:
            problem = proof_problem(ready.adapter_effect, ready.adapter_noise, str(adapter), len(known.probe_ids) - 1)
            if problem is not None:
                self.close()
                raise SamplerUnusableError(problem)
        return SamplerIdentity(
            kind=self._section.type,
            model=self._section.model,
            model_digest=model_digest(Path(known.model_path)),
            adapter=str(adapter) if adapter else None,
            adapter_digest=adapter_digest(adapter) if adapter else None,
            adapter_effect=ready.adapter_effect,
            template_hash=known.template_hash,
            engine=ready.engine,
            device=ready.device,
            dtype=ready.dtype,
            quantization=self._section.quantization,
            max_model_len=self._section.max_model_len,
        )

    def room(self) -> int:
        return max(0, self._room - len(self._owed))

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._owed[self._next_key] = request
            self._send(self._next_key, request)
            self._next_key += 1

    def wait(self, seconds: float) -> list[Completion | Refused]:
        deadline = time.monotonic() + seconds
        while True:
            ready: list[Completion | Refused] = []
            for message in self._messages(max(0.0, min(_POLL_SECONDS, deadline - time.monotonic()))):
                if isinstance(message, Drawn | Rejected) and (request := self._owed.pop(message.key, None)):
                    ready.append(_answer(request, message))
            if ready:
                return ready
            if self._channel is None or (self._kept is not None and self._kept.ended() is not None):
                self._bring_back()
            if time.monotonic() >= deadline:
                return []

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    @property
    def pid(self) -> int | None:
        """Of the worker."""
        return self._kept.pid if self._kept else None

    def _send(self, key: int, request: Request) -> None:
        if self._channel is None:
            return  # it is asked for when the worker is back
        try:
            frames.send(self._channel, Ask(key, request.seed, request.prompt_ids))
        except OSError:
            self._drop()

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _launch_until_ready(self) -> Ready:
        while True:
            ready = self._launch()
            if ready is not None:
                return ready
            self._lose()

    def _bring_back(self) -> None:
        """A new worker in place of the one that is gone, and everything owed is asked for again."""
        self._lose()
        self._launch_until_ready()
        for key, request in list(self._owed.items()):
            self._send(key, request)

    def _lose(self) -> None:
        """End what is left of the worker. Raises when it must not or need not be started again."""
        assert self._kept is not None
        kept = self._kept
        self.close()
        self._restarts.spend(kept.ended() or "was ended", kept.tail(EVIDENCE_LINES), len(self._owed))

    def _launch(self) -> Ready | None:
        """Start a worker and wait for it; None when it died meanwhile. Raises what :meth:`start` does."""
        known = self._renderer.known
        self._frames = frames.Frames()
        self._channel, theirs = socket.socketpair()
        with theirs:
            command = [*self._program.command, str(theirs.fileno())]
            self._kept = Kept(
                command, self._program.environment, self._log, inherited=[theirs.fileno()], grace=self._program.grace
            )
        setup = Setup(
            section=self._section.model_dump(mode="json"),
            sampling=self._sampling,
            keep_logprobs=self._keep_logprobs,
            model_path=known.model_path,
            stop_token_ids=known.stop_token_ids,
            probe=known.probe,
            probe_ids=known.probe_ids,
            chat_template=known.chat_template,
            engine=self._program.engine(Path(known.model_path)),
        )
        try:
            frames.send(self._channel, setup)
        except OSError:
            return None
        deadline = time.monotonic() + self._section.start_seconds
        while time.monotonic() < deadline:
            for message in self._messages(_POLL_SECONDS):
                if isinstance(message, Unusable):
                    self.close()
                    raise SamplerUnusableError(message.problem)
                if isinstance(message, Ready):
                    self._restarts.ready()
                    if message.warning:
                        self._announce(f"{self._program.name}: {message.warning}")
                    return message
            if self._channel is None or self._kept.ended() is not None:
                return None
        self.close()
        raise SamplerLostError(
            f"The {self._program.name} was not ready within sampler.start_seconds ({self._section.start_seconds:g}); "
            f"see {self._log}."
        )

    def _messages(self, seconds: float) -> list[FromWorker]:
        """What has come, waiting ``seconds`` at most for something."""
        if self._channel is None or not select.select([self._channel], [], [], seconds)[0]:
            return []
        try:
            data = self._channel.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self._drop()
            return []
        try:
            return [msgspec.msgpack.decode(body, type=FromWorker) for body in self._frames.feed(data)]
        except (frames.FrameError, msgspec.DecodeError) as error:
            self._announce(f"the {self._program.name} said something that is no message ({error}); it is ended")
            self._drop()
            return []


def sampling_of(section: SamplingSection) -> Sampling:
    return Sampling(
        temperature=section.temperature,
        top_p=section.top_p,
        top_k=section.top_k,
        max_new_tokens=section.max_new_tokens,
        stop=tuple(section.stop),
    )


def proof_problem(effect: float | None, noise: float | None, adapter: str, tokens: int) -> str | None:
    """Why the adapter is not proven applied; None when it is."""
    if effect is None or noise is None:
        return f"sampler.adapter: the engine did not say what {adapter} changes, so it is not proven applied."
    return effect_problem(effect, noise, adapter, tokens)


def _answer(request: Request, message: Drawn | Rejected) -> Completion | Refused:
    if isinstance(message, Rejected):
        return Refused(request.task_id, request.index, request.seed, message.problem)
    return Completion(
        task_id=request.task_id,
        index=request.index,
        seed=request.seed,
        text=message.text,
        token_ids=message.token_ids,
        logprobs=message.logprobs,
        finish=message.finish,
        prompt_tokens=len(request.prompt_ids),
        completion_tokens=len(message.token_ids),
        seconds=message.seconds,
    )
