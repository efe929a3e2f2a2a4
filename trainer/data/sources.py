"""Where rows come from, and the check of all of them before anything is launched. No torch, no numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from supervisor.jobs import Problem
from trainer.data.build.manifest import CorpusManifest, ManifestError, faults_of, manifest_of
from trainer.data.declarations import STDLIB, read_declarations
from trainer.data.messages import BadRow, Row
from trainer.data.rows import read_jsonl

MAX_SHOWN_PROBLEMS = 20


@dataclass(frozen=True)
class Source:
    """One source of rows.

    ``path`` is a JSONL file, or for ``python_declarations`` a folder or ``stdlib``. ``max_rows`` keeps the
    first rows of a file, and rows evenly spread over a source tree.
    """

    type: Literal["jsonl", "python_declarations"]
    path: Path
    max_rows: int | None = None


def read_source(
    source: Source,
    *,
    metadata_fields: frozenset[str] = frozenset(),
    curriculum_field: str | None = None,
    cache: Path | None = None,
) -> Iterator[Row | BadRow]:
    """The rows of one source, in a fixed order. ``curriculum_field`` must be a number in every row.

    A corpus that ``mens-sup data build`` made brings metadata of its own, which is accepted. ``cache`` is a folder for
    rows extracted from source trees. Raises OSError when it cannot be read, ManifestError for a corpus whose
    manifest cannot be used.
    """
    if source.type == "python_declarations":
        rows = read_declarations(source.path, cache)
        count = len(rows) if source.max_rows is None else min(source.max_rows, len(rows))
        found: Iterator[Row | BadRow] = (rows[index * len(rows) // count] for index in range(count))
    else:
        manifest = manifest_of(source.path)
        wanted = metadata_fields | ({curriculum_field} if curriculum_field else set())
        wanted |= manifest.row_fields if manifest else frozenset()
        found = _first(read_jsonl(source.path, metadata_fields=wanted), source.max_rows)
    for row in found:
        yield _with_level(row, curriculum_field) if curriculum_field and isinstance(row, Row) else row


def check_sources(
    sources: Sequence[Source],
    *,
    on_bad_row: Literal["refuse", "skip"] = "refuse",
    metadata_fields: frozenset[str] = frozenset(),
    curriculum_field: str | None = None,
    key: str = "data.sources",
) -> list[Problem]:
    """What would stop a run at its very first step, at most MAX_SHOWN_PROBLEMS of them.

    Streams every file once. Bad rows are problems unless they are to be skipped; a missing, unreadable or
    empty file always is, and so is one of which no row is left. ``key`` is the configuration key of the list.
    Source trees are only looked up, not parsed.
    """
    problems: list[Problem] = []
    for index, source in enumerate(sources):
        try:
            problems += _check_source(source, f"{key}[{index}].path", on_bad_row, metadata_fields, curriculum_field)
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"{source.path} cannot be read: {reason}"
            problems.append(Problem(f"{key}[{index}].path", message, "correct the path or its permissions"))
        except ManifestError as error:
            problems.append(Problem(f"{key}[{index}].path", str(error)))
    if not problems and (problem := weight_problem(sources, [_manifest(source) for source in sources])):
        problems.append(problem)
    return problems[:MAX_SHOWN_PROBLEMS]


def weight_problem(sources: Sequence[Source], manifests: Sequence[CorpusManifest | None]) -> Problem | None:
    """Why the weights that a corpus declares could not be kept, if they could not."""
    for source, manifest in zip(sources, manifests, strict=True):
        if manifest is None or manifest.mix_spec() is None:
            continue
        if len(sources) > 1:
            message = f"{source.path} declares what share each of its rows gets, so it must be the only source"
            return Problem("data.sources", message, "put the other sources into its mix and build it again")
        if source.max_rows is not None:
            message = f"max_rows would take the first rows of {source.path}, which are those of its first source alone"
            return Problem("data.sources[0].max_rows", message, "remove it, and set max_rows in the mix")
    return None


def _manifest(source: Source) -> CorpusManifest | None:
    return manifest_of(source.path) if source.type == "jsonl" else None


def row_problem(bad: BadRow, key: str) -> Problem:
    remedy = "correct the row, or set data.on_bad_row: skip to leave such rows out and count them"
    return Problem(key, bad.problem, remedy, bad.file, bad.line)


def _check_source(
    source: Source, key: str, on_bad_row: str, metadata_fields: frozenset[str], curriculum_field: str | None
) -> list[Problem]:
    if source.type == "python_declarations":
        if source.path != STDLIB and not source.path.is_dir():
            return [Problem(key, f"{source.path} is not a folder with Python sources", "name a folder or `stdlib`")]
        return []
    manifest = manifest_of(source.path)
    if manifest is not None and (faults := faults_of(source.path, manifest)):
        remedy = "build it again with mens-sup data build"
        return [Problem(key, f"the corpus {source.path} cannot be trained on: {'; '.join(faults)}", remedy)]
    problems = []
    good = bad = 0
    for row in read_source(source, metadata_fields=metadata_fields, curriculum_field=curriculum_field):
        if isinstance(row, Row):
            good += 1
            continue
        bad += 1
        if on_bad_row == "refuse":
            problems.append(row_problem(row, key))
            if len(problems) == MAX_SHOWN_PROBLEMS:
                break
    if not good and not bad:
        return [Problem(key, f"{source.path} is empty: it has no rows", "name a file with one JSON object per line")]
    if not good and not problems:
        message = f"none of the {bad} rows of {source.path} can be used"
        return [Problem(key, message, "set data.on_bad_row: refuse to see what is wrong with them")]
    return problems


def _first(rows: Iterator[Row | BadRow], limit: int | None) -> Iterator[Row | BadRow]:
    """Rows up to and including the ``limit``-th good one."""
    good = 0
    for row in rows:
        if limit is not None and good == limit:
            return
        good += isinstance(row, Row)
        yield row


def _with_level(row: Row, field: str) -> Row | BadRow:
    value = row.extra.get(field)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return row
    found = "has none" if value is None else f"has {value!r}"
    problem = f"data.curriculum_field is {field!r} and must be a number in every row; this one {found}"
    return BadRow(row.file, row.line, "no difficulty", problem)
