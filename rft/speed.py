"""How fast samplers were on this machine, remembered from one job to the next."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from rft.config import SamplerSection
from supervisor.protocol.atomic import write_atomic
from trainer.cache import cache_root

FILE = "rft-speed.json"
MIN_SAMPLES = 20
"""Fewer say nothing: the start would count for too much."""


class Speed(msgspec.Struct, frozen=True):
    """``tokens_per_second`` sampled with judging beside it; ``tokens_per_sample`` on average; ``samples`` measured."""

    tokens_per_second: float
    tokens_per_sample: float
    samples: int
    time: float


def speed_key(sampler: SamplerSection) -> str:
    """Equal for samplers that draw about as many tokens per second on one machine."""
    return (
        f"{sampler.type} {sampler.model} {sampler.quantization} {sampler.dtype} {sampler.device} "
        f"{'adapter' if sampler.adapter else 'base'} x{sampler.max_num_seqs}"
    )


def known_speed(sampler: SamplerSection) -> Speed | None:
    return _read(cache_root() / FILE).get(speed_key(sampler))


def remember_speed(sampler: SamplerSection, tokens: int, samples: int, seconds: float) -> None:
    """Raises OSError when it cannot be written; nothing depends on it."""
    if samples < MIN_SAMPLES or seconds <= 0:
        return
    path = cache_root() / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    known = _read(path) | {speed_key(sampler): Speed(tokens / seconds, tokens / samples, samples, time.time())}
    write_atomic(path, msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n")


def _read(path: Path) -> dict[str, Speed]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Speed])
    except (FileNotFoundError, msgspec.DecodeError):  # made again by the next job
        return {}
