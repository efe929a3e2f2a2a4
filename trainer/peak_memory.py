"""The peak memory that an attempt really needed, beside the one that was predicted for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.config import SftSections
from trainer.planner.calibration import CONTEXT_BYTES, SMALLEST_BYTES, now_measured, remember
from trainer.planner.predict import NEARLY_FULL, question_key, remembered, sequence_tokens
from trainer.planner.shapes import UnknownShapeError, find_shape
from trainer.reporting import Reporter

_GIB = 1 << 30
EVALUATION = "evaluation"
"""The phase of that name in trainer.planner.trace."""


class PeakMeter:
    """Begin it before the model is loaded. On a GPU the allocator's peak, on a CPU the process's resident memory.

    ``loaded``: bytes of the model that is resident already.
    """

    def __init__(self, device: torch.device, loaded: int = 0) -> None:
        self.device = device
        self.before = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            _reset_resident_peak()
            self.before = max(0, (_resident("VmRSS") or 0) - loaded)

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"

    def allocated(self) -> int | None:
        """Bytes of live tensors at the peak; not known on a CPU."""
        return int(torch.cuda.max_memory_allocated(self.device)) if self.device.type == "cuda" else None

    def measured(self) -> int | None:
        """Bytes at the peak: reserved by the allocator, or resident beyond what there was before; None: unknown."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_reserved(self.device))
        peak = _resident("VmHWM")
        return None if peak is None else max(0, peak - self.before)


@dataclass(frozen=True)
class Comparison:
    """``predicted``: bytes of live tensors at ``when``; None: why stands in ``reason``."""

    predicted: int | None
    key: str = ""
    reason: str = ""
    when: str = ""


@dataclass(frozen=True)
class Reached:
    """What an attempt went through: the largest micro-batch of a whole optimiser step, in tokens with their padding,
    0 without a step; and whether it evaluated."""

    batch_tokens: int
    evaluated: bool


def report_peak(
    meter: PeakMeter, sections: SftSections, longest: int, reporter: Reporter, reached: Reached, *, divided: bool
) -> None:
    """The ``memory`` event: measured beside predicted. What can calibrate later predictions is kept in the cache.

    ``longest``: tokens of the longest sequence, trained or evaluated. ``divided``: other processes hold parts of the
    base. An attempt that never did what was predicted calibrates
    nothing.
    """
    measured, allocated = meter.measured(), meter.allocated()
    if measured is None:
        return
    kind = meter.device.type
    what = "reserved by the GPU allocator" if kind == "cuda" else "resident memory of the process beyond its start"
    found = predicted_for(sections, kind, longest)
    if divided:
        found = Comparison(None, reason="the base is divided among the processes, and what that saves is not predicted")
    if found.predicted is not None and (missed := _missed(found, sections, longest, reached)):
        found = Comparison(None, reason=missed)
    data: dict[str, Any] = {
        "measured_bytes": measured,
        "measured": what,
        "allocated_bytes": allocated,
        "predicted_tensor_bytes": found.predicted,
        "predicted_context_bytes": CONTEXT_BYTES[kind],
        "device_name": meter.name,
    }
    text = f"peak memory {measured / _GIB:.2f} GiB ({what})"
    if found.predicted is None:
        reporter.event("memory", f"{text}; not compared with a prediction: {found.reason}", **data)
        return
    data["ratio"] = round(measured / found.predicted, 4)
    text += f"; predicted for tensors: {found.predicted / _GIB:.2f} GiB, ratio {measured / found.predicted:.3f}"
    if found.predicted < SMALLEST_BYTES:
        text += "; too small a model to calibrate with"
    else:
        try:
            remember(
                now_measured(kind, meter.name, sections.model.base, found.key, found.predicted, measured)
            )
        except OSError as error:
            reporter.warn(f"the measured peak memory was not kept for later plans ({error})")
    reporter.event("memory", text, **data)


def _missed(found: Comparison, sections: SftSections, longest: int, reached: Reached) -> str:
    """Why this attempt's peak is not the one that was predicted; empty when it is."""
    foreseen = sections.train.per_device_train_batch_size * sequence_tokens(sections, longest)
    if reached.batch_tokens < NEARLY_FULL * foreseen:
        return (
            f"the largest micro-batch of this attempt had {reached.batch_tokens} tokens, and what was predicted is "
            f"{foreseen}"
        )
    if found.when == EVALUATION and not reached.evaluated:
        return "what was predicted is the evaluation, and this attempt made none"
    return ""


def predicted_for(sections: SftSections, device: str, longest: int) -> Comparison:
    """What was predicted for these settings by ``mens-sup plan`` or before the first attempt; nothing is traced."""
    tokens = sequence_tokens(sections, longest)
    try:
        shape = find_shape(sections.model.base, sections.model.revision)
    except UnknownShapeError as error:
        return Comparison(None, reason=str(error))
    key = question_key(shape, sections, device, tokens)
    known = remembered(key)
    if known is not None:
        return Comparison(known.tensor_bytes, key, when=known.when)
    most = sections.train.max_length
    if tokens < most and remembered(question_key(shape, sections, device, most)):
        return Comparison(None, reason=f"the longest sequence had {longest} tokens, and what was predicted is {most}")
    return Comparison(None, reason="none was made (limits.admission is off, or it came to nothing)")


def _reset_resident_peak() -> None:
    """Let the kernel count the peak anew; where it may not be asked to, the peak so far is part of ours."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _resident(name: str) -> int | None:
    """VmRSS or VmHWM of this process in bytes."""
    try:
        lines = Path(f"/proc/{os.getpid()}/status").read_text().splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith(f"{name}:")), None)
    return int(found.split()[1]) * 1024 if found else None
