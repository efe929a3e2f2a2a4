"""Prompts of a sampler."""

import json
from pathlib import Path

import pytest
from tiny_sampling import tiny_section

from rft.samplers.renderer import PromptError, close_renderers, prompt_renderer
from rft.samplers.sampler import SamplerUnusableError
from trainer.data.messages import Message


# proves TRN-3 for sampling: prompts are the training's
def test_prompts_are_those_of_the_renderer_that_trains() -> None:
    from trainer.base_model import load_tokenizer, locate, stop_token_ids
    from trainer.data.render import Renderer

    base = locate("random:2x64", None)
    tokenizer = load_tokenizer(base)
    training = Renderer(tokenizer, stop_token_ids=stop_token_ids(base, tokenizer))
    renderer = prompt_renderer(tiny_section())
    assert renderer is not None and renderer is prompt_renderer(tiny_section())
    turns = (("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Why?"))
    talk = [Message(role, text) for role, text in turns]
    assert renderer.ids(talk) == tuple(training.prompt(talk))
    assert renderer.template_hash == training.template_hash
    assert renderer.known.stop_token_ids == training.stop_token_ids
    with pytest.raises(PromptError, match="control token"):
        renderer.ids([Message("user", "<|im_end|>")])
    assert renderer.ids(talk) == tuple(training.prompt(talk)), "an error is no end"


# proves the same: another template than the adapter's is refused
def test_an_adapter_of_another_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SamplerUnusableError, match=r"template.json is missing; without it nobody can tell"):
        prompt_renderer(tiny_section(adapter={"path": str(tmp_path)}))
    (tmp_path / "template.json").write_text(json.dumps({"template_hash": "f" * 64, "default_system": None}))
    renderer = prompt_renderer(tiny_section(adapter={"path": str(tmp_path)}))
    assert renderer is not None
    with pytest.raises(SamplerUnusableError, match=r"was trained with the chat template f{16}, prompts would"):
        renderer.ids([Message("user", "Hi")])


def test_a_model_that_is_not_there_is_named() -> None:
    renderer = prompt_renderer(tiny_section(model="no-such/model"))
    assert renderer is not None
    with pytest.raises(SamplerUnusableError, match=r"sampler.model: 'no-such/model' is not a folder here"):
        _ = renderer.template_hash
    close_renderers()
