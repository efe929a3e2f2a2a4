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
from rft.samplers.restarts import POLL_SECONDS, Announce, Lifeline, Restarts
from rft.samplers.sampler import (
    Completion,
    Refused,
    Request,
    SamplerIdentity,
    SamplerUnusableError,
    Sampling,
)
from rft.samplers.weights import adapter_digest, model_digest
from rft.samplers.wire import Ask, Drawn, FromWorker, Ready, Rejected, Setup, Unusable


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
        self._owed: dict[int, Request] = {}
        restarts = Restarts(program.name, section.restarts, log, announce, program.hint)
        owed = self._owed.__len__
        self._life = Lifeline(self, restarts, program.name, section.start_seconds, log, owed)
        self._next_key = 0
        self._ready: Ready | None = None
        self._channel: socket.socket | None = None
        self._frames = frames.Frames()

    def start(self, beat: Callable[[], None] = lambda: None) -> SamplerIdentity:
        self._life.start(beat)
        assert self._ready is not None
        ready = self._ready
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

    @property
    def loading(self) -> bool:
        return self._life.loading

    def room(self) -> int:
        return 0 if self.loading else max(0, self._room - len(self._owed))

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._owed[self._next_key] = request
            self._send(self._next_key, request)
            self._next_key += 1

    def wait(self, seconds: float) -> list[Completion | Refused]:
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, min(POLL_SECONDS, deadline - time.monotonic()))
            if self._life.loading:
                if self._life.advance(left):
                    for key, owed in list(self._owed.items()):  # all of it is asked for again
                        self._send(key, owed)
            else:
                ready: list[Completion | Refused] = []
                for message in self._messages(left):
                    if isinstance(message, Drawn | Rejected) and (request := self._owed.pop(message.key, None)):
                        ready.append(_answer(request, message))
                if ready:
                    return ready
                if self._life.dead():
                    self._life.lost("was ended")
            if time.monotonic() >= deadline:
                return []

    def close(self) -> None:
        self._life.close()

    @property
    def pid(self) -> int | None:
        """Of the worker."""
        return self._life.pid

    def launch(self) -> Kept:
        known = self._renderer.known
        self._frames = frames.Frames()
        self._channel, theirs = socket.socketpair()
        with theirs:
            command = [*self._program.command, str(theirs.fileno())]
            kept = Kept(
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
            self.drop()
        return kept

    def answers(self, seconds: float) -> bool:
        for message in self._messages(seconds):
            if isinstance(message, Unusable):
                self.close()
                raise SamplerUnusableError(message.problem)
            if isinstance(message, Ready):
                if message.warning:
                    self._announce(f"{self._program.name}: {message.warning}")
                self._ready = message
                return True
        return False

    def gone(self) -> bool:
        return self._channel is None

    def drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _send(self, key: int, request: Request) -> None:
        if self._channel is None or self._life.loading:
            return  # it is asked for when the worker is back
        try:
            frames.send(self._channel, Ask(key, request.seed, request.prompt_ids))
        except OSError:
            self.drop()

    def _messages(self, seconds: float) -> list[FromWorker]:
        """What has come, waiting ``seconds`` at most for something."""
        if self._channel is None or not select.select([self._channel], [], [], seconds)[0]:
            return []
        try:
            data = self._channel.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self.drop()
            return []
        try:
            return [msgspec.msgpack.decode(body, type=FromWorker) for body in self._frames.feed(data)]
        except (frames.FrameError, msgspec.DecodeError) as error:
            self._announce(f"the {self._program.name} said something that is no message ({error}); it is ended")
            self.drop()
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
