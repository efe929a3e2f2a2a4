"""What a build came to, for people: text, and one HTML page that needs nothing else. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from supervisor.html import charts
from supervisor.html.markup import Html, element, joined
from supervisor.html.page import page, section, table
from supervisor.html.scale import Axis
from trainer.data.build.manifest import CorpusManifest, SourceRecord
from trainer.data.build.readiness import Measured, Thresholds
from trainer.data.histogram import HISTOGRAM_BIN_TOKENS

UNKNOWN = "unknown"
_BARS = 12


def text_report(manifest: CorpusManifest) -> str:
    """Lines of at most about 110 characters."""
    return "\n".join([*_head(manifest), "", *_sources(manifest), "", *_lengths(manifest)]).rstrip() + "\n"


def _head(manifest: CorpusManifest) -> Iterator[str]:
    measured = manifest.measured
    yield f"corpus {manifest.name}: {measured.rows} rows, {measured.unique_responses} different answers"
    if manifest.tokenizer is None:
        yield "tokens: unknown (the mix names no tokenizer); the trainer counts them with its own"
    else:
        tokens = sum(source.tokens or 0 for source in manifest.sources)
        learnt = sum(source.learnt_tokens or 0 for source in manifest.sources)
        yield f"tokens: {tokens}, of which {learnt} are learnt inside {manifest.max_length} ({manifest.tokenizer})"
        yield f"longer than {manifest.max_length} tokens: {_over(measured)}"
    if manifest.mix_spec() is not None:
        yield f"an epoch passes over a source at most {manifest.max_repeats:g} times"
    if manifest.unguarded:
        few = ", ".join(manifest.unguarded[:5])
        yield f"{len(manifest.unguarded)} bench items are too short to be looked for: {few}"
    yield f"ready: {_asked(manifest.thresholds)}"


def _sources(manifest: CorpusManifest) -> Iterator[str]:
    for source in manifest.sources:
        measured = source.measured
        yield f"source {source.name} ({source.type}, lane {source.lane})"
        yield f"  rows       {source.read} read, {measured.rows} kept{_fates(source)}"
        yield f"  answers    {measured.unique_responses} different{_oracle(measured)}"
        if source.tokens is not None:
            yield f"  tokens     {source.tokens}, {source.learnt_tokens} learnt; over length {_over(measured)}"
        if source.weight is not None:
            yield f"  weight     {source.weight:g}: {source.share or 0:.2%} of the learnt tokens, {_repeats(source)}"
        yield f"  ready      {_asked(source.thresholds)}"
    yield from (f"lane {lane}: {share}" for lane, share in lane_shares(manifest))


def lane_shares(manifest: CorpusManifest) -> list[tuple[str, str]]:
    """Each lane with what its sources' shares come to."""
    lanes: dict[str, list[SourceRecord]] = {}
    for source in manifest.sources:
        lanes.setdefault(source.lane, []).append(source)
    found = []
    for lane, members in lanes.items():
        rows = f"{sum(source.measured.rows for source in members)} rows"
        if members[0].share is not None:
            rows += f", {sum(source.share or 0 for source in members):.2%} of the learnt tokens"
        found.append((lane, rows))
    return found


def _fates(source: SourceRecord) -> str:
    return "".join(f", {count} {reason.replace('_', ' ')}" for reason, count in source.dropped.items())


def _oracle(measured: Measured) -> str:
    if not measured.judged:
        return ""
    undecided = f", {measured.undecided} UNDECIDED (too slow, or crashed)" if measured.undecided else ""
    passed = f"{measured.passed} of {measured.judged} ({measured.passed / measured.judged:.1%})"
    return f"; oracle passed {passed}{undecided}"


def _over(measured: Measured) -> str:
    if measured.over_length is None:
        return UNKNOWN
    return f"{measured.over_length} of {measured.rows} rows ({measured.over_length / max(1, measured.rows):.1%})"


def _repeats(source: SourceRecord) -> str:
    if source.repeats is None:
        return "repeats unknown without a tokenizer"
    if source.repeats >= 1:
        return f"each row {source.repeats:.2f} times an epoch"
    return f"{source.repeats:.2f} of its rows an epoch, all of them after {1 / source.repeats:.1f} epochs"


def _asked(thresholds: Thresholds) -> str:
    asked = [f"at least {thresholds.min_rows} rows"]
    if thresholds.min_unique_responses is not None:
        asked.append(f"{thresholds.min_unique_responses:g} different answers per row")
    if thresholds.min_oracle_pass_rate is not None:
        asked.append(f"oracle pass rate {thresholds.min_oracle_pass_rate:g}")
    if thresholds.max_over_length is not None:
        asked.append(f"at most {thresholds.max_over_length:.1%} over length")
    return ", ".join(asked) + ": met"


def _lengths(manifest: CorpusManifest) -> Iterator[str]:
    whole = whole_histogram(manifest)
    if not whole:
        return
    yield "rows by tokens"
    for low, high, count in bars(whole):
        width = round(50 * count / max(count for _, _, count in bars(whole)))
        yield f"  {low + 1:>6} - {high:<6} {count:>8} {'#' * width}"


def whole_histogram(manifest: CorpusManifest) -> list[int]:
    """The sources' histograms added up; empty without a tokenizer."""
    size = max((len(source.histogram or []) for source in manifest.sources), default=0)
    histograms = [source.histogram or [] for source in manifest.sources]
    return [sum(counts[entry] for counts in histograms if entry < len(counts)) for entry in range(size)]


def bars(histogram: Sequence[int], most: int = _BARS) -> list[tuple[int, int, int]]:
    """``(more than, at most, rows)`` in tokens, with neighbouring entries joined until there are few enough."""
    joined = -(-len(histogram) // most) if histogram else 1
    return [
        (
            start * HISTOGRAM_BIN_TOKENS,
            (start + joined) * HISTOGRAM_BIN_TOKENS,
            sum(histogram[start : start + joined]),
        )
        for start in range(0, len(histogram), joined)
    ]


# --- HTML -----------------------------------------------------------------------------------------


def html_report(manifest: CorpusManifest) -> Html:
    """One page with a table of the sources and a histogram for each, the window marked in it."""
    figures = [_figure("all sources", whole_histogram(manifest), manifest.max_length)]
    figures += [_figure(source.name, source.histogram or [], manifest.max_length) for source in manifest.sources]
    untold = element("p", "Tokens were not counted: the mix names no tokenizer.")
    inputs = [
        (record.file, record.source, record.size, element("code", record.sha256[:16])) for record in manifest.inputs
    ]
    return page(
        f"Corpus {manifest.name}",
        element("p", *(joined(line, element("br")) for line in _head(manifest))),
        section("Sources", _table(manifest)),
        section("Lanes", element("ul", *(element("li", f"{lane}: {share}") for lane, share in lane_shares(manifest)))),
        section("Rows by tokens", element("div", *figures, class_="beside") if any(figures) else untold),
        section("Inputs", table(("file", "source", "bytes", "SHA-256"), inputs, left=(0, 1))),
    )


def _table(manifest: CorpusManifest) -> Html:
    heads = (
        "source", "lane", "read", "kept", "dropped", "different answers", "oracle", "learnt tokens", "share", "passes",
    )  # fmt: skip
    rows = []
    for source in manifest.sources:
        measured = source.measured
        rows.append((
            source.name,
            source.lane,
            str(source.read),
            str(measured.rows),
            _fates(source).removeprefix(", ") or "none",
            str(measured.unique_responses),
            f"{measured.passed} of {measured.judged}" if measured.judged else "none",
            UNKNOWN if source.learnt_tokens is None else str(source.learnt_tokens),
            "no weight" if source.share is None else f"{source.share:.2%}",
            "no weight" if source.share is None else UNKNOWN if source.repeats is None else f"{source.repeats:.2f}",
        ))
    return table(heads, rows, left=(0, 1))


def _figure(name: str, histogram: Sequence[int], window: int | None) -> Html:
    found = bars(histogram, 24)
    if not found:
        return Html("")
    shown = [
        charts.Bar(
            f"{low + 1} - {high}",
            count,
            "c1" if window is not None and low >= window else "c0",
            f"{low + 1} to {high} tokens: {count} rows",
        )
        for low, high, count in found
    ]
    longest = found[-1][1]
    inside = window is not None and window < longest
    marks = [charts.Mark(len(found) * window / longest, f"window {window}", "c1")] if window and inside else []
    return charts.bars(name, shown, Axis("rows"), marks, width=520)
