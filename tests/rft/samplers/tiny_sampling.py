"""A tiny model to sample from, and requests for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rft.config import SamplerSection, SamplingSection
from rft.samplers.renderer import prompt_renderer
from rft.samplers.sampler import Completion, Refused, Request, Sampler
from rft.seeds import sample_seed
from trainer.data.messages import Message

TINY = "random:2x64"
CAP_SECONDS = 600.0
"""Generous: tests wait for conditions, machines are slow."""
QUESTIONS = ("Name a colour.", "What is seven times eight, and why?", "Write a line about the sea.")


def tiny_section(**changes: object) -> SamplerSection:
    values: dict[str, object] = {"model": TINY, "device": "cpu", "max_num_seqs": 4, "max_model_len": 256, **changes}
    return SamplerSection.model_validate(values)


def requests_for(section: SamplerSection, each: int, questions: Sequence[str] = QUESTIONS) -> list[Request]:
    """``each`` samples of every question, with the seeds of a job."""
    renderer = prompt_renderer(section)
    found = []
    for number, question in enumerate(questions):
        messages = (Message("user", question),)
        ids = renderer.ids(messages) if renderer is not None else ()
        task = f"q/{number}"
        found += [Request(task, index, sample_seed(0, task, index), ids, messages) for index in range(each)]
    return found


def sample_all(
    sampler: Sampler, requests: Sequence[Request], after: Callable[[int], None] = lambda done: None
) -> list[Completion | Refused]:
    """Everything that ``requests`` give; ``after`` is told each time how many there are."""
    left, found = list(requests), list[Completion | Refused]()
    deadline = time.monotonic() + CAP_SECONDS
    while len(found) < len(requests):
        assert time.monotonic() < deadline, f"{len(found)} of {len(requests)} came"
        room = sampler.room()
        sampler.submit(left[:room])
        del left[:room]
        found += sampler.wait(0.5)
        after(len(found))
    return found


def by_sample(found: Sequence[Completion | Refused]) -> dict[tuple[str, int, int], object]:
    """What was drawn, by sample; fails when one came twice."""
    drawn = {(one.task_id, one.index, one.seed): _content(one) for one in found}
    assert len(drawn) == len(found), "a sample came twice"
    return drawn


def _content(one: Completion | Refused) -> object:
    return one.problem if isinstance(one, Refused) else (one.text, one.token_ids, one.logprobs, one.finish)


def sampling(**changes: object) -> SamplingSection:
    return SamplingSection.model_validate({"max_new_tokens": 24, **changes})
