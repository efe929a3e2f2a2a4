"""What is compared, as it is written on the command line. Free of torch.

``MODEL[+adapter=DIR][,merged][,nf4][,dtype=TYPE][,device=DEVICE][,revision=REV]``, where ``MODEL`` is a folder, a hub
id, ``package:NAME`` or ``random:LAYERSxHIDDEN``.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from supervisor.problems import InputError
from trainer.base_names import SPECIAL

SYNTAX = "MODEL[+adapter=DIR][,merged][,nf4][,dtype=float32|bfloat16][,device=cpu|cuda][,revision=REV]"
_ADAPTER = "+adapter="
_DTYPES = {"float32": "float32", "fp32": "float32", "bfloat16": "bfloat16", "bf16": "bfloat16"}
_OPTIONS = ("merged", "nf4", "dtype", "device", "revision")
_NOISE = {"float32": 2.0**-20, "bfloat16": 2.0**-8}
"""Relative error of one number that computing in a type explains: half a unit in the last place of bfloat16, sixteen
of those of float32, where the order of summation shows."""


@dataclass(frozen=True)
class Precision:
    """``noise``: relative error of a number; ``spared``: linear layers that aren't held in NF4 although others are."""

    nf4: bool
    noise: float
    spared: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelSpec:
    """One load of a model. ``dtype`` auto: bfloat16 on a GPU and float32 on a CPU; ``device`` auto: a GPU if any."""

    text: str
    base: str
    adapter: Path | None = None
    merged: bool = False
    nf4: bool = False
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    revision: str | None = None


def parse_spec(text: str) -> ModelSpec:
    """Raises InputError for what isn't of :data:`SYNTAX`, or names an adapter that is none."""
    spec = ModelSpec(text, text)
    while not _is_there(spec.base):
        head, comma, option = spec.base.rpartition(",")
        if not comma or _ADAPTER in option or "/" in option:
            break
        spec = _with_option(replace(spec, base=head), option)
    if not Path(spec.base).is_dir() and _ADAPTER in spec.base:
        base, _, adapter = spec.base.rpartition(_ADAPTER)
        spec = replace(spec, base=base, adapter=_adapter_folder(text, adapter))
    if not spec.base:
        raise InputError(f"{text!r} names no model. Write {SYNTAX}.")
    if spec.merged and spec.adapter is None:
        raise InputError(f"{text!r} is to be merged and names no adapter. Write {SYNTAX}.")
    if not spec.base.startswith(SPECIAL) and Path(spec.base).is_dir():
        _check_folder(Path(spec.base))
    return spec


def _is_there(text: str) -> bool:
    """Whether ``text`` ends with a folder, whose name may have commas in it, rather than with an option."""
    return Path(text).is_dir() or (_ADAPTER in text and Path(text.rpartition(_ADAPTER)[2]).expanduser().is_dir())


def _with_option(spec: ModelSpec, option: str) -> ModelSpec:
    name, equals, value = option.partition("=")
    if name in ("merged", "nf4") and not equals:
        return replace(spec, merged=True) if name == "merged" else replace(spec, nf4=True)
    if name == "dtype" and value in _DTYPES:
        return replace(spec, dtype=cast(Literal["float32", "bfloat16"], _DTYPES[value]))
    if name == "device" and value in ("cpu", "cuda"):
        return replace(spec, device=cast(Literal["cpu", "cuda"], value))
    if name == "revision" and value:
        return replace(spec, revision=value)
    near = difflib.get_close_matches(name, _OPTIONS, 1)
    meant = f" Did you mean {near[0]}?" if near and near[0] != name else ""
    raise InputError(f"{spec.text!r}: {option!r} is no option of a model.{meant} Write {SYNTAX}.")


def _adapter_folder(text: str, adapter: str) -> Path:
    folder = Path(adapter).expanduser()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if not (folder / name).is_file():
            raise InputError(
                f"{text!r}: {folder} holds no adapter ({name} is missing). Name the folder of a checkpoint, such as "
                "RUN/final."
            )
    return folder


def _check_folder(folder: Path) -> None:
    """Refuses what could only be loaded by running what came with it."""
    if not any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        raise InputError(
            f"{folder} holds no model as safetensors (model.safetensors, or its parts with an index). Weights of other "
            "kinds are not loaded: they can carry a program. Convert them where you trust them."
        )
    quantised = folder_config(folder).get("quantization_config")
    if quantised is not None and not (
        isinstance(quantised, dict)
        and quantised.get("quant_method") == "bitsandbytes"
        and quantised.get("bnb_4bit_quant_type") == "nf4"
    ):
        raise InputError(f"{folder}/config.json: its quantization_config is not bitsandbytes' nf4, the one known here.")


def folder_config(folder: Path) -> dict[str, Any]:
    """``config.json`` of a model. Raises InputError."""
    path = folder / "config.json"
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); a folder of a model has one.") from None
    except ValueError as error:
        raise InputError(f"{path} is no JSON ({error}).") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} is no JSON object.")
    return found


def precision(spec: ModelSpec, dtype: str, folder: Path) -> Precision:
    """How a load of ``spec`` computes: in ``dtype`` (float32 or bfloat16), with the weights that lie in ``folder``."""
    quantised = folder_config(folder).get("quantization_config") or {}
    spared = quantised.get("llm_int8_skip_modules") or ()
    return Precision(spec.nf4 or bool(quantised), _NOISE[dtype], tuple(str(name) for name in spared) or ("lm_head",))


@dataclass(frozen=True)
class Simulation:
    """What explains a difference between A and B: computing as ``side`` does, with numbers that are off by ``noise``
    and, if ``nf4``, its linear layers quantised but for those ``spared``."""

    side: Literal["a", "b"]
    noise: float
    nf4: bool
    spared: tuple[str, ...]


def simulation(a: tuple[ModelSpec, Precision], b: tuple[ModelSpec, Precision]) -> Simulation:
    """The finer of the two is made as coarse as the other."""
    (spec_a, of_a), (spec_b, of_b) = a, b
    noise = max(of_a.noise, of_b.noise)
    if of_a.nf4 != of_b.nf4:
        return Simulation("b" if of_a.nf4 else "a", noise, True, (of_a if of_a.nf4 else of_b).spared)
    if of_a.nf4 and spec_a.merged != spec_b.merged:  # merging into NF4 quantises anew
        return Simulation("b" if spec_a.merged else "a", noise, True, of_a.spared)
    return Simulation("a" if of_a.noise <= of_b.noise else "b", noise, False, ())
