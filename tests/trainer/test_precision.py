"""What is bfloat16 in a bfloat16 run and what is not, read from the step itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tiny_runs import Attempt, Tiny, distance
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

from trainer import head_loss, precision
from trainer.config import LoraSection
from trainer.errors import ConfigurationError
from trainer.model import add_adapter, trainable_parameters
from trainer.planner.live import LiveBytes
from trainer.precision import keep_norms_in_float32, narrow, norms
from trainer.sft import SupervisedSFTTrainer

BF16: dict[str, Any] = {"model.dtype": "bfloat16", "train.max_steps": 1, "train.gradient_accumulation_steps": 1}
STATISTICS = ("mean", "rsqrt", "var_mean", "native_layer_norm")
LOSS = ("logsumexp", "exp_")


class Operators(TorchDispatchMode):
    """Notes the types of the floating-point tensors that each operator gets."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, set[torch.dtype]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [value for value in args if isinstance(value, torch.Tensor) and value.is_floating_point()]
        self.seen.setdefault(func.overloadpacket.__name__, set()).update(tensor.dtype for tensor in tensors)
        return func(*args, **(kwargs or {}))


class Watched(SupervisedSFTTrainer):
    """One micro-batch looked at from inside: operators, outputs of the layers, tensors kept for the backward pass."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        self.layer_outputs: set[torch.dtype] = set()
        self.kept: list[torch.Tensor] = []
        layers = [module for name, module in model.named_modules() if name.endswith(("mlp", "self_attn"))]

        def note_output(module: Any, args: Any, output: Any) -> None:
            self.layer_outputs.add((output[0] if isinstance(output, tuple) else output).dtype)

        hooks = [layer.register_forward_hook(note_output) for layer in layers]
        saved: dict[int, torch.Tensor] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            saved[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        owned = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        with Operators() as operators, torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = super().training_step(model, inputs, num_items_in_batch)
        self.operators = operators.seen
        self.loss_dtype = loss.dtype
        self.kept = [tensor for place, tensor in saved.items() if place not in owned]
        for hook in hooks:
            hook.remove()
        return loss


@pytest.fixture(scope="module", params=["nf4", "none"])
def watched(request: pytest.FixtureRequest, tiny: Tiny) -> Any:
    changes = {**BF16, "model.quantization": request.param, "model.lora.lora_dropout": 0.1}
    return tiny.run(f"watched-{request.param}", changes, trainer_class=Watched).built


# proves TRN-11: activations, and what the head multiplies, are bfloat16
def test_activations_are_bfloat16(watched: Any) -> None:
    assert watched.layer_outputs == {torch.bfloat16}
    assert watched.operators["_scaled_dot_product_flash_attention_for_cpu"] == {torch.bfloat16}
    assert watched.operators["bernoulli_"] == {torch.bfloat16}, "the adapter's dropout has a widened input"


# proves TRN-11: norms and loss are float32
def test_norms_and_loss_are_float32(watched: Any) -> None:
    for name in (*STATISTICS, *LOSS):
        assert watched.operators.get(name, {torch.float32}) == {torch.float32}, name
    assert watched.operators["rsqrt"] and watched.operators["logsumexp"], "none was seen"
    assert watched.loss_dtype == torch.float32


# proves TRN-10, TRN-11: the adapter, its gradients and moments are float32, embeddings and head bfloat16 and one tensor
def test_only_what_is_trained_is_held_in_float32(watched: Any) -> None:
    held = trainable_parameters(watched.model)
    assert {parameter.dtype for parameter in held.values()} == {torch.float32}
    moments = [state["exp_avg"].dtype for state in watched.optimizer.state.values()]
    assert set(moments) == {torch.float32} and len(moments) == len(held)
    base = watched.model.get_base_model()
    head, embedding = base.get_output_embeddings().weight, base.get_input_embeddings().weight
    assert head is embedding and head.dtype == torch.bfloat16
    frozen = {parameter.dtype for name, parameter in watched.model.named_parameters() if name not in held}
    assert frozen <= {torch.bfloat16, torch.uint8}


# proves TRN-11: of what waits for the backward pass, only what the norms compute with is float32
def test_what_is_kept_for_the_backward_pass_is_narrow(watched: Any) -> None:
    by_type: dict[torch.dtype, int] = {}
    for tensor in watched.kept:
        by_type[tensor.dtype] = by_type.get(tensor.dtype, 0) + tensor.untyped_storage().nbytes()
    batch_by_hidden = max(tensor.numel() for tensor in watched.kept if tensor.dtype == torch.bfloat16) // 2
    wide = [tensor for tensor in watched.kept if tensor.dtype == torch.float32 and tensor.numel() >= batch_by_hidden]
    assert len(wide) <= 2 * 3, "each of the three norms keeps its input and what it made of it, at most"
    assert by_type[torch.bfloat16] > sum(size for dtype, size in by_type.items() if dtype.is_floating_point) / 2


# proves TRN-11: the same step in float32, to what bfloat16 can tell apart (8 bits: 0.4 % of each activation)
def test_the_loss_is_that_of_float32_within_half_a_percent(tiny: Tiny) -> None:
    losses = {
        dtype: tiny.run(f"loss-{dtype}", {**BF16, "model.dtype": dtype}).progress("loss")[0]
        for dtype in ("float32", "bfloat16")
    }
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=5e-3)


# --- norms ------------------------------------------------------------------------------------------

SHAPE = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 2}  # fmt: skip
CONVERTING: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, head_dim=16)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE)),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**SHAPE, pad_token_id=0)),
    "olmo2": lambda: Olmo2ForCausalLM(Olmo2Config(**SHAPE)),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**SHAPE, pad_token_id=0)),
}
LEFT_TO_US: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt_neox": lambda: GPTNeoXForCausalLM(
        GPTNeoXConfig(**{key: value for key, value in SHAPE.items() if key != "num_key_value_heads"})
    ),
    "stablelm": lambda: StableLmForCausalLM(StableLmConfig(**SHAPE)),
}


# proves TRN-11: transformers' own RMSNorms convert inside; they keep their narrow weights
@pytest.mark.parametrize("name", CONVERTING)
def test_norms_that_convert_themselves_are_left_alone(name: str) -> None:
    model = CONVERTING[name]().to(torch.bfloat16)
    found = dict(norms(model))
    assert len(found) >= 2
    assert {kind: narrow(norm, torch.bfloat16) for kind, norm in found.items()} == dict.fromkeys(found, False)
    assert keep_norms_in_float32(model, torch.bfloat16) == []
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


# proves TRN-11
@pytest.mark.parametrize("name", LEFT_TO_US)
def test_layer_norms_are_made_to_compute_in_float32(name: str) -> None:
    model = LEFT_TO_US[name]().to(torch.bfloat16)
    assert all(narrow(norm, torch.bfloat16) for _, norm in norms(model))
    before = step_operators(model)["native_layer_norm"]
    adapted = add_adapter(model, LoraSection(r=2), 0)
    after = step_operators(adapted)["native_layer_norm"]
    assert (before, after) == ({torch.bfloat16}, {torch.float32})


def step_operators(model: Any) -> dict[str, set[torch.dtype]]:
    tokens = torch.arange(8)[None]
    with Operators() as operators, torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(input_ids=tokens).logits
    assert output.dtype == torch.bfloat16
    return operators.seen


def test_a_float32_model_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "narrow", lambda *_: pytest.fail("nothing is to be looked at"))
    model = LEFT_TO_US["gpt_neox"]()
    adapted = add_adapter(model, LoraSection(r=2), 0)
    assert all(getattr(module, "cast_input_dtype_enabled", True) for module in adapted.modules())


# proves TRN-11: eager attention, read from its operators
def test_softmax_of_eager_attention_is_float32() -> None:
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, attn_implementation="eager")).to(torch.bfloat16)
    assert step_operators(model)["_softmax"] == {torch.float32}


# proves TRN-11: the fused kernel, by what comes out; a bfloat16 softmax is twice as far from the truth
def test_softmax_of_fused_attention_is_float32() -> None:
    torch.manual_seed(0)
    query, key, value = ((4 * torch.randn(1, 2, 256, 32)).bfloat16() for _ in range(3))
    ours = functional.scaled_dot_product_attention(query, key, value, scale=0.2).float()
    scores = query.float() @ key.float().transpose(2, 3) * 0.2
    exact = scores.softmax(-1) @ value.float()
    narrow_one = (scores.bfloat16().softmax(-1) @ value).float()
    assert (ours - exact).abs().mean() < 0.5 * (narrow_one - exact).abs().mean()


# proves TRN-11: the window's label count is not rounded to 8 bits on its way into a bfloat16 gradient
def test_the_scale_of_the_gradient_is_exact() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(1, 9, 16).bfloat16().requires_grad_()
    weight, labels = torch.randn(32, 16).bfloat16(), torch.randint(0, 32, (1, 9))
    gradients = []
    for scale in (1.0, 1 / 771):  # rounds by 0.3 %
        hidden.grad = None
        (head_loss.summed_token_loss(hidden, weight, labels) * scale).backward()  # type: ignore[no-untyped-call]
        assert hidden.grad is not None
        gradients.append(hidden.grad.float())
    expected = (gradients[0] / 771).bfloat16().float()
    assert torch.equal(gradients[1], expected)


def test_a_quantised_head_is_refused() -> None:
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False))
    model.lm_head.weight = torch.nn.Parameter(torch.zeros(8, 1, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(ConfigurationError, match=r"output head of llama is quantised \(torch.uint8\)"):
        head_loss.attach(model)


# --- activation checkpointing -----------------------------------------------------------------------


class Gradients(SupervisedSFTTrainer):
    """Keeps the gradients of the first step, and how many bytes of tensors its first micro-batch made at the most."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        live = LiveBytes()
        for parameter in model.parameters():
            live.add(parameter, "weights")
        with live, live.phase("step"):
            loss = super().training_step(model, inputs, num_items_in_batch)
        peak = live.phases["step"]
        self.peak_bytes = peak.total - peak.parts["weights"]
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        found = trainable_parameters(model)
        self.gradients = {name: p.grad.clone() for name, p in found.items() if p.grad is not None}
        return super()._get_grad_norm(model, grad_norm)


@pytest.fixture(scope="module")
def both_ways(tiny: Tiny) -> dict[bool, Attempt]:
    changes = {"model.base": "random:4x64", "model.lora.lora_dropout": 0.1, "train.max_steps": 1}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(head_loss, "SLICE_ELEMENTS", 1 << 18)  # the logits of five positions: layers are what counts
        return {
            on: tiny.run(f"recomputed-{on}", {**changes, "train.gradient_checkpointing": on}, trainer_class=Gradients)
            for on in (False, True)
        }


# proves TRN-11: with dropout, not one bit differs
def test_checkpointing_does_not_change_a_bit(both_ways: dict[bool, Attempt]) -> None:
    kept, recomputed = (both_ways[on].built.gradients for on in (False, True))  # type: ignore[attr-defined]
    assert kept.keys() == recomputed.keys() and len(kept) == 4 * 7 * 2
    assert all(torch.equal(kept[name], recomputed[name]) for name in kept)
    assert any(bool(gradient.any()) for gradient in kept.values())
    assert distance(both_ways[False].adapter(1), both_ways[True].adapter(1)) == 0


# proves TRN-11
def test_checkpointing_saves_memory(both_ways: dict[bool, Attempt]) -> None:
    trainer = both_ways[True].built
    assert trainer.args.gradient_checkpointing_kwargs == {"use_reentrant": False}
    kept, recomputed = (both_ways[on].built.peak_bytes for on in (False, True))  # type: ignore[attr-defined]
    print(f"peak of one micro-batch: {kept} bytes, recomputed {recomputed}")
    assert recomputed < 0.6 * kept


# --- the optimiser ----------------------------------------------------------------------------------


def eight_bit_states(trainer: SupervisedSFTTrainer) -> Iterator[dict[str, Any]]:
    for state in trainer.optimizer.state.values():
        if state["state1"].dtype == torch.uint8:
            yield state


# proves TRN-11: where bitsandbytes has the optimiser, it is the one that steps
@pytest.mark.parametrize("name", ["adamw_8bit", "paged_adamw_8bit"])
def test_the_eight_bit_optimiser_is_the_one_that_steps(tiny: Tiny, name: str) -> None:
    run = tiny.run(f"optimiser-{name}", {"train.optim": name, "model.lora.r": 64, "train.max_steps": 2})
    optimiser = run.built.optimizer.optimizer
    assert type(optimiser).__module__.startswith("bitsandbytes")
    assert optimiser.is_paged == name.startswith("paged")
    states = list(eight_bit_states(run.built))
    assert states and all(state["step"] == 2 and bool(state["absmax2"].any()) for state in states)
