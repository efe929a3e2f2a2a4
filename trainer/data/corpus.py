"""From sources to the corpus: read, render, drop repeats, hold out validation rows, and account for it all."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from supervisor.jobs import Problem
from trainer.data.build.manifest import CorpusManifest
from trainer.data.built import built_corpora, missing_sources, source_name, unready, weighted, weights_of
from trainer.data.groups import NEAR_THRESHOLD, group_names
from trainer.data.keys import CLUSTER_FIELD, response_key
from trainer.data.messages import BadRow, Row
from trainer.data.near_duplicates import DuplicateSearch, duplicate_parts
from trainer.data.render import Rendered, Renderer
from trainer.data.sources import MAX_SHOWN_PROBLEMS, Source, read_source, row_problem
from trainer.data.split import SplitError, rows_of_fraction, split
from trainer.data.token_rows import TokenRows, token_rows
from trainer.errors import DataProblemError

MAX_LEVELS = 100
"""Difficulties are levels to shuffle inside; rows of different levels never share a bin."""

SHOWN_EXAMPLES = 3
ROWS_PER_SIGN = 256
"""Rows read between two signs of life."""


class DataError(DataProblemError):
    """The data cannot be trained on. ``str`` is one paragraph per problem."""

    def __init__(self, problems: Sequence[Problem], total: int | None = None) -> None:
        shown = list(problems[:MAX_SHOWN_PROBLEMS])
        more = (len(problems) if total is None else total) - len(shown)
        paragraphs = [_paragraph(problem) for problem in shown]
        super().__init__("\n\n".join(paragraphs + ([f"... and {more} more bad rows."] if more > 0 else [])))
        self.problems = shown


@dataclass(frozen=True)
class Validation:
    """Where validation rows come from: a file, or else a fraction of the rows, at most ``max_rows``."""

    path: Path | None = None
    fraction: float = 0.02
    max_rows: int = 256


@dataclass(frozen=True)
class BadRows:
    """Bad rows of one kind: how many, and where the first ones stand."""

    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class SourceDigest:
    """What one source gave: ``digest`` covers the ids and labels of its ``rows`` usable rows, in order.

    ``weights``: those that a built corpus declares, in words.
    """

    path: str
    rows: int
    digest: str
    held_out: bool = False
    weights: str = ""


@dataclass(frozen=True)
class CorpusReport:
    """What became of the rows. Counts of tokens are before fitting unless they say otherwise.

    ``read`` = ``rows`` + ``validation_rows`` + what was dropped. ``trimmed_*`` is what ``max_length`` costs the
    training rows; ``histogram`` counts them by length in bins of 64 tokens (see TokenRows.histogram).
    ``leaked_rows`` are training rows dropped because the validation file has their answer or a near duplicate of
    them. ``groups`` counts rows as one that have the same answer or are near duplicates.
    """

    read: int
    rows: int
    tokens: int
    label_tokens: int
    unique_responses: int
    groups: int
    validation_rows: int
    validation_tokens: int
    validation_label_tokens: int
    duplicates_dropped: int
    leaked_rows: int
    bad_rows: dict[str, BadRows]
    unlearnable_rows: int
    dropped_reasoning_turns: int
    max_length: int
    trimmed_rows: int
    trimmed_prompt_tokens: int
    trimmed_answer_tokens: int
    fitted_tokens: int
    longest_row: int
    histogram: list[int]
    sources: tuple[SourceDigest, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the ``corpus`` event."""
        return asdict(self)


@dataclass(frozen=True)
class Corpus:
    """Training and validation rows at full length.

    ``unready``: which thresholds of a built corpus its rows do not meet here, in this run's window.
    """

    train: TokenRows
    validation: TokenRows
    report: CorpusReport
    unready: tuple[str, ...] = ()


@dataclass
class _Gathered:
    """Rendered rows of some sources, and what was left out of them on the way.

    ``corpora`` is by row the index of its source, ``origins`` what that source, a built corpus, names as its own.
    ``correctable`` are the bad rows that somebody can correct: those of a file, not of other people's sources.
    """

    rendered: list[Rendered] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    levels: list[float | None] = field(default_factory=list)
    clusters: list[str | None] = field(default_factory=list)
    corpora: list[int] = field(default_factory=list)
    origins: list[str | None] = field(default_factory=list)
    sources: list[SourceDigest] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    correctable: list[BadRow] = field(default_factory=list)
    read: int = 0
    duplicates: int = 0

    def add_bad(self, row: BadRow, source: Source) -> None:
        self.bad.append(row)
        if source.type == "jsonl":
            self.correctable.append(row)

    def token_rows(self, groups: Sequence[int]) -> TokenRows:
        return token_rows(zip(self.rendered, self.keys, self.levels, strict=True), groups)


def build_corpus(
    sources: Sequence[Source],
    renderer: Renderer,
    *,
    max_length: int,
    on_bad_row: Literal["refuse", "skip"] = "refuse",
    metadata_fields: frozenset[str] = frozenset(),
    curriculum_field: str | None = None,
    validation: Validation = Validation(),
    seed: int = 0,
    cache: Path | None = None,
    on_progress: Callable[[], None] = lambda: None,
) -> Corpus:
    """Everything that a run trains and validates on.

    Rows with the same tokens are kept once. ``max_length`` is only counted with, the rows stay whole.
    ``cache`` is a folder for what takes long to read. Bad rows of source trees (a control token in the code) are
    always skipped and counted: nobody can correct them. ``on_progress`` is called every few hundred rows. Raises
    DataError: bad rows of files under ``refuse``, no rows, an impossible split; OSError when a source cannot be read.
    """
    manifests = built_corpora(sources)
    manifest = manifests[0] if len(manifests) == 1 else None
    held_out = None
    with DuplicateSearch(seed) as search:
        compare = None if validation.path is None and _are_compared(manifest) else search.add
        gathered = _gather(sources, renderer, metadata_fields, curriculum_field, cache, compare, on_progress)
        if validation.path is not None:
            known = metadata_fields | ({curriculum_field} if curriculum_field else set())
            files = [Source("jsonl", validation.path)]
            held_out = _gather(files, renderer, known, None, cache, compare, on_progress)
        near = None if compare is None else search.finish(NEAR_THRESHOLD).cluster_of.tolist()
    weights = {str(source.path): weights_of(found) for source, found in zip(sources, manifests, strict=True)}
    gathered.sources = [replace(source, weights=weights[source.path]) for source in gathered.sources]
    bad = gathered.bad + (held_out.bad if held_out else [])
    refused = gathered.correctable + (held_out.correctable if held_out else [])
    if refused and on_bad_row == "refuse":
        raise DataError([row_problem(row, "data") for row in refused[:MAX_SHOWN_PROBLEMS]], len(refused))
    names = _groups(gathered, held_out, near)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    groups = [numbers[name] for name in names]
    rows = weighted(gathered.token_rows(groups[: len(gathered.keys)]), gathered.origins, manifest)
    learnable = rows.label_counts(max_length) > 0
    unlearnable = int((~learnable).sum())
    kept = np.flatnonzero(learnable).tolist()
    leaked = 0
    if held_out is not None:
        theirs = set(groups[len(gathered.keys) :])
        not_leaked = [row for row in kept if groups[row] not in theirs]
        leaked, kept = len(kept) - len(not_leaked), not_leaked
    rows = rows.select(kept) if len(kept) < len(rows) else rows
    _refuse_empty(rows, gathered, sources)
    corpora, origins = [gathered.corpora[row] for row in kept], [gathered.origins[row] for row in kept]
    lacking = unready(rows, corpora, origins, manifests, max_length)
    _refuse_many_levels(rows, curriculum_field)
    if held_out is None:
        rows, held_out_rows = _split(rows, list(numbers), validation, seed)
    else:
        held_out_rows = held_out.token_rows(groups[len(gathered.keys) :])
    if not len(held_out_rows):
        message = f"the validation file {validation.path} has no usable row"
        raise DataError([Problem("data.validation", message, "name another file, or let a part be split off")])
    if missing := missing_sources(rows):
        message = f"source {missing[0]} of the corpus has a weight, but no row of it is left to train on"
        raise DataError([Problem("data.sources", message, "hold out fewer rows, or give it more rows in the mix")])
    return Corpus(
        rows,
        held_out_rows,
        _report(rows, held_out_rows, gathered, held_out, bad, leaked, unlearnable, max_length),
        tuple(lacking),
    )


def _gather(
    sources: Sequence[Source],
    renderer: Renderer,
    metadata_fields: frozenset[str],
    curriculum_field: str | None,
    cache: Path | None,
    compare: Callable[[Sequence[str]], None] | None,
    on_progress: Callable[[], None],
) -> _Gathered:
    """``compare`` is given what every row is compared with others by."""
    gathered = _Gathered()
    pending: deque[tuple[Row, Source]] = deque()

    def good_rows() -> Iterator[Row]:
        for source in sources:
            for row in read_source(
                source, metadata_fields=metadata_fields, curriculum_field=curriculum_field, cache=cache
            ):
                gathered.read += 1
                if gathered.read % ROWS_PER_SIGN == 0:
                    on_progress()
                if isinstance(row, BadRow):
                    gathered.add_bad(row, source)
                else:
                    pending.append((row, source))
                    yield row

    seen: set[bytes] = set()
    digests = {source: hashlib.blake2b(digest_size=16) for source in sources}
    counts = dict.fromkeys(sources, 0)
    numbers = {source: sources.index(source) for source in sources}
    for result in renderer.render_many(good_rows()):
        row, source = pending.popleft()
        if isinstance(result, BadRow):
            gathered.add_bad(result, source)
            continue
        digest = hashlib.blake2b(np.array(result.ids, np.int32).data, digest_size=16)
        digest.update(bytes(result.labels))
        digests[source].update(digest.digest())
        counts[source] += 1
        if digest.digest() in seen:
            gathered.duplicates += 1
            continue
        seen.add(digest.digest())
        gathered.rendered.append(result)
        gathered.keys.append(response_key(row.response))
        gathered.levels.append(float(row.extra[curriculum_field]) if curriculum_field else None)
        cluster = row.extra.get(CLUSTER_FIELD)
        # Clusters are numbered by each build alone.
        gathered.clusters.append(None if cluster is None else f"{source.path.parent}:{cluster}")
        if compare is not None:
            compare(duplicate_parts(row))
        gathered.corpora.append(numbers[source])
        gathered.origins.append(source_name(row))
    gathered.sources = [
        SourceDigest(str(source.path), counts[source], digest.hexdigest()) for source, digest in digests.items()
    ]
    return gathered


def _refuse_empty(rows: TokenRows, gathered: _Gathered, sources: Sequence[Source]) -> None:
    if not len(rows):
        names = ", ".join(str(source.path) for source in sources)
        first = f" The first bad one: {_paragraph(row_problem(gathered.bad[0], 'data'))}" if gathered.bad else ""
        message = f"no row is left to train on: {gathered.read} read from {names}, {len(gathered.bad)} bad.{first}"
        raise DataError([Problem("data.sources", message, "bring rows that can be used")])


def _refuse_many_levels(rows: TokenRows, field_name: str | None) -> None:
    if rows.difficulty is None:
        return
    levels = len(np.unique(rows.difficulty))
    if levels > MAX_LEVELS:
        message = f"{field_name!r} has {levels} different values, but rows are shuffled and packed inside each level"
        raise DataError([Problem("data.curriculum_field", message, f"round it to at most {MAX_LEVELS} levels")])


def _are_compared(manifest: CorpusManifest | None) -> bool:
    """Whether the build has looked for all near duplicates that a split must keep together."""
    return manifest is not None and manifest.compared_from is not None and manifest.compared_from <= NEAR_THRESHOLD


def _groups(gathered: _Gathered, held_out: _Gathered | None, near: Sequence[int] | None) -> list[str]:
    """The name of each row's group, those of held-out rows after the others. ``near``: what each is a copy of."""
    parts = [gathered, *([held_out] if held_out else [])]
    keys = [key for part in parts for key in part.keys]
    clusters = [cluster for part in parts for cluster in part.clusters]
    known = [row if cluster is None else cluster for row, cluster in enumerate(clusters)]
    return group_names(keys, known, *([near] if near is not None else []))


def _split(rows: TokenRows, names: Sequence[str], validation: Validation, seed: int) -> tuple[TokenRows, TokenRows]:
    """``names``: of the groups, by number."""
    wanted = min(validation.max_rows, rows_of_fraction(len(rows), validation.fraction))
    try:
        train, held_out = split([names[group] for group in rows.groups.tolist()], rows=wanted, seed=seed)
    except SplitError as error:
        raise DataError([Problem("data.validation", str(error))]) from error
    return rows.select(train), rows.select(held_out)


def _report(
    rows: TokenRows,
    validation: TokenRows,
    gathered: _Gathered,
    held_out: _Gathered | None,
    bad: list[BadRow],
    leaked: int,
    unlearnable: int,
    max_length: int,
) -> CorpusReport:
    trimmed = rows.trimmed(max_length)
    parts = [gathered, *([held_out] if held_out else [])]
    return CorpusReport(
        read=sum(part.read for part in parts),
        rows=len(rows),
        tokens=len(rows.ids),
        label_tokens=int(rows.labels.sum()),
        unique_responses=len(set(rows.keys)),
        groups=len(np.unique(rows.groups)),
        validation_rows=len(validation),
        validation_tokens=len(validation.ids),
        validation_label_tokens=int(validation.labels.sum()),
        duplicates_dropped=sum(part.duplicates for part in parts),
        leaked_rows=leaked,
        bad_rows=_by_reason(bad),
        unlearnable_rows=unlearnable,
        dropped_reasoning_turns=sum(row.dropped_reasoning for part in parts for row in part.rendered),
        max_length=max_length,
        trimmed_rows=trimmed.rows,
        trimmed_prompt_tokens=trimmed.prompt_tokens,
        trimmed_answer_tokens=trimmed.answer_tokens,
        fitted_tokens=int(rows.lengths(max_length).sum()),
        longest_row=int(rows.full_lengths.max()),
        histogram=rows.histogram(),
        sources=tuple(replace(source, held_out=part is held_out) for part in parts for source in part.sources),
    )


def _by_reason(bad: Sequence[BadRow]) -> dict[str, BadRows]:
    counts = Counter(row.reason for row in bad)
    examples: dict[str, list[str]] = {}
    for row in bad:
        shown = examples.setdefault(row.reason, [])
        if len(shown) < SHOWN_EXAMPLES:
            shown.append(f"{row.file}:{row.line}: {row.problem}")
    return {reason: BadRows(count, tuple(examples[reason])) for reason, count in counts.most_common()}


def _paragraph(problem: Problem) -> str:
    place = f"{problem.file}:{problem.line}" if problem.file else problem.key
    remedy = f" Remedy: {problem.remedy}." if problem.remedy else ""
    return f"{place}: {problem.message}.{remedy}"
