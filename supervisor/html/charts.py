"""Charts as inline SVG: curves over a number, values with intervals, bars, spans of time.

Every chart is a ``<figure>``: caption, drawing, legend. Each shape says in its ``<title>`` what it stands for. A value
that is None leaves a gap; one that isn't finite is shown as a cross at the upper edge, because it must be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from supervisor.html.markup import Attribute, Content, Html, element, joined, number
from supervisor.html.scale import Axis, Scale, drawable, fitted

WIDTH = 860
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 22, 34
_ROW = 22
_MOST_POINTS = 1000
"""Of a curve; more are drawn as the lowest and the highest of each stretch."""


@dataclass(frozen=True)
class Curve:
    """Points ``(x, y)`` in order of x. ``kind`` is a class of the page's style: c0 to c5, good, bad, unsure."""

    name: str
    points: Sequence[tuple[float, float | None]]
    kind: str = "c0"
    dots: bool = False
    """Draw each point as well: right for few of them, such as evaluations."""


@dataclass(frozen=True)
class Mark:
    """Something that happened at ``at`` (in x); ``text`` is shown beside its line, ``title`` when pointed at."""

    at: float
    text: str = ""
    kind: str = "c5"
    title: str = ""


@dataclass(frozen=True)
class Line:
    """A level across the chart, such as a limit."""

    at: float
    text: str = ""
    kind: str = "bad"


@dataclass(frozen=True)
class Interval:
    """A value with its interval; each may be unknown."""

    name: str
    low: float | None
    at: float | None
    high: float | None
    kind: str = "c0"
    title: str = ""


@dataclass(frozen=True)
class Bar:
    name: str
    value: float
    kind: str = "c0"
    title: str = ""


@dataclass(frozen=True)
class Span:
    """A stretch from ``start`` to ``end`` (in x) in the row ``row``."""

    row: str
    start: float
    end: float
    kind: str = "c0"
    title: str = ""


def curves(
    caption: str,
    shown: Sequence[Curve],
    x: Axis,
    y: Axis,
    marks: Sequence[Mark] = (),
    lines: Sequence[Line] = (),
    height: int = 220,
) -> Html:
    """Curves over x with the marks of what happened and the levels that matter."""
    xs = [at for curve in shown for at, _ in curve.points] + [mark.at for mark in marks]
    ys = [value for curve in shown for _, value in curve.points if value is not None] + [line.at for line in lines]
    across = fitted(x, xs, _LEFT, WIDTH - _RIGHT)
    up = fitted(y, ys, height - _BOTTOM, _TOP)
    shapes = [*_horizontal_grid(up, y), *_vertical_ticks(across, x, height)]
    for mark in marks:
        if drawable(mark.at):
            at = across.at(mark.at)
            end = at > WIDTH - 120
            shapes.append(
                element(
                    "g",
                    element("title", mark.title or mark.text),
                    _line(at, at, _TOP, height - _BOTTOM, f"mark {mark.kind}"),
                    _text(at + (-4 if end else 4), _TOP + 9, mark.text, "end" if end else "start"),
                )
            )
    for line in lines:
        if drawable(line.at) and (line.at > 0 or not y.log):
            level = up.at(line.at)
            shapes.append(_line(_LEFT, WIDTH - _RIGHT, level, level, f"mark {line.kind}"))
            shapes.append(_text(WIDTH - _RIGHT, level - 3, line.text, "end"))
    for curve in shown:
        shapes.extend(_curve(curve, across, up))
    shapes.append(_text(WIDTH - _RIGHT, height - 4, x.label, "end"))
    if y.label:
        shapes.append(_text(2, _TOP - 11, y.label, "start"))
    named = [(curve.name, curve.kind) for curve in shown if curve.name]
    return _figure(caption, height, shapes, named if len(named) > 1 else ())


def intervals(caption: str, shown: Sequence[Interval], x: Axis, reference: float | None = None) -> Html:
    """A row for each value with its interval; ``reference`` is the value that they are compared with."""
    left = _room_for(row.name for row in shown)
    height = _TOP + _ROW * len(shown) + _BOTTOM
    found = [value for row in shown for value in (row.low, row.at, row.high) if value is not None and drawable(value)]
    across = fitted(x, found + ([] if reference is None else [reference]), left + 10, WIDTH - _RIGHT - 10)
    shapes = _vertical_ticks(across, x, height, grid=True)
    if reference is not None:
        shapes.append(_line(across.at(reference), across.at(reference), _TOP, height - _BOTTOM, "reference"))
    for place, row in enumerate(shown):
        middle = _TOP + _ROW * (place + 0.5)
        drawn: list[Content] = [element("title", row.title or _said(row, x))]
        if row.low is not None and row.high is not None and drawable(row.low) and drawable(row.high):
            low, high = across.at(row.low), across.at(row.high)
            drawn.append(_line(low, high, middle, middle, f"whisker {row.kind}"))
            drawn += [_line(end, end, middle - 4, middle + 4, f"whisker {row.kind}") for end in (low, high)]
        if row.at is not None and drawable(row.at):
            drawn.append(element("circle", cx=_place(across.at(row.at)), cy=middle, r=4, class_=row.kind))
        else:
            drawn.append(_text(left + 4, middle + 4, "unknown", "start"))
        shapes.append(element("g", *drawn))
        shapes.append(_text(left - 10, middle + 4, _short(row.name), "end", "name"))
    shapes.append(_text(WIDTH - _RIGHT, height - 4, x.label, "end"))
    return _figure(caption, height, shapes)


def bars(
    caption: str, shown: Sequence[Bar], y: Axis, marks: Sequence[Mark] = (), width: int = WIDTH, height: int = 160
) -> Html:
    """Upright bars from zero; the first and the last name are written. A mark stands at a bar's number, from 0."""
    up = fitted(Axis(y.label, low=0.0, high=y.high, text=y.text), [bar.value for bar in shown], height - _BOTTOM, _TOP)
    each = (width - _LEFT - _RIGHT) / max(1, len(shown))
    shapes = _horizontal_grid(up, y, width, 3)
    for place, bar in enumerate(shown):
        if drawable(bar.value):
            top, foot = sorted((up.at(bar.value), up.at(0.0)))
            shapes.append(
                element(
                    "rect",
                    element("title", bar.title or f"{bar.name}: {y.text(bar.value)}"),
                    x=_place(_LEFT + each * place),
                    y=_place(top),
                    width=_place(max(1.0, each - 1)),
                    height=_place(foot - top),
                    class_=bar.kind,
                )
            )
    for mark in marks:
        at = _LEFT + each * mark.at
        shapes.append(_line(at, at, _TOP, height - _BOTTOM, f"mark {mark.kind}"))
        shapes.append(_text(at + 4, _TOP + 9, mark.text, "start"))
    if shown:
        shapes.append(_text(_LEFT, height - _BOTTOM + 14, shown[0].name, "start"))
        shapes.append(_text(width - _RIGHT, height - _BOTTOM + 14, shown[-1].name, "end"))
    if y.label:
        shapes.append(_text(2, _TOP - 11, y.label, "start"))
    return _figure(caption, height - 14, shapes, width=width)


def spans(caption: str, shown: Sequence[Span], x: Axis, marks: Sequence[Mark] = ()) -> Html:
    """Rows of stretches of time, such as attempts. Rows stand in the order in which they first appear."""
    rows = list(dict.fromkeys(span.row for span in shown))
    left = _room_for(rows)
    height = _TOP + _ROW * len(rows) + _BOTTOM
    ends = [end for span in shown for end in (span.start, span.end)]
    across = fitted(x, ends + [mark.at for mark in marks], left, WIDTH - _RIGHT)
    shapes = _vertical_ticks(across, x, height, grid=True)
    for place, row in enumerate(rows):
        shapes.append(_text(left - 10, _TOP + _ROW * (place + 0.5) + 4, _short(row), "end", "name"))
    for span in shown:
        if drawable(span.start) and drawable(span.end):
            start, end = across.at(span.start), across.at(span.end)
            shapes.append(
                element(
                    "rect",
                    element("title", span.title or span.row),
                    x=_place(start),
                    y=_TOP + _ROW * rows.index(span.row) + 4,
                    width=_place(max(2.0, end - start)),
                    height=_ROW - 8,
                    rx=2,
                    class_=span.kind,
                )
            )
    for mark in marks:
        if drawable(mark.at):
            at = across.at(mark.at)
            shapes.append(
                element(
                    "g",
                    element("title", mark.title or mark.text),
                    _line(at, at, _TOP - 4, height - _BOTTOM, f"mark {mark.kind}"),
                    _text(at + 3, _TOP - 1, mark.text, "start"),
                )
            )
    shapes.append(_text(WIDTH - _RIGHT, height - 4, x.label, "end"))
    return _figure(caption, height, shapes)


# --- pieces ---------------------------------------------------------------------------------------


def _figure(
    caption: str, height: float, shapes: Sequence[Content], named: Sequence[tuple[str, str]] = (), width: int = WIDTH
) -> Html:
    drawing = element("svg", *shapes, viewBox=f"0 0 {width} {height:g}", width=width, role="img", aria_label=caption)
    legend = element("p", *(element("span", element("i", class_=kind), name) for name, kind in named), class_="legend")
    return element("figure", element("figcaption", caption), drawing, legend if named else Html(""))


def _curve(curve: Curve, across: Scale, up: Scale) -> Iterator[Html]:
    pieces: list[list[str]] = [[]]
    known = [(x, y) for x, y in curve.points if y is None or (drawable(x) and _fits(up, y))]
    for x, y in _thinned(known):
        if y is None:
            pieces.append([])
        else:
            pieces[-1].append(f"{across.at(x):.1f},{up.at(y):.1f}")
            if curve.dots:
                title = element("title", f"{curve.name} {number(y)} at {number(x)}")
                yield element("circle", title, cx=_place(across.at(x)), cy=_place(up.at(y)), r=3, class_=curve.kind)
    for piece in pieces:
        if len(piece) > 1:
            yield element("polyline", points=" ".join(piece), class_=f"curve {curve.kind}")
        elif piece and not curve.dots:
            x_text, y_text = piece[0].split(",")
            yield element("circle", cx=x_text, cy=y_text, r=2, class_=curve.kind)
    for x, y in curve.points:
        if y is not None and not _fits(up, y) and drawable(x):
            at = across.at(x)
            cross = f"M{at - 4:.1f},{_TOP - 4}l8,8m0,-8l-8,8"
            title = element("title", f"{curve.name} is {number(y)} at {number(x)}")
            yield element("path", title, d=cross, class_=f"curve {curve.kind}")


def _fits(scale: Scale, value: float) -> bool:
    return drawable(value) and (value > 0 or not scale.log)


def _thinned(points: Sequence[tuple[float, float | None]]) -> Sequence[tuple[float, float | None]]:
    """The same picture of fewer points: of each stretch its first gap, lowest and highest, in order."""
    if len(points) <= 2 * _MOST_POINTS:
        return points
    each = -(-len(points) // _MOST_POINTS)
    kept: list[tuple[float, float | None]] = []
    for start in range(0, len(points), each):
        stretch = points[start : start + each]
        values = [(value, place) for place, (_, value) in enumerate(stretch) if value is not None]
        places = {place for place, (_, value) in enumerate(stretch) if value is None}
        chosen = {min(values)[1], max(values)[1]} if values else set()
        kept += [stretch[place] for place in sorted(chosen | set(sorted(places)[:1]))]
    return kept


def _horizontal_grid(up: Scale, axis: Axis, width: int = WIDTH, most: int = 5) -> list[Html]:
    shapes = []
    for tick in up.ticks(most):
        at = up.at(tick)
        shapes.append(_line(_LEFT, width - _RIGHT, at, at, "grid"))
        shapes.append(_text(_LEFT - 6, at + 4, axis.text(tick), "end"))
    return shapes


def _vertical_ticks(across: Scale, axis: Axis, height: float, grid: bool = False) -> list[Html]:
    foot = height - _BOTTOM
    shapes = [_line(across.start, across.end, foot, foot, "axis")]
    for tick in across.ticks(8):
        at = across.at(tick)
        shapes.append(_line(at, at, _TOP if grid else foot, foot if grid else foot + 4, "grid" if grid else "axis"))
        shapes.append(_text(at, foot + 15, axis.text(tick), "middle"))
    return shapes


def _line(x1: float, x2: float, y1: float, y2: float, class_: str) -> Html:
    return element("line", x1=_place(x1), x2=_place(x2), y1=_place(y1), y2=_place(y2), class_=class_)


def _text(x: float, y: float, text: str, anchor: str, class_: Attribute = None) -> Html:
    return element("text", text, x=_place(x), y=_place(y), text_anchor=anchor, class_=class_) if text else joined()


def _place(value: float) -> str:
    return f"{value:.1f}"


def _room_for(names: Iterable[str]) -> int:
    """Width of a column of names, in the drawing's units."""
    return min(330, 30 + 7 * max((len(_short(name)) for name in names), default=0))


def _short(name: str) -> str:
    return name if len(name) <= 44 else f"{name[:20]}...{name[-21:]}"


def _said(row: Interval, axis: Axis) -> str:
    value, low, high = ("unknown" if each is None else axis.text(each) for each in (row.at, row.low, row.high))
    return f"{row.name}: {value} ({low} to {high})"
