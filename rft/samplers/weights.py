"""Digests of what is sampled from: the model's weights and the adapter. No torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from supervisor.protocol.atomic import write_atomic
from supervisor.protocol.manifest import digest_file
from trainer.cache import cache_root

_COUNTED = (".safetensors", ".bin", ".json", ".jinja", ".model", ".txt")
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_config.json")


class _Known(msgspec.Struct, frozen=True):
    """A file as it was when it was digested."""

    device: int
    inode: int
    size: int
    modified: int
    sha256: str


def model_digest(folder: Path) -> str:
    """SHA-256 over weights, configuration and tokenizer of a model's folder.

    Whole files are read, once: what did not change since (device, inode, size, time) is remembered in the user's cache.
    """
    place = cache_root() / "digests" / f"{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]}.json"
    before = _remembered(place)
    found: dict[str, _Known] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in _COUNTED and path.is_file() and not path.name.startswith("."):
            state = path.stat()
            key = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
            known = before.get(path.name)
            if known is None or (known.device, known.inode, known.size, known.modified) != key:
                known = _Known(*key, digest_file(path).sha256)
            found[path.name] = known
    if found != before:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(place, msgspec.json.encode(found))
    return _over({name: known.sha256 for name, known in found.items()})


def adapter_digest(folder: Path) -> str:
    """SHA-256 over an adapter's weights and configuration. Raises FileNotFoundError."""
    return _over({name: digest_file(folder / name).sha256 for name in ADAPTER_FILES})


def _remembered(place: Path) -> dict[str, _Known]:
    try:
        return msgspec.json.decode(place.read_bytes(), type=dict[str, _Known])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def _over(digests: dict[str, str]) -> str:
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
