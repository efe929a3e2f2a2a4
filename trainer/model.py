"""The model that is trained: a frozen (NF4) base with an fp32 LoRA adapter on it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path

import torch
from bitsandbytes.nn import Linear4bit
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel, set_seed

from supervisor.protocol.atomic import staged_directory
from supervisor.protocol.attempt import ExitKind
from trainer.base_model import BaseModel
from trainer.cache import cache_root
from trainer.config import LoraSection, ModelSection
from trainer.errors import ConfigurationError, NoGpuError, classify
from trainer.launcher import Place
from trainer.precision import inputs_stay_narrow, keep_norms_in_float32

Report = Callable[[str], None]
"""Receives one sentence about something that was announced rather than failed."""


def choose_device(wanted: str, place: Place | None = None) -> torch.device:
    """The device of ``device:`` (cuda, auto, cpu), for each of several processes one of its own.

    Raises NoGpuError instead of a silent CPU, or when there are fewer GPUs than processes.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        if place is not None and (there := torch.cuda.device_count()) < place.size:
            raise NoGpuError(
                f"launch.processes is {place.size} and {there} GPU{'s are' if there > 1 else ' is'} usable here. Lower "
                "launch.processes (raise train.gradient_accumulation_steps to keep the global batch), or look at "
                "CUDA_VISIBLE_DEVICES and nvidia-smi."
            )
        return torch.device("cuda", place.rank if place is not None else 0)
    if wanted == "auto":
        return torch.device("cpu")
    if torch.version.cuda is None and torch.version.hip is None:
        reason = f"this torch ({torch.__version__}) was built without GPU support"
        remedy = "install a CUDA build of torch"
    elif not Path("/dev/nvidiactl").exists():
        reason = "this machine shows no NVIDIA device (/dev/nvidiactl is missing)"
        remedy = "check the card, the driver and the container's device options"
    else:
        reason = "torch cannot use the NVIDIA driver, or CUDA_VISIBLE_DEVICES hides the card"
        remedy = "compare nvidia-smi with torch.version.cuda"
    raise NoGpuError(
        f"device: cuda was asked for and there is none: {reason}. Please {remedy}, or say device: cpu (slow) "
        "or device: auto in the configuration."
    )


def compute_dtype(section: ModelSection, device: torch.device) -> torch.dtype:
    if section.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if section.dtype == "bfloat16" else torch.float32


def quantization_config(section: ModelSection, dtype: torch.dtype) -> BitsAndBytesConfig | None:
    """How the base's linear layers are quantised; None when they aren't."""
    if section.quantization == "none":
        return None
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=section.double_quant,
        bnb_4bit_compute_dtype=dtype,
    )


def load_base(
    base: BaseModel, section: ModelSection, device: torch.device, report: Report, *, held_on_cpu: bool = False
) -> PreTrainedModel:
    """The frozen base on ``device``; an NF4 one comes from the cache when it was quantised before.

    ``held_on_cpu``: computed with on ``device``, but to be brought there in parts.

    Loading cached NF4 takes about a tenth of quantising again (0.6 s against 5.3 s for 135M
    parameters on two cores), and reads a quarter of the bytes.
    """
    dtype = compute_dtype(section, device)
    options: dict[str, object] = {
        "dtype": dtype,
        "attn_implementation": section.attn_implementation,
        "device_map": {"": "cpu" if held_on_cpu else str(device)},
        "local_files_only": True,
        "trust_remote_code": False,  # nor is anybody asked whether to run what came with a model
    }
    ready = weights_folder(base, section, device)
    if ready is not None:
        return _from_pretrained(base, ready, options)
    cached = _nf4_cache(base, section, dtype)
    model = _from_pretrained(base, base.path, {**options, "quantization_config": quantization_config(section, dtype)})
    try:
        with staged_directory(cached) as staged:
            model.save_pretrained(str(staged))
    except FileExistsError:
        pass  # another run has just cached the very same base
    except Exception as error:
        if classify(error) is not ExitKind.DISK_FULL:
            raise
        report(f"the quantised base was not cached ({error}); later starts will quantise again")
    return model


def weights_folder(base: BaseModel, section: ModelSection, device: torch.device) -> Path | None:
    """Where :func:`load_base` reads the weights; None while they have yet to be quantised."""
    if section.quantization == "none":
        return base.path
    cached = _nf4_cache(base, section, compute_dtype(section, device))
    return cached if cached.is_dir() else None


def keep_weight_layout(model: PreTrainedModel) -> None:
    """Stop bitsandbytes from repacking NF4 weights for its CPU inference kernel.

    It does so in the first evaluation on AVX512-BF16 processors and leaves them so: the training steps
    after an evaluation would compute differently (and several times slower) than those of a resumed run.
    """
    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False


def _from_pretrained(base: BaseModel, path: Path, options: dict[str, object]) -> PreTrainedModel:
    try:
        model = AutoModelForCausalLM.from_pretrained(str(path), **options)
    except (ValueError, OSError, SafetensorError) as error:
        if classify(error) is ExitKind.DISK_FULL:
            raise
        reason = " ".join(str(error).split())[:400]
        raise ConfigurationError(
            f"model.base: {base.name} in {path} cannot be loaded as a causal LM: {reason}"
        ) from error
    keep_weight_layout(model)
    # PEFT writes this into the adapter; the cache of quantised weights is no place to point anybody to.
    model.name_or_path = base.reference
    return model


def _nf4_cache(base: BaseModel, section: ModelSection, dtype: torch.dtype) -> Path:
    parts = {
        "base": base.name,
        "revision": base.revision,
        "double_quant": section.double_quant,
        "dtype": str(dtype),
        "bitsandbytes": importlib.metadata.version("bitsandbytes"),
        "transformers": importlib.metadata.version("transformers"),
    }
    return cache_root() / "nf4" / hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def add_adapter(model: PreTrainedModel, lora: LoraSection, seed: int) -> PeftModel:
    """A freshly initialised LoRA adapter with fp32 weights; everything else is frozen.

    bfloat16 adapters stall: at a learning rate of 2e-5 most updates are below their resolution. A bfloat16 base with
    its adapter computes under autocast only (see precision.py).
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    held_in = model.get_input_embeddings().weight.dtype
    keep_norms_in_float32(model, held_in)
    set_seed(seed)
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.lora_alpha,
        lora_dropout=lora.lora_dropout,
        target_modules=lora.target_modules,
        task_type="CAUSAL_LM",
    )
    try:
        peft_model = get_peft_model(model, config)
    except ValueError as error:
        raise ConfigurationError(f"model.lora: {' '.join(str(error).split())}") from error
    if isinstance(peft_model.get_output_embeddings(), BaseTunerLayer):
        raise ConfigurationError(
            "model.lora.target_modules names the output head. The loss multiplies by the frozen head directly, so an "
            "adapter there would never be trained. Remove it from the list."
        )
    resolved = peft_model.peft_config["default"]
    if isinstance(resolved.target_modules, set):
        # A set is written in another order by every process; checkpoints of equal runs shall be equal.
        resolved.target_modules = sorted(resolved.target_modules)
    for parameter in trainable_parameters(peft_model).values():
        parameter.data = parameter.data.float()
    if held_in is not torch.float32:
        inputs_stay_narrow(peft_model)
    return peft_model


def trainable_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
