"""Peak memory of a configuration: traced once, then remembered by everything that it depends on."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from supervisor.protocol.atomic import write_atomic
from supervisor.protocol.forecast import MemoryForecast
from supervisor.protocol.lock import BlockingFileLock
from trainer.cache import cache_root
from trainer.config import SftSections
from trainer.planner.calibration import CONTEXT_BYTES, Ratio, ratio_for, read_measured
from trainer.planner.shapes import Shape, UnknownShapeError, find_shape

KEPT = 256
NEARLY_FULL = 0.97
"""Share of train.max_length from which on a sequence counts as of full length: packed ones hardly ever are."""
PADDED_TO = 8
"""As :data:`trainer.collate.PAD_MULTIPLE`, which comes with torch."""
_NOT_MEMORY = {"base", "revision", "fallback", "chat_template", "chat_template_kwargs"}
_VERSIONS = ("torch", "transformers", "peft", "bitsandbytes")
_CODE = ("model.py", "head_loss.py", "precision.py", "collate.py", "planner/trace.py", "planner/live.py")
_MOMENT_BYTES = {"adamw_torch": 8.0, "adamw_8bit": 2.0 + 8 / 256, "paged_adamw_8bit": 2.0 + 8 / 256}
REST_BYTES = 96 << 10
"""What a checkpoint holds besides adapter and moments: template, random and schedule state, log, manifest."""


class Prediction(msgspec.Struct, frozen=True):
    """Bytes of live tensors at the peak, by part; ``when`` names the phase."""

    when: str
    parts: dict[str, int]
    adapter_parameters: int

    @property
    def tensor_bytes(self) -> int:
        return sum(self.parts.values())


def forecast_memory(sections: SftSections, device: str, longest: int | None = None) -> MemoryForecast:
    """What training ``sections`` will need on ``device``; says why where it cannot be predicted.

    ``longest``: tokens of the longest sequence, where the data is known; else it is taken to be train.max_length.
    """
    base = sections.model.base
    tokens = sequence_tokens(sections, longest)
    try:
        shape = find_shape(base, sections.model.revision)
        prediction = predicted(shape, sections, device, tokens)
    except UnknownShapeError as error:
        return MemoryForecast(unknown=f"The memory of {base} cannot be predicted: {error}.", base=base)
    ratio = ratio_for(read_measured(), device, base)
    return _forecast(sections, shape, prediction, ratio, device, tokens)


def sequence_tokens(sections: SftSections, longest: int | None) -> int:
    """The width of the widest batch that is predicted for."""
    most = sections.train.max_length
    if longest is None or longest >= NEARLY_FULL * most:
        return most
    return padded(longest)


def padded(tokens: int) -> int:
    """Tokens of a batch whose longest sequence has ``tokens``."""
    return -(-tokens // PADDED_TO) * PADDED_TO


def predicted(shape: Shape, sections: SftSections, device: str, tokens: int) -> Prediction:
    """Traced, unless it was before. Raises UnknownShapeError."""
    key = question_key(shape, sections, device, tokens)
    known = remembered(key)
    if known is not None:
        return known
    from trainer.planner.trace import trace

    traced = trace(shape.config, sections, device, tokens)
    when, parts = traced.worst()
    prediction = Prediction(
        when, {name: round(size) for name, size in parts.items()}, round(traced.adapter_parameters)
    )
    remember(key, prediction)
    return prediction


def question_key(shape: Shape, sections: SftSections, device: str, tokens: int) -> str:
    """A digest of all that the prediction depends on: shape, settings, versions, and our own code."""
    model, train = sections.model, sections.train
    parts = {
        "shape": shape.config,
        "device": device,
        "model": model.model_dump(mode="json", exclude=_NOT_MEMORY),
        "train": [
            tokens,
            train.per_device_train_batch_size,
            train.gradient_accumulation_steps > 1,
            train.gradient_checkpointing,
            train.optim,
            train.max_grad_norm > 0,
        ],
        "evaluation": sections.eval.per_device_eval_batch_size,
        "versions": [importlib.metadata.version(name) for name in _VERSIONS],
        "code": _code_digest(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def remembered(key: str) -> Prediction | None:
    return _known().get(key)


def remember(key: str, prediction: Prediction) -> None:
    """The newest are kept. A cache that cannot be written costs only time."""
    file = _file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with BlockingFileLock(file.with_name(f".{file.name}.lock")):
            known = {**_known(), key: prediction}
            write_atomic(file, msgspec.json.encode(dict(list(known.items())[-KEPT:])))
    except OSError:
        return


def _forecast(
    sections: SftSections, shape: Shape, prediction: Prediction, ratio: Ratio, device: str, tokens: int
) -> MemoryForecast:
    tensors = prediction.tensor_bytes
    allocator = round(tensors * ratio.value) - tensors
    context = CONTEXT_BYTES[device]
    moments = prediction.adapter_parameters * _MOMENT_BYTES[sections.train.optim]
    return MemoryForecast(
        base=sections.model.base,
        shape=shape.source,
        conditions=conditions(sections, tokens),
        when=prediction.when,
        parts=prediction.parts,
        tensor_bytes=tensors,
        allocator_bytes=allocator,
        context_bytes=context,
        peak_bytes=tensors + allocator + context,
        calibration=ratio.source,
        checkpoint_bytes=round(prediction.adapter_parameters * 4 + moments) + REST_BYTES,
        cache_bytes=_cache_bytes(sections, prediction),
        adapter_parameters=prediction.adapter_parameters,
    )


def conditions(sections: SftSections, tokens: int) -> str:
    """What is predicted, for people."""
    train, model = sections.train, sections.model
    base = "NF4" if model.quantization == "nf4" else "unquantised"
    checkpointing = "with" if train.gradient_checkpointing else "without"
    return (
        f"{base} base, rank {model.lora.r}, micro-batch {train.per_device_train_batch_size} x {tokens} "
        f"tokens, {checkpointing} activation checkpointing, {train.optim}"
    )


def _cache_bytes(sections: SftSections, prediction: Prediction) -> int:
    """The quantised base, which the first start writes to the cache."""
    if sections.model.quantization == "none":
        return 0
    return prediction.parts.get("weights", 0) + prediction.parts.get("embeddings", 0)


def _file() -> Path:
    return cache_root() / "predictions.json"


def _known() -> dict[str, Prediction]:
    try:
        return msgspec.json.decode(_file().read_bytes(), type=dict[str, Prediction])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}


@cache
def _code_digest() -> str:
    folder = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for name in _CODE:
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def sections_of(document: Mapping[str, Any]) -> SftSections:
    """The kind's own part of a whole document."""
    own = {key: document[key] for key in SftSections.model_fields if key in document}
    return SftSections.model_validate_json(json.dumps(own))
