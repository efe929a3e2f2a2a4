"""A plan as people read it, and as plain values for ``--json``."""

from __future__ import annotations

from typing import Any

from supervisor.planning.fit import Fit
from supervisor.planning.plan import Plan
from supervisor.planning.wording import parts_table, step_line, verdict
from supervisor.protocol.forecast import MemoryForecast
from supervisor.sensors.disk import human_bytes
from supervisor.view.text import duration

LABEL = 30
COLUMN = 24


def render(plan: Plan) -> str:
    """Several lines, the verdict first."""
    lines = [f"{plan.config.own.name}: {verdict(plan.fit)}"]
    if plan.fit.room.total is None:
        lines.append("--gpu-gib names the memory of a card that is not in this machine.")
    lines += ["", *_data_lines(plan)]
    lines += ["", *_memory_lines(plan)]
    if plan.fit.steps:
        lines += ["", "relief, in the order in which it would be taken:"]
        lines += [f"  {step_line(step, plan.fit.room)}" for step in plan.fit.steps]
    return "\n".join(lines)


def _data_lines(plan: Plan) -> list[str]:
    data, rows = plan.data, []
    limit = plan.config.document.get("train", {}).get("max_length")
    if data.longest_row is not None:
        cut = f", {data.trimmed_rows} rows are trimmed to {limit}" if data.trimmed_rows else ""
        longest = f", sequences of at most {data.longest_sequence}" if data.longest_sequence is not None else ""
        rows.append(("longest row", f"{data.longest_row} tokens{cut}{longest}"))
        rows.append(("rows", f"{data.rows} ({data.tokens} tokens), {data.validation_rows} more for validation"))
    else:
        rows.append(("longest row, tokens", f"unknown: {data.unknown}"))
    if data.planned_steps is not None:
        planned = f", {data.planned_tokens} tokens" if data.planned_tokens is not None else ""
        epochs = f", {data.epochs:g} epochs" if data.epochs is not None else ""
        rows.append(("steps", f"{data.planned_steps}{planned}{epochs}"))
    else:
        rows.append(("steps", "unknown before the rows are counted"))
    hours = plan.hours
    took = "unknown" if hours.seconds is None else f"about {duration(hours.seconds)}"
    rows.append(("time", f"{took} ({hours.source})"))
    if plan.disk is not None:
        disk = plan.disk
        keep = plan.config.own.checkpoint.keep
        rows.append(
            (
                "disk",
                f"{human_bytes(disk.checkpoint)} a checkpoint, {human_bytes(disk.peak)} at most ({keep} kept, the best "
                f"and the newest), {human_bytes(disk.cache)} for the cached base; {human_bytes(disk.free)} free",
            )
        )
    return [f"{label:<{LABEL}}{text}" for label, text in rows]


def _memory_lines(plan: Plan) -> list[str]:
    columns: list[Fit] = [plan.fit]
    if plan.fallback is not None:
        columns.append(plan.fallback[1])
    known = [fit.forecast for fit in columns if not fit.forecast.unknown]
    lines = [f"{'memory':<{LABEL}}" + "".join(f"{_short(fit.forecast.base):>{COLUMN}}" for fit in columns)]
    for row in dict.fromkeys(name for forecast in known for name, _ in parts_table(forecast)):
        lines.append(f"  {row:<{LABEL - 2}}" + "".join(f"{_cell(fit.forecast, row):>{COLUMN}}" for fit in columns))
    lines.append(f"{'predicted peak':<{LABEL}}" + "".join(f"{_peak(fit.forecast):>{COLUMN}}" for fit in columns))
    lines.append(f"{'':<{LABEL}}" + "".join(f"{_fits(fit):>{COLUMN}}" for fit in columns))
    for fit in columns:
        forecast = fit.forecast
        if forecast.unknown:
            lines.append(forecast.unknown)
        else:
            lines.append(
                f"{forecast.base}: {forecast.conditions}; the peak comes in: {forecast.when}; shape from "
                f"{forecast.shape}; {forecast.calibration}."
            )
    return lines


def _short(base: str) -> str:
    return base if len(base) < COLUMN else f"...{base[-(COLUMN - 5):]}"


def _cell(forecast: MemoryForecast, row: str) -> str:
    size = dict(parts_table(forecast)).get(row) if not forecast.unknown else None
    return "-" if size is None else human_bytes(size)


def _peak(forecast: MemoryForecast) -> str:
    return "unknown" if forecast.unknown else human_bytes(forecast.peak_bytes)


def _fits(fit: Fit) -> str:
    return {True: "fits", False: "does not fit", None: "unknown"}[fit.fits]


def plain(plan: Plan) -> dict[str, Any]:
    """Everything, as JSON values; sizes in bytes, times in seconds."""
    data, hours, disk = plan.data, plan.hours, plan.disk
    return {
        "name": plan.config.own.name,
        "verdict": verdict(plan.fit),
        "fits": plan.fit.fits,
        "device": plan.fit.room.device,
        "room_bytes": plan.fit.room.total,
        "room_source": plan.fit.room.source,
        "memory": plain_fit(plan.fit),
        "fallback": None
        if plan.fallback is None
        else {"rung": plan.fallback[0].rung, "price": plan.fallback[0].price, **plain_fit(plan.fallback[1])},
        "data": {
            "unknown": data.unknown or None,
            "rows": data.rows,
            "tokens": data.tokens,
            "validation_rows": data.validation_rows,
            "longest_row": data.longest_row,
            "longest_sequence": data.longest_sequence,
            "trimmed_rows": data.trimmed_rows,
            "planned_steps": data.planned_steps,
            "planned_tokens": data.planned_tokens,
            "epochs": data.epochs,
        },
        "time": {"seconds": hours.seconds, "tokens_per_second": hours.tokens_per_second, "source": hours.source},
        "disk": None
        if disk is None
        else {
            "checkpoint_bytes": disk.checkpoint,
            "kept_bytes": disk.kept,
            "peak_bytes": disk.peak,
            "cache_bytes": disk.cache,
            "free_bytes": disk.free,
        },
    }


def plain_fit(fit: Fit) -> dict[str, Any]:
    return {
        **plain_memory(fit.forecast),
        "fits": fit.fits,
        "relief": [
            {
                "rung": step.relief.rung,
                "price": step.relief.price,
                "lossless": step.relief.lossless,
                "changes": {patch.key: [patch.old, patch.new] for patch in step.relief.patches},
                "peak_bytes": None if step.forecast.unknown else step.forecast.peak_bytes,
                "unknown": step.forecast.unknown or None,
                "fits": step.fits,
            }
            for step in fit.steps
        ],
    }


def plain_memory(forecast: MemoryForecast) -> dict[str, Any]:
    if forecast.unknown:
        return {"base": forecast.base, "unknown": forecast.unknown, "peak_bytes": None}
    return {
        "base": forecast.base,
        "unknown": None,
        "peak_bytes": forecast.peak_bytes,
        "tensor_bytes": forecast.tensor_bytes,
        "parts": {**forecast.parts, "allocator": forecast.allocator_bytes, "context": forecast.context_bytes},
        "when": forecast.when,
        "conditions": forecast.conditions,
        "shape": forecast.shape,
        "calibration": forecast.calibration,
        "adapter_parameters": forecast.adapter_parameters,
    }
