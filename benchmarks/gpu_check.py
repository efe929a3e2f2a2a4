"""Trains a 4B-class model of random weights on this GPU, capped at 16 GiB: predicted, measured peak, tokens/s.

`make gpu-check`, or `python benchmarks/gpu_check.py` anywhere with torch, transformers, peft and bitsandbytes. The
model has the shape of Qwen3-4B and is made of random numbers, layer by layer, quantised to NF4 on the card: nothing is
downloaded. Prints one line for each sequence length. Exit code 0: every prediction is within TOLERANCE; 1: one is not,
or it did not fit; 2: no CUDA GPU here. `--cpu-dry` runs the very same code with a tiny shape on the CPU.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import sys
import time
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import peft  # noqa: F401  # before anything stands in for what it may look for
import torch
import transformers  # noqa: F401
from bitsandbytes.nn import Linear4bit, Params4bit


class _Plain:
    """In place of a validated section or a record: attributes, with the class's own as defaults."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__()


class _Anything(types.ModuleType):
    """In place of a module that nothing here needs: its names are there, and do nothing."""

    def __getattr__(self, name: str) -> Any:
        if name in ("BaseModel", "Struct"):
            return _Plain
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **options: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else _Anything(self.__name__)


_MISSING = [name for name in ("msgspec", "pydantic", "xxhash") if importlib.util.find_spec(name) is None]
# Records and validation, which the trainer's modules import: this script does without them.
sys.modules.update({name: _Anything(name) for name in _MISSING})

from trainer.config import DataSection, EvalSection, ModelSection, SftSections, SourceSection, TrainSection
from trainer.model import choose_device, compute_dtype, trainable_parameters
from trainer.planner.calibration import CONTEXT_BYTES
from trainer.planner.count_model import count_model
from trainer.planner.live import LiveBytes
from trainer.planner.shapes import bundled_shapes
from trainer.planner.trace import StepTrace, build_on_meta, full_config, trace

for _name in _MISSING:  # other libraries look whether they are installed
    del sys.modules[_name]

CAP_GIB = 16.0
LENGTHS = (512, 1024)
STEPS = 6
"""Optimiser steps that are timed, after one that warms up."""
TOLERANCE = 0.07
SMALL = {
    "model_type": "qwen3", "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "head_dim": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 4096, "tie_word_embeddings": True,
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    tokens: int
    checkpointing: bool
    predicted: float
    measured: float
    tokens_per_second: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def settings(device: str, tokens: int, checkpointing: bool) -> SftSections:
    """QLoRA of rank 16, micro-batch 1, accumulated."""
    return SftSections(
        device=device,
        model=ModelSection(base="random", dtype="bfloat16"),
        data=DataSection(sources=[SourceSection(path="none")]),
        train=TrainSection(max_length=tokens, gradient_checkpointing=checkpointing),
        eval=EvalSection(per_device_eval_batch_size=1),
    )


def random_model(shape: dict[str, Any], sections: SftSections, device: torch.device) -> torch.nn.Module:
    """The very model that the trainer builds, filled with random numbers on ``device``, a layer at a time."""
    model = build_on_meta(full_config(shape), sections, device.type)
    done: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in done:
                    done[id(parameter)] = _random_parameter(module, parameter, device)
                module._parameters[name] = done[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.rand(buffer.shape, device=device, dtype=torch.float32).to(buffer.dtype)
    return model


def _random_parameter(module: torch.nn.Module, parameter: torch.nn.Parameter, device: torch.device) -> Any:
    dtype = torch.bfloat16 if isinstance(parameter, Params4bit) else parameter.dtype
    values = torch.randn(parameter.shape, device=device, dtype=dtype) * 0.02
    if not isinstance(parameter, Params4bit):
        return torch.nn.Parameter(values, requires_grad=parameter.requires_grad)
    assert isinstance(module, Linear4bit)
    packed = Params4bit(
        values, requires_grad=False, quant_type="nf4", compress_statistics=parameter.compress_statistics, module=module
    ).to(device)  # fmt: skip
    module.quant_state = packed.quant_state
    return packed


class Optimiser:
    """The step of the trainer: clip, then AdamW."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.parameters = list(trainable_parameters(model).values())
        self.adamw = torch.optim.AdamW(self.parameters, lr=1e-4)

    def step(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.adamw.step()


def check(shape: dict[str, Any], device: torch.device, tokens: int, checkpointing: bool) -> Result:
    """One shape trained for real, and predicted."""
    sections = settings(device.type, tokens, checkpointing)
    predicted = sum(trace(shape, sections, device.type, tokens).worst()[1].values())
    torch.manual_seed(1)
    model = random_model(shape, sections, device)
    live = LiveBytes(shape["vocab_size"])
    count_model(model, live)
    narrow = compute_dtype(sections.model, device) is torch.bfloat16
    step = StepTrace(model, Optimiser(model), live, device, narrow=narrow)
    cuda = device.type == "cuda"

    def train() -> None:
        step.train(1, tokens, accumulate=True)

    if cuda:
        train()
        step.evaluate(1, tokens)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        started = time.monotonic()
        for _ in range(STEPS):
            train()
        torch.cuda.synchronize()
        seconds = time.monotonic() - started
        step.evaluate(1, tokens)
        measured = float(torch.cuda.max_memory_allocated())
    else:
        with live:
            train()  # makes the moments
            live.phases.clear()
            started = time.monotonic()
            train()
            seconds = (time.monotonic() - started) * STEPS
            step.evaluate(1, tokens)
        measured = float(max(peak.total for peak in live.phases.values()))
    return Result(tokens, checkpointing, predicted, measured, STEPS * tokens / seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu-dry", action="store_true", help="a tiny shape on the CPU: proves the script, no card")
    parser.add_argument("--cap-gib", type=float, default=CAP_GIB, help="memory that may be used of the card (16)")
    options = parser.parse_args()
    device = torch.device("cpu") if options.cpu_dry else None
    if device is None:
        if not torch.cuda.is_available():
            print("no CUDA GPU here; --cpu-dry proves as much of this as a CPU can", file=sys.stderr)
            return 2
        device = choose_device("cuda")
        cap_memory(options.cap_gib, device)
    shape = SMALL if options.cpu_dry else bundled_shapes()["qwen/qwen3-4b"]
    where = "CPU, a tiny shape" if options.cpu_dry else f"{torch.cuda.get_device_name(device)}, {options.cap_gib:g} GiB"
    print(f"gpu check on {where}")
    print(" tokens  checkpointing  predicted GiB  measured GiB   error  tokens/s")
    within = True
    for tokens, checkpointing in [(length, False) for length in LENGTHS] + [(LENGTHS[-1], True)]:
        tokens = tokens // 8 if options.cpu_dry else tokens
        gc.collect()  # the model before refers to itself
        if device.type == "cuda":
            torch.cuda.empty_cache()
        try:
            result = check(shape, device, tokens, checkpointing)
        except torch.OutOfMemoryError as error:
            print(f"{tokens:>7} {checkpointing!s:>14} out of memory under the cap: {str(error).splitlines()[0]}")
            within = False
            continue
        print(
            f"{tokens:>7} {checkpointing!s:>14} {result.predicted / 2**30:>14.3f} {result.measured / 2**30:>13.3f} "
            f"{100 * result.error:>6.1f}% {result.tokens_per_second:>9.0f}",
            flush=True,
        )
        within = within and abs(result.error) <= TOLERANCE
        if device.type == "cuda":
            reserved = torch.cuda.max_memory_reserved(device)
            free, total = torch.cuda.mem_get_info(device)
            print(
                f"        allocator holds {reserved / result.measured:.3f} times the live tensors; in use besides: "
                f"{(total - free - torch.cuda.memory_reserved(device)) / 2**30:.2f} GiB (assumed "
                f"{CONTEXT_BYTES['cuda'] / 2**30:.2f})"
            )
    print(f"all within {100 * TOLERANCE:.0f} %" if within else f"NOT all within {100 * TOLERANCE:.0f} %")
    return 0 if within else 1


def cap_memory(gib: float, device: torch.device) -> None:
    """Let torch take no more of the card than a card of ``gib`` GiB would have."""
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, gib * 2**30 / total), device)


if __name__ == "__main__":
    sys.exit(main())
