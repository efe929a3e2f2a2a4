"""The comparison from top to bottom: one model after the other, never both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from evalsuite.trace_diff import measure
from evalsuite.trace_diff.hooks import Visitor, modules, visited
from evalsuite.trace_diff.measure import Error
from evalsuite.trace_diff.models import Located, find, forget_peak, loaded, peak_bytes, tokenizer_of
from evalsuite.trace_diff.passes import Forced, Free, Recorded, Simulated
from evalsuite.trace_diff.result import (
    FORMAT,
    ModuleTrace,
    Own,
    Side,
    TraceDiff,
    departures,
    verdict,
)
from evalsuite.trace_diff.spec import ModelSpec, Simulation, simulation
from evalsuite.trace_diff.store import Point, Store
from supervisor.problems import InputError
from trainer.numerics import settle_vector_maths

Say = Callable[[str], None]


def trace_diff(a: ModelSpec, b: ModelSpec, prompt: str, most_tokens: int, folder: Path, say: Say) -> TraceDiff:
    """Compare ``a`` and ``b`` on ``prompt``, cut to ``most_tokens``; activations go into ``folder``.

    Raises InputError for what can't be loaded or compared, OSError when ``folder`` is full.
    """
    settle_vector_maths()
    found_a, found_b = find(a), find(b)
    ids, cut = _ids([found_a, found_b], prompt, most_tokens)
    wanted = simulation((a, found_a.precision), (b, found_b.precision))
    with Store(folder / "a") as store, Store(folder / "b") as kept:
        say(f"A: {a.text} ({found_a.dtype} on {found_a.device})")
        forget_a = forget_peak()
        with loaded(found_a) as model:
            _check_ids(a, model, ids)
            names_a = list(modules(model))
            recorded = Recorded(store)
            _run(model, ids, recorded)
            explained = _simulated(model, ids, wanted, store, store) if wanted.side == "a" else {}
            del model
        peak_a = peak_bytes() if forget_a else None
        say(f"B: {b.text} ({found_b.dtype} on {found_b.device})")
        forget_b = forget_peak()
        with loaded(found_b) as model:
            _check_ids(b, model, ids)
            names_b = list(modules(model))
            free, forced = Free(store), Forced(store, kept if wanted.side == "b" else None)
            _run(model, ids, free)
            _run(model, ids, forced)
            if wanted.side == "b":
                explained = _simulated(model, ids, wanted, store, kept)
            del model
        peak_b = peak_bytes() if forget_b else None
        stored = store.size + kept.size
    for point, shape_a, shape_b in forced.misfits:
        raise InputError(
            f"{a.text} and {b.text} are different models: {point.module} gives {list(shape_a)} in one and "
            f"{list(shape_b)} in the other. Two loads of one model can be compared."
        )
    traces = _traces(recorded, free, forced.errors, explained)
    if not traces:
        raise InputError(f"{a.text} and {b.text} have no module in common. Two loads of one model can be compared.")
    parted = departures(traces)
    return TraceDiff(
        format=FORMAT,
        a=_side(found_a, peak_a),
        b=_side(found_b, peak_b),
        verdict=verdict(traces),
        first=parted[0] if parted else None,
        departures=parted,
        modules=traces,
        only_in_a=tuple(name for name in names_a if name not in set(names_b)),
        only_in_b=tuple(name for name in names_b if name not in set(names_a)),
        tokens=len(ids),
        prompt_cut=cut,
        same_next_token=free.same_next_token,
        stored_bytes=stored,
    )


def _ids(found: list[Located], prompt: str, most: int) -> tuple[list[int], bool]:
    ids = list(tokenizer_of(found)(prompt)["input_ids"])
    if not ids:
        raise InputError("The prompt is empty. Write some lines of the kind of text that the model is for.")
    return ids[:most], len(ids) > most


def _check_ids(spec: ModelSpec, model: Any, ids: list[int]) -> None:
    known = model.get_input_embeddings().weight.shape[0]
    if max(ids) >= known:
        raise InputError(
            f"{spec.text} knows {known} tokens and the prompt has number {max(ids)}: the tokenizer is another model's."
        )


@torch.inference_mode()
def _run(model: Any, ids: list[int], visitor: Visitor) -> None:
    with visited(model, visitor):
        model(input_ids=torch.tensor([ids], device=model.device), use_cache=False)


def _simulated(model: Any, ids: list[int], wanted: Simulation, store: Store, target: Store) -> dict[Point, Error]:
    visitor = Simulated(wanted, store, target, model.get_output_embeddings())
    _run(model, ids, visitor)
    return visitor.errors


def _traces(
    recorded: Recorded, free: Free, errors: Mapping[Point, Error], explained: Mapping[Point, Error]
) -> tuple[ModuleTrace, ...]:
    """Of every call that both models made, in the order in which they were left."""
    events = {point: number for number, point in enumerate(recorded.order)}
    calls: dict[tuple[str, int], tuple[list[Point], list[Point]]] = {}
    for point in recorded.order:
        if point in errors:
            calls.setdefault((point.module, point.call), ([], []))[point.out].append(point)
    found = []
    for (name, call), (before, after) in calls.items():
        if not after:
            continue
        first = after[0]
        found.append(
            ModuleTrace(
                name=name,
                kind=recorded.kinds[name],
                call=call,
                entered=events[before[0]] if before else events[first],
                left=events[first],
                a=recorded.values[first],
                b=free.values.get(first),
                accumulated=free.differences.get(first),
                own=_worst(after, errors, explained),
                before=_worst(before, errors, explained),
            )
        )
    return tuple(sorted(found, key=lambda trace: trace.left))


def _worst(points: list[Point], errors: Mapping[Point, Error], explained: Mapping[Point, Error]) -> Own:
    """Of several tensors the one that is furthest beyond what is explained."""
    found = [
        Own(
            errors[point].relative,
            explained[point].relative,
            measure.times_explained(errors[point], explained[point]),
        )
        for point in points
    ]
    return max(found, key=lambda own: (own.times is None, own.times or 0.0), default=Own())


def _side(found: Located, peak: int | None) -> Side:
    return Side(
        spec=found.spec.text,
        base=found.base.name,
        revision=found.base.revision,
        adapter=None if found.spec.adapter is None else str(found.spec.adapter),
        dtype=found.dtype,
        nf4=found.precision.nf4,
        device=str(found.device),
        peak_bytes=peak,
    )
