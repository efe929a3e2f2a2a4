"""A comparison for people: text, and a page with a plot. Pure, free of torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from evalsuite.trace_diff.result import BEYOND, ModuleTrace, Own, Side, TraceDiff
from supervisor.html.charts import Curve, Line, Mark, curves
from supervisor.html.markup import Content, Html, element, joined, visible
from supervisor.html.page import facts, folded, page, section, table
from supervisor.html.scale import Axis

_MOST_NAMED = 10


def text_report(found: TraceDiff) -> str:
    """Lines of at most about 110 characters; what was found comes last, where one looks."""
    rows: list[tuple[str, ...]] = [("", "own error", "explained", "times", "at", "gathered", "cosine")]
    rows += [_line(name, list(group)) for name, group in groupby(_reordered(found.modules), lambda each: each.layer)]
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    lines = [f"A  {_side(found.a)}", f"B  {_side(found.b)}", *_facts(found), ""]
    for row in rows:
        cells = [
            cell.ljust(width) if column in (0, 4) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines += ["", *said(found)]
    return visible("\n".join(lines)) + "\n"


def said(found: TraceDiff) -> list[str]:
    """What was found, in sentences."""
    if found.verdict == "identical":
        return ["Nothing departs: A and B compute the same to the last bit."]
    if found.first is None:
        return [
            "Nothing departs: every module makes of A's values what A makes of them, within "
            f"{BEYOND:g} times what the difference in precision explains."
        ]
    first = found.first
    times = first.own.times
    beyond = "more than anything explains" if times is None else f"{times:.3g} times what precision explains"
    lines = [
        f"First departure: {first.module}, {first.where}.",
        f"  Given A's values it is off by {_number(first.own.relative)} of their size; in its worst channel that is "
        f"{beyond}. What reaches it from before is sound.",
    ]
    others = [departure for departure in found.departures[1:] if departure.module != first.module]
    if others:
        names = ", ".join(dict.fromkeys(departure.module for departure in others[:_MOST_NAMED]))
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        lines.append(f"  Departing by themselves as well: {names}{more}.")
    else:
        lines.append("  It is the only one: all that differs behind it is its error passed on.")
    return lines


def html_report(found: TraceDiff) -> Html:
    """One page: what was found, curves over the modules, all numbers in a table."""
    shown = found.modules
    marks = [
        Mark(place, trace.name, "bad", f"{trace.name} departs")
        for place, trace in enumerate(shown)
        if found.first is not None and trace.name == found.first.module and trace.call == 0
    ]
    number = Axis("module, in order of execution", text=lambda value: f"{value:g}")
    errors = [
        _dots("explained by precision", [trace.own.explained for trace in shown], "c2"),
        _dots("error that arises there", [trace.own.relative for trace in shown], "c1"),
        Curve("error gathered so far", [(at, _gathered(trace)) for at, trace in enumerate(shown)], "c0"),
    ]
    parts = dict.fromkeys(_part(trace) for trace in shown)
    times = [
        _dots(part, [_most(trace) if _part(trace) == part else None for trace in shown], f"c{place % 6}")
        for place, part in enumerate(parts)
    ]
    departs = [Line(BEYOND, "departs")]
    return page(
        "Where two paths of a model part",
        element("p", *_with_breaks(said(found))),
        facts([("A", _side(found.a)), ("B", _side(found.b)), *(("", line) for line in _facts(found))]),
        section(
            "Errors along the model",
            curves("Relative error of each module's output", errors, number, Axis(log=True), marks, height=300),
            curves("Its own error, by how many times what precision explains, in the worst channel", times, number,
                   Axis(log=True), marks, departs, height=300),
        ),
        section("Layers", _layers(found)),
        section("Modules", folded("All modules", _modules(shown))),
    )


def _facts(found: TraceDiff) -> Iterator[str]:
    cut = ", to which the prompt was cut" if found.prompt_cut else ""
    yield f"{found.tokens} tokens{cut}"
    if found.same_next_token is not None:
        yield f"A and B go on with the same token at {found.same_next_token[0]} of {found.same_next_token[1]} positions"
    for side, names in (("A", found.only_in_a), ("B", found.only_in_b)):
        if names:
            few = ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")
            yield f"only {side} has {len(names)} modules, which are not compared: {few}"
    peaks = [None if side.peak_bytes is None else side.peak_bytes / 1e9 for side in (found.a, found.b)]
    shown = " and ".join("unknown" if peak is None else f"{peak:.2f} GB" for peak in peaks)
    yield f"peak memory with A and with B: {shown}; activations on the disk: {found.stored_bytes / 1e6:.1f} MB"


def _side(side: Side) -> str:
    kind = f"{side.dtype}{', linear layers in NF4' if side.nf4 else ''}"
    return f"{side.spec}: {kind}, on {side.device}, revision {side.revision}"


def _reordered(modules: Sequence[ModuleTrace]) -> list[ModuleTrace]:
    """Layers together, in the order in which they are first left."""
    order = {name: place for place, name in enumerate(dict.fromkeys(trace.layer for trace in modules))}
    return sorted(modules, key=lambda trace: order[trace.layer])


def _line(name: str, traces: Sequence[ModuleTrace]) -> tuple[str, ...]:
    """A layer: the part with the largest error for its precision, and what has gathered when it is left."""
    worst, own = _worst(traces)
    last = traces[-1].accumulated
    part = worst.name.removeprefix(name).removeprefix(".")
    return (
        name,
        _number(own.relative),
        _number(own.explained),
        "beyond" if own.times is None else f"{own.times:.3g}",
        part,
        "unknown" if last is None else _number(last.relative),
        "unknown" if last is None or last.cosine is None else f"{last.cosine:.6f}",
    )


def _worst(traces: Sequence[ModuleTrace]) -> tuple[ModuleTrace, Own]:
    pairs = [(trace, own) for trace in traces for own in (trace.own, trace.before)]
    return max(pairs, key=lambda pair: (pair[1].times is None, pair[1].times or 0.0))


def _layers(found: TraceDiff) -> Html:
    groups = groupby(_reordered(found.modules), lambda each: each.layer)
    heads = ("layer", "own error", "explained", "times", "at", "gathered", "cosine")
    return table(heads, [_line(name, list(group)) for name, group in groups], left=(0, 4))


def _modules(traces: Iterable[ModuleTrace]) -> Html:
    heads = (
        "module", "kind", "mean A", "mean B", "std A", "std B", "max A", "max B", "gathered", "cosine", "own error",
        "explained", "times", "before it", "explained", "times",
    )  # fmt: skip
    return table(heads, (_row(trace) for trace in traces), left=(0, 1))


def _row(trace: ModuleTrace) -> list[Content]:
    a, b, gathered = trace.a, trace.b, trace.accumulated
    pairs: list[tuple[float | None, float | None]] = [(a.mean, None), (a.std, None), (a.largest, None)]
    if b is not None:
        pairs = [(a.mean, b.mean), (a.std, b.std), (a.largest, b.largest)]
    cells: list[Content] = [trace.name if trace.call == 0 else f"{trace.name}, call {trace.call + 1}", trace.kind]
    cells += [_number(value) for pair in pairs for value in pair]
    cells += ["unknown"] * 2 if gathered is None else [_number(gathered.relative), _number(gathered.cosine)]
    for own in (trace.own, trace.before):
        times = "beyond" if own.times is None else f"{own.times:.3g}"
        cells += [_number(own.relative), _number(own.explained), element("b", times) if own.departs else times]
    return cells


def _part(trace: ModuleTrace) -> str:
    return trace.block or ("layer" if trace.layer == trace.name and trace.layer[-1:].isdigit() else "other")


def _gathered(trace: ModuleTrace) -> float | None:
    return None if trace.accumulated is None else _shown(trace.accumulated.relative)


def _dots(name: str, values: Sequence[float | None], kind: str) -> Curve:
    """A point for each value, none of them joined."""
    points: list[tuple[float, float | None]] = []
    for at, value in enumerate(values):
        points += [(at, _shown(value)), (at, None)]
    return Curve(name, points, kind, dots=True)


def _most(trace: ModuleTrace) -> float:
    """The larger of the times of a module and of what comes before it; infinite where nothing explains it."""
    return max(math.inf if own.times is None else own.times for own in (trace.own, trace.before))


def _shown(value: float | None) -> float | None:
    """What a logarithmic axis can show: no error at all is a gap."""
    return value or None


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _with_breaks(lines: Iterable[str]) -> list[Content]:
    return [joined(line, element("br")) for line in lines]
