"""Renders prompts with the one renderer, in a process of its own: tokenizers come with torch.

``python -P -m rft.samplers.render_worker FD``; speaks :mod:`.frames` on that socket and ends with the other side.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import msgspec

from rft.samplers import frames
from rft.samplers.renderer import Known, Prompt, RenderProblem, RenderSetup, Unrenderable
from trainer.data.fidelity import RenderError
from trainer.data.messages import Message
from trainer.data.render import Renderer
from trainer.errors import TrainerError, one_paragraph

PROBE = (
    ("user", "Write a Python function that returns the sum of the squares of the even numbers in a list."),
    ("assistant", "def total(numbers):\n    return sum(n * n for n in numbers if n % 2 == 0)"),
    ("user", "Now explain in one sentence what it does, naïvely put."),
)
"""What every renderer, server and adapter is tried on."""


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        messages = frames.receive(channel)
        setup = msgspec.msgpack.decode(next(messages), type=RenderSetup)
        if setup.local:
            os.environ["HF_HUB_OFFLINE"] = "1"
        try:
            renderer, known = _open(setup)
        except (TrainerError, OSError) as error:
            frames.send(channel, RenderProblem(one_paragraph(error)))
            return
        frames.send(channel, known)
        for body in messages:
            prompt = msgspec.msgpack.decode(body, type=Prompt)
            try:
                ids = renderer.prompt(prompt.messages, prompt.tools)
            except RenderError as error:
                frames.send(channel, Unrenderable(error.problem))
            else:
                frames.send(channel, ids)


def _open(setup: RenderSetup) -> tuple[Renderer, Known]:
    from trainer.base_model import load_tokenizer, locate, stop_token_ids
    base = locate(setup.model, setup.revision)
    tokenizer = load_tokenizer(base)
    renderer = Renderer(
        tokenizer,
        chat_template=Path(setup.chat_template).read_text(encoding="utf-8") if setup.chat_template else None,
        template_kwargs=setup.chat_template_kwargs,
        default_system=setup.default_system,
        stop_token_ids=stop_token_ids(base, tokenizer),
    )
    probe = [Message(role, text) for role, text in PROBE]
    if setup.default_system is not None:
        probe.insert(0, Message("system", setup.default_system))
    return renderer, Known(
        template_hash=renderer.template_hash,
        chat_template=renderer.chat_template,
        stop_token_ids=renderer.stop_token_ids,
        model_path=str(base.path),
        revision=base.revision,
        probe=tuple((message.role, message.content) for message in probe),
        probe_ids=tuple(renderer.prompt(probe)),
    )


if __name__ == "__main__":
    main()
