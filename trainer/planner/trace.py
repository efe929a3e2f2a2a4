"""Trace the real training step of the real architecture without its weights and without a GPU.

The model is built on the meta device by the very functions that build the real one, then moved to fake tensors on the
cpu device, and one optimiser step and one evaluation batch run under :class:`trainer.planner.live.LiveBytes`. All
layers of one kind need the same memory, so two small depths are traced and every phase's peak is extrapolated to the
real one; the peak of the run is that of the phase which needs most.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from bitsandbytes import functional as bnb_functional
from bitsandbytes.nn import Params4bit
from peft import PeftModel
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.quantizers.auto import AutoHfQuantizer

from trainer import head_loss
from trainer.config import SftSections
from trainer.errors import TrainerError
from trainer.model import (
    add_adapter,
    compute_dtype,
    keep_weight_layout,
    quantization_config,
    trainable_parameters,
)
from trainer.planner.live import LiveBytes
from trainer.planner.predict import padded
from trainer.planner.shapes import UnknownShapeError

DEPTHS = (2, 4)
LIKE_LAYERS = 0.01
"""Share by which the extrapolated number of parameters may be off."""
WEIGHTS, EMBEDDINGS, ADAPTER = "weights", "embeddings", "adapter"
GRADIENTS, OPTIMISER, ACTIVATIONS = "gradients", "optimizer", "activations"
EIGHT_BIT_BLOCK = 256
"""Entries of a moment that share one float32 scale in bitsandbytes' 8-bit optimisers."""
EIGHT_BIT_FROM = 4096
"""Tensors with fewer entries keep float32 moments there."""


@dataclass(frozen=True)
class Traced:
    """Bytes at the peak of every phase, in all and by part, and what is held all the time by part."""

    phases: Mapping[str, Mapping[str, float]]
    resident: Mapping[str, float]
    adapter_parameters: float

    def worst(self) -> tuple[str, Mapping[str, float]]:
        return max(self.phases.items(), key=lambda entry: sum(entry[1].values()))


def trace(shape: Mapping[str, Any], sections: SftSections, device: str, tokens: int) -> Traced:
    """The memory of training ``sections`` on ``device`` (cuda or cpu) with sequences of ``tokens`` tokens.

    ``shape`` is the model's config.json. Raises UnknownShapeError for what cannot be traced.
    """
    config = full_config(shape)
    layers = layer_count(config)
    if layers <= DEPTHS[1]:
        return trace_depth(config, sections, device, tokens)
    shallow = [at_depth(config, depth) for depth in DEPTHS]
    with _unknown_where_it_fails(config):
        _check_like_layers(config, shallow, sections, device)
    low, high = (trace_depth(part, sections, device, tokens) for part in shallow)
    return extrapolate(low, high, layers)


def _check_like_layers(
    config: PretrainedConfig, shallow: Sequence[PretrainedConfig], sections: SftSections, device: str
) -> None:
    """Raises UnknownShapeError where the layers below are no measure of the others.

    The whole model is built on the meta device, which takes no memory: the parameters that the shallow ones foretell
    must be its parameters.
    """
    low, high, whole = (_parameters(part, sections, device) for part in (*shallow, config))
    for what, first, second, real in zip(("frozen", "trained"), low, high, whole, strict=True):
        foretold = _at(first, second, layer_count(config))
        if abs(foretold - real) > LIKE_LAYERS * max(real, 1):
            raise UnknownShapeError(
                f"the layers of {config.model_type!r} differ in a way that cannot be extrapolated: from {DEPTHS[1]} "
                f"layers {foretold / 1e6:.1f} million {what} parameters would follow, and it has {real / 1e6:.1f}"
            )


def _parameters(config: PretrainedConfig, sections: SftSections, device: str) -> tuple[int, int]:
    """Frozen and trained ones, unquantised."""
    plain = sections.model_copy(update={"model": sections.model.model_copy(update={"quantization": "none"})})
    model = build_on_meta(config, plain, device)
    trained = sum(parameter.numel() for parameter in trainable_parameters(model).values())
    return sum(parameter.numel() for parameter in model.parameters()) - trained, trained


def extrapolate(low: Traced, high: Traced, layers: int) -> Traced:
    """From the two traced depths to ``layers``, each part of each phase on its own line."""

    def line(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
        names = dict.fromkeys((*first, *second))
        return {name: max(0.0, _at(first.get(name, 0.0), second.get(name, 0.0), layers)) for name in names}

    return Traced(
        {name: line(low.phases[name], high.phases[name]) for name in high.phases},
        line(low.resident, high.resident),
        _at(low.adapter_parameters, high.adapter_parameters, layers),
    )


def _at(low: float, high: float, layers: int) -> float:
    first, second = DEPTHS
    return low + (high - low) / (second - first) * (layers - first)


def full_config(shape: Mapping[str, Any]) -> PretrainedConfig:
    """Raises UnknownShapeError for an architecture that the installed transformers doesn't know."""
    values = dict(shape)
    kind = values.pop("model_type", None)
    if kind is None:
        raise UnknownShapeError("its config.json names no model_type")
    if "quantization_config" in values:
        raise UnknownShapeError("it is quantised already, and how much memory that takes is not modelled")
    try:
        config = AutoConfig.for_model(kind, **values)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnknownShapeError(f"the architecture {kind!r} is not known to this transformers ({reason})") from error
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise UnknownShapeError(f"the architecture {kind!r} has no causal language model in transformers")
    return config


def layer_count(config: PretrainedConfig) -> int:
    layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    if not isinstance(layers, int) or layers < 1:
        raise UnknownShapeError(f"the config of {config.model_type!r} doesn't say how many layers there are")
    return layers


def at_depth(config: PretrainedConfig, depth: int) -> PretrainedConfig:
    """The same model with ``depth`` layers, among them one of every kind that it has, the commonest repeated."""
    shallow = copy.deepcopy(config)
    text = shallow.get_text_config()
    text.num_hidden_layers = depth
    kinds = getattr(text, "layer_types", None)
    if kinds:
        common = [kind for kind, _ in Counter(kinds).most_common()]
        if len(common) > depth:
            raise UnknownShapeError(f"{config.model_type!r} has {len(common)} kinds of layers, too many to extrapolate")
        text.layer_types = [common[0]] * (depth - len(common)) + common
    return shallow


def trace_depth(config: PretrainedConfig, sections: SftSections, device: str, tokens: int) -> Traced:
    """One trace of ``config`` as it is."""
    with _unknown_where_it_fails(config):
        return _trace(config, sections, device, tokens)


@contextmanager
def _unknown_where_it_fails(config: PretrainedConfig) -> Iterator[None]:
    try:
        yield
    except (TrainerError, UnknownShapeError):
        raise
    except Exception as error:
        # Whatever a model's code does with a tensor that has no data ends here: it cannot be predicted, and we say so.
        raise UnknownShapeError(
            f"the training step of {config.model_type!r} cannot be traced without its weights "
            f"({type(error).__name__}: {' '.join(str(error).split())[:300]})"
        ) from error


def _trace(config: PretrainedConfig, sections: SftSections, device: str, tokens: int) -> Traced:
    train = sections.train
    width = padded(tokens)
    model = build_on_meta(config, sections, device)
    live = LiveBytes(config.get_text_config().vocab_size, ACTIVATIONS)
    # bitsandbytes makes its table of code values the first time, from the values of a tensor.
    bnb_functional.quantize_4bit(torch.zeros(64), compress_statistics=True, quant_type="nf4")
    with FakeTensorMode(allow_non_fake_inputs=True), live:
        materialise(model, live)
        trainable = trainable_parameters(model)
        optimiser = FakeOptimiser(list(trainable.values()), sections, device, live)
        resident = _by_label(live)
        narrow = compute_dtype(sections.model, torch.device(device)) is torch.bfloat16
        steps = StepTrace(model, optimiser, live, torch.device("cpu"), narrow=narrow)
        steps.train(train.per_device_train_batch_size, width, accumulate=train.gradient_accumulation_steps > 1)
        steps.evaluate(sections.eval.per_device_eval_batch_size, width)
    phases = {name: dict(peak.parts) for name, peak in live.phases.items()}
    return Traced(phases, resident, float(sum(parameter.numel() for parameter in trainable.values())))


def build_on_meta(config: PretrainedConfig, sections: SftSections, device: str) -> PeftModel:
    """The model of :func:`trainer.model.load_base` with its adapter and loss, all of it on the meta device."""
    section = sections.model
    dtype = compute_dtype(section, torch.device(device))
    attention = "sdpa" if section.attn_implementation == "flash_attention_2" else section.attn_implementation
    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
        quantization = quantization_config(section, dtype)
        if quantization is not None:
            AutoHfQuantizer.from_config(quantization).preprocess_model(model=base, device_map={"": device})
        keep_weight_layout(base)
        model = add_adapter(base, section.lora, sections.train.seed)
    head_loss.attach(model.get_base_model())
    if sections.train.gradient_checkpointing:
        model.enable_input_require_grads()
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def materialise(model: torch.nn.Module, live: LiveBytes) -> None:
    """Put a fake tensor in the place of every meta tensor; NF4 weights are quantised by bitsandbytes' fake kernels."""
    done: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in done:
                done[id(parameter)] = _parameter(module, parameter, live)
            module._parameters[name] = done[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                with live.labelled(WEIGHTS):
                    module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def _parameter(module: Any, parameter: torch.nn.Parameter, live: LiveBytes) -> torch.nn.Parameter:
    if isinstance(parameter, Params4bit):
        with live.labelled(WEIGHTS):
            packed, state = bnb_functional.quantize_4bit(
                torch.empty(parameter.shape, dtype=module.compute_dtype),
                blocksize=parameter.blocksize,
                compress_statistics=parameter.compress_statistics,
                quant_type=parameter.quant_type,
                quant_storage=parameter.quant_storage,
            )
        fake = torch.nn.Parameter(packed, requires_grad=False)
        fake.quant_state = state  # type: ignore[attr-defined]
        fake.bnb_quantized = True  # type: ignore[attr-defined]
        module.quant_state = state
        return fake
    label = ADAPTER if parameter.requires_grad else EMBEDDINGS if live.vocabulary in parameter.shape else WEIGHTS
    with live.labelled(label):
        return torch.nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype), parameter.requires_grad)


class FakeOptimiser:
    """The moments of the configured optimiser, and its step where it is torch's."""

    def __init__(
        self, parameters: list[torch.nn.Parameter], sections: SftSections, device: str, live: LiveBytes
    ) -> None:
        self.parameters = parameters
        self.clip = sections.train.max_grad_norm
        self._state: list[torch.Tensor] = []
        self._optimiser: torch.optim.Optimizer | None = None
        with live.labelled(OPTIMISER):
            if sections.train.optim == "adamw_torch":
                # On a GPU torch takes the variant that works on all tensors at once, which needs more for a moment.
                self._optimiser = torch.optim.AdamW(parameters, foreach=device == "cuda")
                for parameter in parameters:
                    parameter.grad = torch.zeros_like(parameter)
                self._optimiser.step()
                self._optimiser.zero_grad()
            else:
                for parameter in parameters:
                    self._state += _eight_bit_moments(parameter)

    def step(self) -> None:
        if self.clip > 0:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        if self._optimiser is not None:
            self._optimiser.step()


def _eight_bit_moments(parameter: torch.nn.Parameter) -> list[torch.Tensor]:
    if parameter.numel() < EIGHT_BIT_FROM:
        return [torch.empty_like(parameter, dtype=torch.float32) for _ in range(2)]
    blocks = -(-parameter.numel() // EIGHT_BIT_BLOCK)
    moments = [torch.empty_like(parameter, dtype=torch.uint8) for _ in range(2)]
    return moments + [torch.empty(blocks, dtype=torch.float32) for _ in range(2)]


class StepTrace:
    """One optimiser step and one evaluation batch of a model, phase by phase; on real tensors as well as on fake ones.

    Phases: forward (with the loss of the head), the backward pass of the last layer and of those below it, optimiser
    step, evaluation. The backward pass is split because its peak lies at the one end or at the other, depending on
    whether a layer's activations or its gradients are larger.
    """

    def __init__(
        self, model: torch.nn.Module, optimiser: Any, live: LiveBytes, place: torch.device, *, narrow: bool
    ) -> None:
        """``place``: where the tensors are, or pretend to be. ``narrow``: the trainer would compute under autocast."""
        self.model = model
        self.optimiser = optimiser
        self.live = live
        self._place = place
        self._narrow = narrow
        self.trainable = list(trainable_parameters(model).values())

    def train(self, rows: int, tokens: int, *, accumulate: bool) -> None:
        live = self.live
        self.model.train()
        if accumulate:
            with live.labelled(GRADIENTS):
                for parameter in self.trainable:
                    parameter.grad = torch.zeros_like(parameter)
        with live.phase("forward"):
            loss = self._loss(rows, tokens)
        with ExitStack() as phases, self._watched_gradients(phases):
            phases.enter_context(live.phase("backward, last layer"))
            loss.backward()  # type: ignore[no-untyped-call]
        del loss
        with live.phase("optimiser step"):
            self.optimiser.step()
        for parameter in self.trainable:
            parameter.grad = None

    def evaluate(self, rows: int, tokens: int) -> None:
        self.model.eval()
        with self.live.phase("evaluation"), torch.no_grad():
            self._loss(rows, tokens, per_token=True)

    def _loss(self, rows: int, tokens: int, **options: bool) -> torch.Tensor:
        ids = torch.ones(rows, tokens, dtype=torch.long, device=self._place)
        # Two documents, as in a packed sequence: they cost the attention a mask.
        positions = (torch.arange(tokens, device=self._place) % max(1, tokens // 2)).repeat(rows, 1)
        with torch.autocast(self._place.type, dtype=torch.bfloat16, enabled=self._narrow):
            loss: torch.Tensor = self.model(
                input_ids=ids, labels=ids.clone(), position_ids=positions, use_cache=False, summed_loss=True, **options
            )
        return loss

    @contextmanager
    def _watched_gradients(self, phases: ExitStack) -> Iterator[None]:
        """Count gradients as such, and begin the next phase when those of the last layer are there."""
        per_layer = len(self.trainable) // layers_with_adapter(self.model)
        seen = 0

        def made(parameter: torch.nn.Parameter) -> None:
            nonlocal seen
            assert parameter.grad is not None
            self.live.add(parameter.grad, GRADIENTS)
            seen += 1
            if seen == per_layer:
                phases.close()
                phases.enter_context(self.live.phase("backward, layers below"))

        handles = [
            parameter.register_post_accumulate_grad_hook(made)  # type: ignore[no-untyped-call]
            for parameter in self.trainable
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def layers_with_adapter(model: torch.nn.Module) -> int:
    """How many transformer layers carry a part of the adapter; at least 1."""
    layers = set()
    for name in trainable_parameters(model):
        number = next((part for part in name.split(".") if part.isdigit()), None)
        layers.add((name.partition(f".{number}.")[0], number))
    return max(1, len(layers))


def _by_label(live: LiveBytes) -> dict[str, float]:
    return {label: float(size) for label, size in live._by_label.items() if size}
