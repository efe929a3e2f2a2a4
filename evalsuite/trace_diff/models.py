"""Loading what a spec names, without running anything that came with it, and letting it go again."""

from __future__ import annotations

import ctypes
import gc
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from evalsuite.trace_diff.spec import ModelSpec, Precision, folder_config, precision
from supervisor.problems import InputError
from trainer.base_model import BaseModel, load_tokenizer, locate
from trainer.config import ModelSection
from trainer.errors import ConfigurationError, TrainerError
from trainer.job import base_problems
from trainer.model import choose_device, compute_dtype, load_base

Model = Any
"""Any causal language model; transformers leaves them without types."""


@dataclass(frozen=True)
class Located:
    """A spec with what it names found, and nothing loaded yet."""

    spec: ModelSpec
    base: BaseModel
    device: torch.device
    dtype: str
    precision: Precision

    @property
    def section(self) -> ModelSection:
        return ModelSection.model_validate({
            "base": self.spec.base,
            "revision": self.spec.revision,
            "quantization": "nf4" if self.spec.nf4 and not self.quantised_already else "none",
            "dtype": self.dtype,
        })

    @property
    def quantised_already(self) -> bool:
        return bool(folder_config(self.base.path).get("quantization_config"))


def find(spec: ModelSpec) -> Located:
    """Raises InputError when the model isn't there, or can't be loaded as it is asked for."""
    for problem in base_problems("model", spec.base, spec.revision):
        raise InputError(f"{spec.text}: {problem.message}. {problem.remedy}")
    if spec.adapter is not None:
        _check_adapter(spec.adapter)
    try:
        device = choose_device(spec.device)
        base = locate(spec.base, spec.revision)
    except TrainerError as error:
        raise InputError(f"{spec.text}: {error}") from None
    section = ModelSection(base=spec.base, dtype=spec.dtype)
    dtype = str(compute_dtype(section, device)).removeprefix("torch.")
    return Located(spec, base, device, dtype, precision(spec, dtype, base.path))


def tokenizer_of(found: list[Located]) -> PreTrainedTokenizerBase:
    """The first one's that has any. Raises InputError."""
    reasons = []
    for each in found:
        try:
            return load_tokenizer(each.base)
        except ConfigurationError as error:
            reasons.append(str(error))
    raise InputError("Neither model has a tokenizer, and one is needed for the prompt: " + "; ".join(reasons))


@contextmanager
def loaded(found: Located) -> Iterator[Model]:
    """The model ready to run; its memory is given back at the end. Raises InputError."""
    try:
        model: Model = load_base(found.base, found.section, found.device, lambda sentence: None).eval()
        if found.spec.adapter is not None:
            peft_model = PeftModel.from_pretrained(model, str(found.spec.adapter)).eval()
            model = peft_model.merge_and_unload() if found.spec.merged else peft_model.get_base_model()
    except (TrainerError, ValueError, RuntimeError, KeyError, OSError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        reason = " ".join(str(error).split())[:400]
        raise InputError(f"{found.spec.text} cannot be loaded: {reason}.") from None
    try:
        yield model.eval()
    finally:
        peft_model = model = None
        gc.collect()
        if found.device.type == "cuda":
            torch.cuda.empty_cache()
        ctypes.CDLL(None).malloc_trim(0)


def _check_adapter(folder: Path) -> None:
    path = folder / "adapter_config.json"
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}).") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA" or config.get("use_dora"):
        raise InputError(f"{path} is not of a plain LoRA adapter, the kind that is compared here.")


def forget_peak() -> bool:
    """From now on :func:`peak_bytes` counts anew; False where the kernel doesn't allow it."""
    try:
        Path(f"/proc/{os.getpid()}/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_bytes() -> int | None:
    """The most memory that was resident in this process since :func:`forget_peak`; None where nothing tells."""
    try:
        status = Path(f"/proc/{os.getpid()}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else None
