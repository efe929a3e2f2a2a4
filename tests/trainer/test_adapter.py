"""The adapter in fp32 on an NF4 base, and what it is once it has been saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.nn import Linear4bit
from peft import PeftModel
from tiny_runs import Attempt, NotTrained, Tiny, distance
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import trainer.model
from trainer.adapter import open_adapter
from trainer.base_model import load_tokenizer, locate
from trainer.config import LoraSection, ModelSection
from trainer.errors import CheckpointCorruptError, CheckpointIncompatibleError
from trainer.model import add_adapter, load_base, trainable_parameters
from trainer.run import make_renderer

CPU = torch.device("cpu")


def nf4_base() -> PreTrainedModel:
    return load_base(locate("random:1x64", None), ModelSection(base="random:1x64"), CPU, pytest.fail)


@pytest.fixture(scope="module")
def nf4_built(tiny: Tiny) -> Attempt:
    return tiny.run("nf4-built", {"model.quantization": "nf4"}, trainer_class=NotTrained)


# proves TRN-10: SFTTrainer rounds the adapter of a quantised model to bfloat16
def test_the_adapter_is_fp32_with_its_initial_values(nf4_built: Attempt) -> None:
    fresh = trainable_parameters(add_adapter(nf4_base(), LoraSection(r=4, lora_alpha=8.0, lora_dropout=0.0), 42))
    built = trainable_parameters(nf4_built.built.model)
    assert set(built) == set(fresh)
    for name, parameter in built.items():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, fresh[name]), name
    rounded = [not torch.equal(p, p.bfloat16().float()) for name, p in fresh.items() if "lora_A" in name]
    assert rounded and all(rounded), "these values would survive a rounding, the test could not see it"


# proves TRN-10
def test_every_linear_layer_but_the_head_is_nf4_with_double_quantisation(nf4_built: Attempt) -> None:
    linears = [module for module in nf4_built.built.model.modules() if isinstance(module, Linear4bit)]
    assert len(linears) == 7
    for linear in linears:
        assert linear.weight.quant_state.quant_type == "nf4"
        assert linear.weight.quant_state.nested
        assert linear.weight.dtype == torch.uint8
    head = nf4_built.built.model.get_base_model().get_output_embeddings()
    assert head.weight.is_floating_point() and not head.weight.requires_grad


# proves TRN-10, TRN-9 (double_quant): the cached base is the one that was quantised
@pytest.mark.parametrize("double_quant", [True, False])
def test_nf4_from_the_cache_equals_freshly_quantised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, double_quant: bool
) -> None:
    base, section = locate("random:1x64", None), ModelSection(base="random:1x64", double_quant=double_quant)
    monkeypatch.setattr(trainer.model, "cache_root", lambda: tmp_path)
    loaded_from: list[Path] = []
    original = trainer.model._from_pretrained

    def spy(base: Any, path: Path, options: Any) -> PreTrainedModel:
        loaded_from.append(path)
        return original(base, path, options)

    monkeypatch.setattr(trainer.model, "_from_pretrained", spy)
    fresh = load_base(base, section, CPU, pytest.fail)
    cached = load_base(base, section, CPU, pytest.fail)
    assert loaded_from[0] == base.path and loaded_from[1].is_relative_to(tmp_path)
    for model in (fresh, cached):
        linears = [module for module in model.modules() if isinstance(module, Linear4bit)]
        assert {linear.weight.quant_state.nested for linear in linears} == {double_quant}
    left, right = fresh.state_dict(), cached.state_dict()
    assert set(left) == set(right)
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype and torch.equal(tensor, right[name]), name


# proves TRN-12: an evaluation draws no random numbers, and does not make bitsandbytes repack the weights, as it
# otherwise does on processors with AVX512-BF16
def test_evaluations_do_not_change_the_steps_after_them(tiny: Tiny) -> None:
    changes = {"model.quantization": "nf4", "model.lora.lora_dropout": 0.1}
    evaluated = tiny.run("nf4-evaluated", {**changes, "eval.eval_on_start": True, "eval.eval_steps": 1})
    silent = tiny.run("nf4-silent", changes)
    assert len(evaluated.events("evaluation")) == 4 and len(silent.events("evaluation")) == 1
    assert evaluated.progress("grad_norm") == silent.progress("grad_norm")
    left, right = evaluated.adapter(3), silent.adapter(3)
    assert all(torch.equal(left[name], right[name]) for name in left)


# proves TRN-10
def test_dropout_is_active_in_training_and_off_in_evaluation(tiny: Tiny) -> None:
    with_dropout = tiny.run("dropout", {"model.lora.lora_dropout": 0.5})
    without = tiny.run("no-dropout", {"model.lora.lora_dropout": 0.0})
    # Before the first update the adapter adds nothing, so only its gradient feels the dropout.
    assert with_dropout.progress("loss")[0] == without.progress("loss")[0]
    assert with_dropout.progress("grad_norm")[0] != pytest.approx(without.progress("grad_norm")[0], rel=1e-3)
    assert distance(with_dropout.adapter(3), without.adapter(3)) > 0.01
    trainer = with_dropout.built
    loss = with_dropout.events("evaluation")[-1].data["eval_loss"]
    assert trainer.evaluate()["eval_loss"] == trainer.evaluate()["eval_loss"] == loss
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    assert trainer.evaluate()["eval_loss"] == loss


# --- once it is saved -----------------------------------------------------------------------------


# proves TRN-3: only transformers and peft are used here
def test_the_adapter_loads_with_plain_transformers_and_peft_and_changes_the_output(plain_run: Attempt) -> None:
    base = str(locate("random:1x64", None).path)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    ids = AutoTokenizer.from_pretrained(base)("Count 3 words.", return_tensors="pt").input_ids
    with torch.no_grad():
        before = model(ids).logits
        after = PeftModel.from_pretrained(model, str(plain_run.paths.checkpoint(5))).eval()(ids).logits
    assert float((after - before).abs().max() / before.std()) > 0.01


# proves TRN-3
def test_the_template_travels_with_the_adapter_and_another_one_is_refused(plain_run: Attempt, tiny: Tiny) -> None:
    checkpoint = plain_run.paths.checkpoint(5)
    base = locate("random:1x64", None)
    tokenizer = load_tokenizer(base)
    renderer = make_renderer(tiny.sections(), base, tokenizer)
    written = json.loads((checkpoint / "template.json").read_text())
    assert written["template_hash"] == renderer.template_hash
    assert (checkpoint / "chat_template.jinja").read_text() == renderer.chat_template

    model = AutoModelForCausalLM.from_pretrained(str(base.path), dtype=torch.float32)
    other = make_renderer(tiny.sections({"model.chat_template_kwargs": {"today": "Monday"}}), base, tokenizer)
    with pytest.raises(CheckpointIncompatibleError, match=renderer.template_hash[:16]):
        open_adapter(model, checkpoint, other)
    opened = open_adapter(model, checkpoint, renderer)
    assert not opened.training
    for name, tensor in plain_run.adapter(5).items():
        assert torch.equal(opened.state_dict()[name.replace(".weight", ".default.weight")], tensor)


def test_an_adapter_that_does_not_say_its_template_is_refused(tmp_path: Path, tiny: Tiny) -> None:
    base = locate("random:1x64", None)
    renderer = make_renderer(tiny.sections(), base, load_tokenizer(base))
    (tmp_path / "template.json").write_text("{")
    with pytest.raises(CheckpointCorruptError, match=r"template\.json"):
        open_adapter(AutoModelForCausalLM.from_pretrained(str(base.path)), tmp_path, renderer)
