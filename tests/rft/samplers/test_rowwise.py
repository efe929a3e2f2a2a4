"""Continuing many texts at once."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from transformers import PreTrainedModel

from rft.samplers.rowwise import ATTENTION, Rows, Text
from trainer.base_model import locate
from trainer.config import ModelSection
from trainer.model import load_base

PROMPTS = [tuple(range(100, 100 + length)) for length in (5, 17, 40, 3)]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    section = ModelSection(base="random:2x64", quantization="none", dtype="float32")
    return load_base(locate("random:2x64", None), section, torch.device("cpu"), print).eval()


@pytest.fixture(scope="module")
def rows(model: PreTrainedModel) -> Rows:
    model.set_attn_implementation(ATTENTION)
    return Rows(model, 4, torch.device("cpu"))


def continued(rows: Rows, place: int, prompt: tuple[int, ...], tokens: list[int], others: list[Text]) -> torch.Tensor:
    """Logits after each of ``tokens`` behind ``prompt``, in row ``place`` between ``others``."""
    text, first = rows.begin(prompt, len(tokens))
    found = [first[0]]
    for token in tokens:
        text.token = token
        beside = list(others)
        found.append(rows.step([*beside[:place], text, *beside[place : rows.count - 1]])[place])
    return torch.stack(found)


def fillers(rows: Rows, number: int) -> list[Text | None]:
    texts = [rows.begin(PROMPTS[index % len(PROMPTS)], 64)[0] for index in range(number)]
    for index, text in enumerate(texts):
        text.token = 7 + index
    return [*texts, *[None] * (rows.count - 1 - number)]


# proves RFT-1: the distribution sampled from is the model's
@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_are_the_models_own(rows: Rows, model: PreTrainedModel, prompt: tuple[int, ...]) -> None:
    tokens = [11, 222, 3333, 44, 5]
    found = continued(rows, 1, prompt, tokens, fillers(rows, 2))
    model.set_attn_implementation("sdpa")
    try:
        with torch.inference_mode():
            whole = model(input_ids=torch.tensor([[*prompt, *tokens]]), use_cache=False).logits[0]
    finally:
        model.set_attn_implementation(ATTENTION)
    assert torch.allclose(found, whole[len(prompt) - 1 :], atol=1e-5)


# proves RFT-4: a sample drawn again in other company is the same to the last bit
def test_bits_do_not_depend_on_the_row_or_on_who_is_beside(rows: Rows) -> None:
    tokens = [9, 99, 999, 9999]
    alone = continued(rows, 0, PROMPTS[1], tokens, fillers(rows, 0))
    for place in range(rows.count):
        for number in range(rows.count):
            assert torch.equal(continued(rows, place, PROMPTS[1], tokens, fillers(rows, number)), alone)


def test_a_prompt_is_read_once_for_samples_that_follow_each_other(rows: Rows) -> None:
    rows.forget_prompts()
    reads = []
    original = rows._read
    rows._read = lambda prompt: reads.append(prompt) or original(prompt)  # type: ignore[method-assign]
    try:
        for prompt in (PROMPTS[0], PROMPTS[0], PROMPTS[1], PROMPTS[0]):
            rows.begin(prompt, 4)
    finally:
        rows._read = original  # type: ignore[method-assign]
    assert reads == [PROMPTS[0], PROMPTS[1]]


def test_texts_with_the_same_prompt_keep_memories_of_their_own(rows: Rows) -> None:
    expected = continued(rows, 0, PROMPTS[0], [1, 2, 3], fillers(rows, 0))
    first, _ = rows.begin(PROMPTS[0], 3)
    second, _ = rows.begin(PROMPTS[0], 3)
    found = []
    for one, two in ((1, 40), (2, 50), (3, 60)):
        first.token, second.token = one, two
        found.append(rows.step([first, second, None, None])[0])
    assert torch.equal(torch.stack(found), expected[1:])
