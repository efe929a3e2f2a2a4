"""A model that a standby has loaded before its job came: on the CPU, with a fresh adapter, for one that asks for it.

Whoever takes it gets what loading would have given: the weights are read, the adapter is drawn from the seed of the
configuration, and the training seeds every generator again when it begins.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel

from supervisor.sensors.cgroup import find_cgroup, read_cgroup
from supervisor.sensors.host import read_host
from supervisor.sensors.snapshot import CgroupReading, Unknown
from trainer.base_model import BaseModel
from trainer.config import ModelSection
from trainer.model import add_adapter, load_base, weights_folder

LEFT_BYTES = 1 << 30
"""Memory that must be free beside the model while it is loaded: the attempt that runs may still need more."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class HeldModel:
    """``said`` while it was loaded; ``resident_bytes``: what it takes up of this process."""

    model: PeftModel
    said: tuple[str, ...]
    resident_bytes: int


@dataclass(frozen=True)
class _For:
    base: BaseModel
    section: ModelSection
    seed: int


_held: list[tuple[_For, HeldModel]] = []


def hold_model(base: BaseModel, section: ModelSection, seed: int) -> None:
    """Load it if it lies there ready to be read and there is memory for it. Raises what :func:`load_base` does."""
    folder = weights_folder(base, section, CPU)
    if folder is None or not _has_room(sum(file.stat().st_size for file in folder.glob("*.safetensors"))):
        return
    said: list[str] = []
    before = _resident_bytes()
    model = add_adapter(load_base(base, section, CPU, said.append), section.lora, seed)
    _held[:] = [(_For(base, section, seed), HeldModel(model, tuple(said), max(0, _resident_bytes() - before)))]


def take_model(base: BaseModel, section: ModelSection, seed: int, device: torch.device) -> HeldModel | None:
    """The model that is held, if it is the very one; whatever is held is given up."""
    found = [held for wanted, held in _held if wanted == _For(base, section, seed) and device == CPU]
    _held.clear()
    return found[0] if found else None


def _has_room(weights: int) -> bool:
    """Unknown is no room. Reading may hold the weights twice for a moment."""
    host, group = read_host(None), find_cgroup(os.getpid())
    if isinstance(host.ram_available, Unknown):
        return False
    rooms = [host.ram_available]
    match read_cgroup(group) if not isinstance(group, Unknown) else group:
        case CgroupReading(limit_bytes=int(limit), used_bytes=int(used)):
            rooms.append(limit - used)
    return min(rooms) >= 2 * weights + LEFT_BYTES


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
