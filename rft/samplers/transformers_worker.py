"""The transformers sampler's process: ``python -P -m rft.samplers.transformers_worker FD``.

Speaks :mod:`.frames` on that socket and ends with the other side, also in the middle of a computation. A row that has
finished is given the next request at once; nobody else's text is computed again.
"""

from __future__ import annotations

import importlib.metadata
import os
import queue
import socket
import sys
import threading
import time
from dataclasses import dataclass, field

import msgspec
import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from rft.config import SamplerSection
from rft.samplers import frames
from rft.samplers.draw import draw, uniform
from rft.samplers.effect import largest_difference
from rft.samplers.rowwise import ATTENTION, Rows, Text
from rft.samplers.sampler import Sampling
from rft.samplers.wire import Ask, Drawn, Ready, Rejected, Setup, ToWorker, Unusable
from trainer.base_model import BaseModel, load_tokenizer, locate
from trainer.config import ModelSection
from trainer.errors import ConfigurationError, TrainerError, one_paragraph
from trainer.model import choose_device, compute_dtype, load_base
from trainer.numerics import settle_vector_maths
from trainer.precision import keep_norms_in_float32

SELF_CHECK_TOKENS = 6
SELF_CHECK_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 0.5}
"""In logits, between this way of computing and the model's own; an architecture that is misunderstood is far off."""


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    inbox: queue.SimpleQueue[Setup | Ask] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, inbox), daemon=True).start()
    setup = inbox.get()
    assert isinstance(setup, Setup), "the first message is the setup"
    warnings: list[str] = []
    try:
        worker, ready = _open(setup, channel, inbox, warnings)
    except TrainerError as error:
        frames.send(channel, Unusable(one_paragraph(error).replace("model.base:", "sampler.model:")))
        return
    frames.send(channel, ready)
    worker.run()


def _listen(channel: socket.socket, inbox: queue.SimpleQueue[Setup | Ask]) -> None:
    try:
        for body in frames.receive(channel):
            inbox.put(msgspec.msgpack.decode(body, type=ToWorker))
    finally:
        os._exit(0)  # whoever asked is gone


def _open(
    setup: Setup, channel: socket.socket, inbox: queue.SimpleQueue[Setup | Ask], warnings: list[str]
) -> tuple[_Worker, Ready]:
    settle_vector_maths()
    transformers_logging.disable_progress_bar()
    wanted = SamplerSection.model_validate(setup.section)
    device = choose_device(wanted.device)
    options = ModelSection(
        base=wanted.model, revision=wanted.revision, quantization=wanted.quantization, dtype=wanted.dtype
    )
    dtype = compute_dtype(options, device)
    base = locate(wanted.model, wanted.revision)
    tokenizer = load_tokenizer(base)
    model = load_base(base, options, device, warnings.append)
    keep_norms_in_float32(model, model.get_input_embeddings().weight.dtype)
    _check_window(wanted, int(getattr(model.config, "max_position_embeddings", 0) or 0))
    if wanted.adapter is not None:
        try:
            model = PeftModel.from_pretrained(model, wanted.adapter.path)
        except (ValueError, RuntimeError, OSError, KeyError) as error:
            reason = " ".join(str(error).split())[:400]
            raise ConfigurationError(
                f"sampler.adapter: {wanted.adapter.path} cannot be put on {wanted.model}: {reason}"
            ) from error
    model.eval()
    torch.set_grad_enabled(False)
    narrow = dtype if dtype is torch.bfloat16 else None
    rows = Rows(model, wanted.max_num_seqs, device, narrow)
    _check_arithmetic(model, rows, setup.probe_ids, dtype, base)
    effect, noise = _adapter_effect(model, rows, setup.probe_ids) if wanted.adapter is not None else (None, None)
    if not _every_row_alike(rows, setup.probe_ids):
        warnings.append(
            "this machine's matrix products give other bits in other rows, so a sample that is drawn again after a "
            "restart may differ from what it would have been"
        )
    ready = Ready(
        engine=f"transformers {importlib.metadata.version('transformers')}, torch {torch.__version__}",
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        dtype=str(dtype).removeprefix("torch."),
        adapter_effect=effect,
        adapter_noise=noise,
        warning="; ".join(warnings),
    )
    return _Worker(setup, wanted, rows, tokenizer, channel, inbox), ready


def _check_window(wanted: SamplerSection, longest: int) -> None:
    if 0 < longest < wanted.max_model_len:
        raise ConfigurationError(
            f"sampler.max_model_len: {wanted.model} can look at {longest} tokens, {wanted.max_model_len} were asked "
            f"for. Set it to {longest} or less."
        )


def _check_arithmetic(
    model: PreTrainedModel, rows: Rows, probe: tuple[int, ...], dtype: torch.dtype, base: BaseModel
) -> None:
    """Continue a probe both ways. Raises ConfigurationError for architectures that this sampler doesn't know."""
    inner = model.get_base_model() if isinstance(model, PeftModel) else model
    told = [int(token) for token in probe[:SELF_CHECK_TOKENS]]
    with torch.inference_mode(), rows._autocasting():
        expected = model(input_ids=torch.tensor([[*probe, *told]], device=rows.device), use_cache=False).logits[0]
    expected = expected[len(probe) - 1 :].float()
    problem = None
    inner.set_attn_implementation(ATTENTION)
    try:
        text, first = rows.begin(probe, len(told))
        found = [first[0].float()]
        for token in told:
            text.token = token
            found.append(rows.step([text, *[None] * (rows.count - 1)])[0].float())
        off = float((torch.stack(found) - expected).abs().max())
        if not off <= SELF_CHECK_TOLERANCE[dtype]:
            problem = f"its logits are off by {off:.3g}"
    except (RuntimeError, AttributeError, KeyError, TypeError, IndexError) as error:
        problem = " ".join(str(error).split())[:200]
    if problem is not None:
        raise ConfigurationError(
            f"sampler.model: {base.name} ({type(inner).__name__}) cannot be continued row by row as the transformers "
            f"sampler does ({problem}); models with recurrent or unusual attention layers cannot. Use type: vllm."
        )


def _adapter_effect(model: PeftModel, rows: Rows, probe: tuple[int, ...]) -> tuple[float, float]:
    with_it = rows.logprobs(probe).tolist()
    with model.disable_adapter():
        without, again = rows.logprobs(probe).tolist(), rows.logprobs(probe).tolist()
    return largest_difference(with_it, without), largest_difference(without, again)


def _every_row_alike(rows: Rows, probe: tuple[int, ...]) -> bool:
    """Does the same text get the same bits in every row, and with idle rows around it?"""
    def fresh() -> Text:
        text, _ = rows.begin(probe, 1)
        text.token = probe[0]
        return text

    alone = rows.step([fresh(), *[None] * (rows.count - 1)])[0]
    together = rows.step([fresh() for _ in range(rows.count)])
    return all(torch.equal(logits, alone) for logits in together)


@dataclass
class _Row:
    ask: Ask
    text: Text
    room: int
    began: float
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class _Worker:
    """The rows and who is in them."""

    def __init__(
        self,
        setup: Setup,
        wanted: SamplerSection,
        rows: Rows,
        tokenizer: PreTrainedTokenizerBase,
        channel: socket.socket,
        inbox: queue.SimpleQueue[Setup | Ask],
    ) -> None:
        self._sampling: Sampling = setup.sampling
        self._keep_logprobs = setup.keep_logprobs
        self._stop_ids = frozenset(setup.stop_token_ids)
        self._longest = wanted.max_model_len
        self._rows = rows
        self._tokenizer = tokenizer
        self._channel = channel
        self._inbox = inbox
        self._busy: list[_Row | None] = [None] * rows.count

    def run(self) -> None:
        """Until the other side closes, which ends the process."""
        while True:
            self._fill()
            logits = self._rows.step([row.text if row else None for row in self._busy])
            places = [place for place, row in enumerate(self._busy) if row is not None]
            self._take([row for row in self._busy if row is not None], logits[places])

    def _fill(self) -> None:
        """Give every idle row a request; waits while there is nothing at all to do."""
        for place in range(len(self._busy)):
            while self._busy[place] is None:
                if self._inbox.empty() and any(self._busy):
                    break
                ask = self._inbox.get()
                assert isinstance(ask, Ask)
                self._begin(ask, place)

    def _begin(self, ask: Ask, place: int) -> None:
        room = min(self._sampling.max_new_tokens, self._longest - len(ask.prompt_ids))
        if room < 1 or not ask.prompt_ids:
            problem = (
                f"its prompt has {len(ask.prompt_ids)} tokens, sampler.max_model_len leaves no room for an answer"
                if ask.prompt_ids
                else "its prompt is empty"
            )
            frames.send(self._channel, Rejected(ask.key, problem))
            return
        began = time.monotonic()
        text, logits = self._rows.begin(ask.prompt_ids, room)
        row = _Row(ask, text, room, began)
        self._busy[place] = row
        self._take([row], logits)

    def _take(self, rows: list[_Row], logits: torch.Tensor) -> None:
        """Draw each row's next token, and give back what is finished."""
        uniforms = [uniform(row.ask.seed, len(row.ids)) for row in rows]
        tokens, logprobs = draw(logits, uniforms, self._sampling)
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)
            row.text.token = token
            if (said := self._finished(row)) is not None:
                self._busy[self._busy.index(row)] = None
                self._give(row, *said)

    def _finished(self, row: _Row) -> tuple[str, str] | None:
        """Text and finish of an answer that is complete."""
        if row.ids[-1] in self._stop_ids:
            return self._decode(row.ids[:-1]), "stop"
        if self._sampling.stop and self._said_stop(row.ids):
            text = self._decode(row.ids)
            return text[: min(place for stop in self._sampling.stop if (place := text.find(stop)) >= 0)], "stop"
        if len(row.ids) == row.room:
            return self._decode(row.ids), "length"
        return None

    def _said_stop(self, ids: list[int]) -> bool:
        """Does the text hold a stop text? A token is a byte at least, so one just completed is in the last few."""
        if not any(stop in self._decode(ids[-len(stop.encode()) - 4 :]) for stop in self._sampling.stop):
            return False
        text = self._decode(ids)
        return any(stop in text for stop in self._sampling.stop)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def _give(self, row: _Row, text: str, finish: str) -> None:
        kept = tuple(row.logprobs) if self._keep_logprobs else None
        seconds = time.monotonic() - row.began
        frames.send(self._channel, Drawn(row.ask.key, text, tuple(row.ids), kept, finish, seconds))


if __name__ == "__main__":
    main()
