"""The frame around every page, and its tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from supervisor.html.markup import Content, Html, element, joined, markup

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""What a browser is told: no script, no address, no picture. Nothing in a page may reach the network."""

_STYLE = """
:root { --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --faint: #eef1f4; --paper: #fff;
  --c0: #0f6cbf; --c1: #c4562a; --c2: #2b8a57; --c3: #8a4fb5; --c4: #a47400; --c5: #4a5a6a;
  --good: #1a7f37; --bad: #c9252d; --unsure: #9a6700; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa5b1; --line: #3d444d; --faint: #1c2229;
  --paper: #0d1117; --c0: #58a6ff; --c1: #f0883e; --c2: #56d18a; --c3: #c297ff; --c4: #e3b341; --c5: #a9b7c6;
  --good: #3fb950; --bad: #ff7b72; --unsure: #d29922; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: var(--ink);
  background: var(--paper); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } h3 { font-size: 1rem; margin-bottom: .3rem; }
a { color: var(--c0); } .soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); }
.unsure { color: var(--unsure); }
.badge { display: inline-block; border: 1px solid; border-radius: 1em; padding: 0 .6em; font-size: .85em;
  font-weight: 600; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; min-width: 50%; }
th, td { text-align: right; padding: .3rem .6rem; vertical-align: top; font-variant-numeric: tabular-nums; }
th { border-bottom: 2px solid var(--line); font-weight: 600; } td { border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, th.left, td.left { text-align: left; }
td { overflow-wrap: break-word; } td.left { overflow-wrap: anywhere; min-width: 6rem; } .whole { white-space: nowrap; }
pre { background: var(--faint); padding: .6rem .8rem; overflow: auto; max-height: 28rem; margin: .3rem 0;
  white-space: pre-wrap; overflow-wrap: anywhere; font: 12.5px/1.45 ui-monospace, monospace; unicode-bidi: plaintext; }
code { font: .9em ui-monospace, monospace; } details { margin: .4rem 0; } summary { cursor: pointer; }
figure { margin: 1rem 0; } figcaption { font-weight: 600; font-size: .95rem; margin-bottom: .2rem; }
figure svg { max-width: 100%; height: auto; display: block; }
.legend { color: var(--soft); font-size: .85rem; margin: .1rem 0; } .legend span { margin-right: 1.2em; }
.legend i { display: inline-block; width: 1.4em; height: .25em; vertical-align: middle; margin-right: .4em; }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 0 1.5rem; }
.beside > * { min-width: 0; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); } svg text.name { fill: var(--ink); }
svg .axis { stroke: var(--line); stroke-width: 1; } svg .grid { stroke: var(--line); stroke-width: .5; }
svg .curve { fill: none; stroke-width: 1.5; stroke-linejoin: round; } svg .mark { stroke-dasharray: 3 3; }
svg .reference { stroke: var(--ink); stroke-dasharray: 4 3; } svg .whisker { stroke-width: 2; }
.c0 { stroke: var(--c0); fill: var(--c0); background: var(--c0); } .c1 { stroke: var(--c1); fill: var(--c1);
  background: var(--c1); } .c2 { stroke: var(--c2); fill: var(--c2); background: var(--c2); }
.c3 { stroke: var(--c3); fill: var(--c3); background: var(--c3); } .c4 { stroke: var(--c4); fill: var(--c4);
  background: var(--c4); } .c5 { stroke: var(--c5); fill: var(--c5); background: var(--c5); }
svg .good { stroke: var(--good); fill: var(--good); } svg .bad { stroke: var(--bad); fill: var(--bad); }
svg .unsure { stroke: var(--unsure); fill: var(--unsure); } svg .area { stroke: none; fill-opacity: .15; }
@media print { body { max-width: none; } pre { max-height: none; } }
"""


def page(title: str, *contents: Content) -> Html:
    """A whole page with ``title`` as its first heading. Write it as UTF-8."""
    head = joined(
        element("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        Html(f"<style>{_STYLE}</style>"),
    )
    body = element("body", element("h1", title), *contents)
    return Html(f'<!doctype html>\n<html lang="en">{element("head", head)}{body}</html>\n')


def table(heads: Sequence[Content], rows: Iterable[Sequence[Content]], left: Sequence[int] = (0,)) -> Html:
    """Columns are set to the right, as numbers are; those numbered in ``left`` to the left."""

    def line(kind: str, cells: Sequence[Content]) -> Html:
        return element(
            "tr", *(element(kind, cell, class_="left" if at in left else None) for at, cell in enumerate(cells))
        )

    body = joined(*(line("td", row) for row in rows))
    return element(
        "div", element("table", element("thead", line("th", heads)), element("tbody", body)), class_="scroll"
    )


def section(heading: str, *contents: Content, name: str | None = None) -> Html:
    """A second-level heading and what stands under it; ``name`` makes it a target of ``link("#name")``."""
    return element("section", element("h2", heading), *contents, id=name)


def facts(pairs: Iterable[tuple[str, Content]]) -> Html:
    """A table of two columns without heads."""
    rows = joined(*(element("tr", element("td", key), element("td", value, class_="left")) for key, value in pairs))
    return element("div", element("table", element("tbody", rows)), class_="scroll")


def badge(text: str, kind: str) -> Html:
    """One word in a frame; ``kind`` is good, bad, unsure or soft."""
    return element("span", text, class_=f"badge {kind}")


def preformatted(text: str, most: int = 20_000) -> Html:
    """Text as it is, its line breaks kept; what is longer than ``most`` characters says how much is left out."""
    shown = markup(text[:most])
    return element(
        "pre", shown if len(text) <= most else joined(shown, f"\n... {len(text) - most} more characters, not shown")
    )


def folded(summary: Content, *contents: Content, open_: bool = False) -> Html:
    """What shows when one asks for it."""
    return element("details", element("summary", summary), *contents, open=open_)
