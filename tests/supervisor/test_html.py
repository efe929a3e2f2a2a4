"""Pages and charts: what they are given is text, and they reach nothing."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from supervisor.html.charts import Bar, Curve, Interval, Line, Mark, Span, bars, curves, intervals, spans
from supervisor.html.markup import Html, element, joined, link, markup, visible
from supervisor.html.page import badge, facts, folded, page, preformatted, section, table
from supervisor.html.scale import Axis, fitted

HOSTILE = "</pre><script>alert(1)</script><img src=http://x.test onerror='x'>\"&\x00\x1b[31m\u202egnp.exe\ud800 \u200b"
AXIS = Axis("step")


class Tags(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.addresses: list[str | None] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attrs)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


def read(found: Html) -> Tags:
    tags = Tags()
    tags.feed(found.encode("utf-8").decode())
    return tags


def drawing(figure: Html) -> ElementTree.Element:
    found = re.search(r"<svg.*</svg>", figure, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found.group())


def every_chart(text: str) -> list[Html]:
    return [
        curves(text, [Curve(text, [(0, 1.0), (1, 2.0)], dots=True)], Axis(text), Axis(text), [Mark(0.5, text)],
               [Line(1.5, text)]),
        intervals(text, [Interval(text, 0.1, 0.2, 0.3)], Axis(text), 0.0),
        bars(text, [Bar(text, 3.0)], Axis(text), [Mark(0, text)]),
        spans(text, [Span(text, 0, 1, title=text)], Axis(text), [Mark(0.5, text)]),
    ]  # fmt: skip


# proves EVL-2 (reports): nothing that a model wrote becomes markup, wherever it stands, and nothing is unseen
def test_what_is_shown_stays_text() -> None:
    everywhere = page(
        HOSTILE,
        section(HOSTILE, HOSTILE, name=HOSTILE),
        table([HOSTILE], [[HOSTILE]]),
        facts([(HOSTILE, HOSTILE)]),
        badge(HOSTILE, HOSTILE),
        preformatted(HOSTILE),
        folded(HOSTILE, HOSTILE),
        *every_chart(HOSTILE),
    )
    ours = page("x", section("x", name="x"), table(["x"], [["x"]]), facts([("x", "x")]), badge("x", "bad"),
                preformatted("x"), folded("x", "x"), *every_chart("x"))  # fmt: skip
    found, clean = read(everywhere), read(ours)
    assert found.tags == clean.tags
    assert found.attributes == clean.attributes
    assert found.addresses == clean.addresses == []
    assert not {"script", "img", "link", "iframe"} & set(found.tags)
    assert "\u202e" not in everywhere and "<U+202E>" in found.text
    assert "\x1b" not in everywhere and "<U+D800>" in found.text


def test_a_page_may_reach_nothing() -> None:
    written = page("a page")
    assert "default-src 'none'" in written
    assert "url(" not in written and "@import" not in written and "http://" not in written
    for name in ("script", "iframe", "style", "foreignObject"):
        with pytest.raises(ValueError, match="no element"):
            element(name, "x")
    for attribute in ("onclick", "href", "style", "src"):
        with pytest.raises(ValueError, match="no attribute"):
            element("p", **{attribute: "x"})
    for target in ("javascript:alert(1)", "//host/x", "https://host", "a b", "java\nscript:x"):
        with pytest.raises(ValueError, match="address"):
            link(target, "x")
    assert link("run-1/report.html#loss", "<b>") == '<a href="run-1/report.html#loss">&lt;b&gt;</a>'


def test_markup_is_escaped_once() -> None:
    inner = element("b", "a < b", class_="soft", hidden=True, title=None)
    assert inner == '<b class="soft" hidden>a &lt; b</b>'
    assert joined(inner, "<") == f"{inner}&lt;"
    assert markup(inner) is inner
    assert markup(0.1 + 0.2) == "0.3" and markup(12345678) == "12345678"
    assert visible("a\r\nb\tc") == "a\nb\tc"


def test_long_texts_say_what_is_left_out() -> None:
    assert "... 5 more characters, not shown" in preformatted("x" * 15, most=10)
    assert "not shown" not in preformatted("x" * 10, most=10)


@pytest.mark.parametrize(
    ("values", "log", "expected"),
    [
        ([0, 100], False, [0, 20, 40, 60, 80, 100]),
        ([0.12, 0.19], False, [0.12, 0.14, 0.16, 0.18]),
        ([3.0], False, [2.7, 2.8, 2.9, 3.0, 3.1, 3.2, 3.3]),
        ([], False, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        ([1e-6, 1.0], True, [1e-6, 1e-4, 1e-2, 1.0]),
        ([2.0, 5.0, -1.0, 0.0], True, [2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0]),
        ([math.nan, math.inf, 1e300, 0, 1], False, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    ],
)
def test_ticks_are_round_and_inside(values: list[float], log: bool, expected: list[float]) -> None:
    scale = fitted(Axis(log=log), values, 10, 110)
    assert scale.ticks() == pytest.approx(expected)
    assert all(10 - 1e-6 <= scale.at(tick) <= 110 + 1e-6 for tick in scale.ticks())


def test_a_curve_keeps_its_gaps_and_shows_what_is_not_finite() -> None:
    points = [(0, 1.0), (1, 2.0), (2, None), (3, 1.0), (4, 2.0), (5, math.nan), (6, math.inf)]
    drawn = drawing(curves("loss", [Curve("loss", points)], AXIS, Axis("loss")))
    assert len(drawn.findall("polyline")) == 2
    assert [found.findtext("title") for found in drawn.findall("path")] == ["loss is nan at 5", "loss is inf at 6"]


def test_a_long_curve_keeps_its_extremes() -> None:
    values = [1.0] * 50_000
    values[31_415], values[27_182] = 9.0, -3.0
    drawn = drawing(curves("loss", [Curve("loss", list(enumerate(values)))], AXIS, Axis("loss")))
    (line,) = drawn.findall("polyline")
    heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    assert len(heights) <= 2100
    lowest, highest = max(heights), min(heights)
    assert heights.count(lowest) == 1 and heights.count(highest) == 1


def test_an_unknown_interval_says_so() -> None:
    shown = [Interval("known", 0.1, 0.2, 0.3), Interval("unknown one", None, None, None)]
    drawn = drawing(intervals("scores", shown, Axis("pass@1"), reference=0.0))
    assert len(drawn.findall(".//circle")) == 1
    assert "unknown" in [text.text for text in drawn.iter("text")]
    assert "known: 0.2 (0.1 to 0.3)" in [title.text for title in drawn.iter("title")]


def test_bars_and_spans_stand_where_their_values_are() -> None:
    drawn = drawing(bars("rows", [Bar("1", 0), Bar("2", 5), Bar("3", 10)], Axis("rows")))
    heights = [float(rect.attrib["height"]) for rect in drawn.findall("rect")]
    assert heights[0] == 0 and heights[1] == pytest.approx(heights[2] / 2, abs=0.1)
    drawn = drawing(spans("attempts", [Span("1", 0, 10), Span("2", 10, 30)], AXIS))
    first, second = drawn.findall("rect")
    assert float(second.attrib["width"]) == pytest.approx(2 * float(first.attrib["width"]), abs=0.3)
    assert float(first.attrib["y"]) < float(second.attrib["y"])


# proves SUP-19: no step is written under a place that is not its own
@pytest.mark.parametrize("last", [1, 3, 20, 1000])
def test_steps_are_counted_in_whole_numbers(last: int) -> None:
    ticks = fitted(Axis("step", whole=True), [0, last], 10, 110).ticks(8)
    assert len(ticks) >= 2
    assert all(tick == int(tick) for tick in ticks)
