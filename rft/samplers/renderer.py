"""Prompts as token ids, by the renderer that trains: asked from a job process that holds no torch."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rft.config import SamplerSection
from rft.samplers import frames
from rft.samplers.sampler import SamplerLostError, SamplerUnusableError
from trainer.base_names import is_local
from trainer.data.messages import Message
from trainer.residual_file import half_problem

TEMPLATE_TEXT = "chat_template.jinja"
TEMPLATE_FILE = "template.json"
"""Beside every adapter of ours: what its prompts were written with (:meth:`trainer.data.render.Renderer.describe`)."""
_Answer = TypeVar("_Answer")


class RenderSetup(msgspec.Struct, frozen=True):
    """First message to the worker."""

    model: str
    revision: str | None
    local: bool
    chat_template: str | None
    chat_template_kwargs: dict[str, bool | int | str]
    default_system: str | None


class Known(msgspec.Struct, frozen=True, tag="known"):
    """What the renderer is, and where the model lies. ``probe`` is a conversation as roles and texts, ``probe_ids`` its
    prompt."""

    template_hash: str
    chat_template: str
    stop_token_ids: tuple[int, ...]
    model_path: str
    revision: str
    probe: tuple[tuple[str, str], ...]
    probe_ids: tuple[int, ...]


class RenderProblem(msgspec.Struct, frozen=True, tag="problem"):
    problem: str


class Prompt(msgspec.Struct, frozen=True):
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]


class Unrenderable(msgspec.Struct, frozen=True, tag="unrenderable"):
    problem: str


class PromptError(Exception):
    """A conversation that the template cannot render faithfully; one sentence."""


class AdapterTemplate(msgspec.Struct, frozen=True):
    """What an adapter's folder says of its prompts."""

    template_hash: str
    default_system: str | None = None
    chat_template_kwargs: dict[str, bool | int | str] = {}


class PromptRenderer:
    """One renderer in a process of its own, started at once and waited for when it is first needed.

    May be used from several threads. Its process ends with this one.
    """

    def __init__(self, setup: RenderSetup, adapter: tuple[Path, AdapterTemplate] | None) -> None:
        self._lock = threading.Lock()
        self._adapter = adapter
        self._channel, theirs = socket.socketpair()
        self._frames = self._replies()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close(); a pipe that nobody empties would block it one day
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rft.samplers.render_worker", str(theirs.fileno())],
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"},
                stdin=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        with contextlib.suppress(OSError):  # it is dead: whoever waits for it says why
            frames.send(self._channel, setup)

    @functools.cached_property
    def known(self) -> Known:
        """Raises SamplerUnusableError (no such model, a template that does not fit the adapter), SamplerLostError."""
        with self._lock:
            answer = msgspec.msgpack.decode(self._next(), type=Known | RenderProblem)
        if isinstance(answer, RenderProblem):
            raise SamplerUnusableError(answer.problem.replace("model.base:", "sampler.model:"))
        if self._adapter is not None:
            folder, template = self._adapter
            if template.template_hash != answer.template_hash:
                raise SamplerUnusableError(
                    f"sampler.adapter: {folder} was trained with the chat template {template.template_hash[:16]}, "
                    f"prompts would be written with {answer.template_hash[:16]}. Set sampler.chat_template to "
                    f"{folder / 'chat_template.jinja'} and sampler.chat_template_kwargs to what {TEMPLATE_FILE} beside "
                    "it says, and sampler.model to the base that it was trained on."
                )
        return answer

    @property
    def template_hash(self) -> str:
        """Raises as :attr:`known` does."""
        return self.known.template_hash

    def ids(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> tuple[int, ...]:
        """The prompt of a conversation that ends with a user's or a tool's turn, the assistant's header at its end.

        Raises PromptError, and what :attr:`known` raises.
        """
        _ = self.known
        with self._lock:
            prompt = Prompt(tuple(messages), tuple(dict(tool) for tool in tools))
            try:
                frames.send(self._channel, prompt)
            except OSError:
                raise self._gone() from None
            answer = msgspec.msgpack.decode(self._next(), type=Unrenderable | list[int])
        if isinstance(answer, Unrenderable):
            raise PromptError(answer.problem)
        return tuple(answer)

    def close(self) -> None:
        """End its process; may be called twice."""
        self._channel.close()
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def _replies(self) -> Iterator[bytes]:
        yield from frames.receive(self._channel)

    def _next(self) -> bytes:
        try:
            body = next(self._frames, None)
        except (OSError, ValueError):
            body = None
        if body is None:
            raise self._gone()
        return body

    def _gone(self) -> SamplerLostError:
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return SamplerLostError(f"The process that renders prompts {how}{': ' + said[-1] if said else ''}.")


def read_adapter_template(folder: Path) -> AdapterTemplate:
    """Raises SamplerUnusableError when the adapter does not say how its prompts must look, or is only a part of one."""
    if problem := half_problem(folder):
        raise SamplerUnusableError(f"sampler.adapter: {problem}")
    path = folder / TEMPLATE_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=AdapterTemplate)
    except (OSError, msgspec.DecodeError) as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else f"is unreadable ({error})"
        raise SamplerUnusableError(
            f"sampler.adapter: {path} {reason}; without it nobody can tell how this adapter's prompts must look. Name "
            "the folder of a checkpoint as `mens-sup run` writes it."
        ) from None


_shared: dict[bytes, PromptRenderer] = {}
_shared_lock = threading.Lock()


def prompt_renderer(section: SamplerSection) -> PromptRenderer | None:
    """The renderer of a sampler's prompts, the same one for equal sections; None for ``type: openai``, whose server
    renders by itself.

    With an adapter its system prompt for conversations without one is that of the training. Raises
    SamplerUnusableError; what needs the tokenizer is found out by the first use.
    """
    if section.type == "openai":
        return None
    adapter = None
    chat_template, variables = section.chat_template, section.chat_template_kwargs
    if section.template_of is not None:
        folder = Path(section.template_of)
        adapter = (folder, read_adapter_template(folder))
        chat_template = chat_template or str(folder / TEMPLATE_TEXT)
        variables = variables or adapter[1].chat_template_kwargs
    if section.adapter is not None:  # whose prompts must be its own, whatever else is said
        folder = Path(section.adapter.path)
        adapter = (folder, read_adapter_template(folder))
    setup = RenderSetup(
        model=section.model,
        revision=section.revision,
        local=is_local(section.model),
        chat_template=chat_template,
        chat_template_kwargs=variables,
        default_system=adapter[1].default_system if adapter else None,
    )
    key = msgspec.json.encode([setup, str(adapter)], order="sorted")
    with _shared_lock:
        if key not in _shared:
            _shared[key] = PromptRenderer(setup, adapter)
        return _shared[key]


def close_renderers() -> None:
    """End the processes of all renderers; the next use starts new ones."""
    with _shared_lock:
        for renderer in _shared.values():
            renderer.close()
        _shared.clear()
