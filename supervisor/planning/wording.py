"""Forecasts in words, for the plan and for the admission of a run."""

from __future__ import annotations

from supervisor.planning.fit import Fit, Room, Step, fits_in
from supervisor.protocol.forecast import MemoryForecast
from supervisor.sensors.disk import human_bytes

PART_NAMES = {
    "weights": "weights of the layers",
    "embeddings": "embeddings and output head",
    "adapter": "adapter",
    "optimizer": "optimiser",
    "gradients": "gradients",
    "activations": "activations",
    "logits": "logits, one slice",
}


def verdict(fit: Fit) -> str:
    """One sentence: fits, does not fit and what would help, or why that is not known."""
    forecast, room = fit.forecast, fit.room
    if forecast.unknown:
        return f"Not known whether it fits: {forecast.unknown}"
    peak = f"predicted peak {'at most ' if forecast.at_most else ''}{human_bytes(forecast.peak_bytes)}"
    if room.total is None:
        return f"{peak[0].upper()}{peak[1:]}; whether that fits is not known: {room.source}."
    there = f"of {human_bytes(room.total)} ({room.source})"
    if fit.fits:
        return f"Fits: {peak} {there}."
    text = f"Does not fit: {peak} {there}."
    if fit.way_out is not None:
        return f"{text} {_way_out(fit)}"
    return f"{text} {_no_way_out(fit)}"


def _way_out(fit: Fit) -> str:
    *before, last = fit.steps
    after = f"then {human_bytes(last.forecast.peak_bytes)}"
    if not before:
        return f"Relief that makes it fit: {last.relief.rung} ({last.relief.price}), {after}."
    names = ", ".join(step.relief.rung for step in before)
    return f"Relief that makes it fit: {last.relief.rung} ({last.relief.price}) after {names}, {after}."


def _no_way_out(fit: Fit) -> str:
    if not fit.steps:
        return "No rung of relief.ladder saves memory here."
    names = ", ".join(step.relief.rung for step in fit.steps)
    least = min(fit.steps, key=lambda step: step.forecast.peak_bytes or fit.forecast.peak_bytes)
    unknown = next((step.forecast.unknown for step in fit.steps if step.forecast.unknown), "")
    if unknown:
        return f"With {names}: {unknown}"
    return f"Even with {names} it would need {human_bytes(least.forecast.peak_bytes)}."


def parts_table(forecast: MemoryForecast) -> list[tuple[str, int]]:
    """Name and bytes of each part of the peak, overheads last."""
    rows = [(PART_NAMES.get(name, name), size) for name, size in forecast.parts.items()]
    return [
        *sorted(rows, key=lambda row: -row[1]),
        ("allocator", forecast.allocator_bytes),
        ("context, libraries", forecast.context_bytes),
    ]


def step_line(step: Step, room: Room) -> str:
    """A rung and what it would leave."""
    if step.forecast.unknown:
        return f"{step.relief.rung}: {step.relief.price} -> unknown"
    fits = {True: "fits", False: "does not fit", None: "unknown"}[fits_in(step.forecast, room)]
    return f"{step.relief.rung}: {step.relief.price} -> {human_bytes(step.forecast.peak_bytes)}, {fits}"
