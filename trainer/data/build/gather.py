"""Reading all sources once: sample, look for bench items, put rows on disk, find duplicates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from supervisor.jobs import Problem
from supervisor.problems import ConfigError
from trainer.data.build.benches import bench_items
from trainer.data.build.manifest import InputRecord
from trainer.data.build.mix import Mix
from trainer.data.build.prepare import Preparation, Prepared
from trainer.data.build.reading import OpenSource, OwnOutputError
from trainer.data.build.spool import dropped_line
from trainer.data.build.table import Gathering, Reason
from trainer.data.contamination import BenchIndex
from trainer.data.messages import BadRow
from trainer.data.near_duplicates import DuplicateFinder, Duplicates
from trainer.data.sources import MAX_SHOWN_PROBLEMS

Say = Callable[[str], None]
ROWS_PER_SIGN = 100_000
"""Rows between two lines of progress."""


def gather(
    mix: Mix,
    opened: list[OpenSource],
    benches: list[list[tuple[Path, InputRecord]]],
    into: Gathering,
    dropped: BinaryIO,
    finder: DuplicateFinder,
    say: Say,
) -> Duplicates:
    """One pass over all sources. Fills ``into``; bad rows that are skipped go to ``dropped``.

    ``finder`` is given all rows that no bench item stands in. Returns duplicates by position in ``into.compared``.
    Raises ConfigError, InputError, OSError.
    """
    items = [item for index, files in enumerate(benches) for item in bench_items(mix, index, files)]
    bench = BenchIndex.from_items(items, mix.sections.contamination.ngram) if items else None
    into.unguarded = bench.unguarded if bench else ()
    problems: list[Problem] = []
    with Preparation(mix, opened, bench) as preparation:
        for source in opened:
            into.digests.append(hashlib.sha256())
            for prepared in _announced(mix, source, preparation, say):
                _note_bad(source, prepared.bad, into, dropped, problems)
                _take(source.index, prepared, into)
                if prepared.sketches is not None:
                    finder.add(prepared.sketches)
    if problems:
        raise ConfigError(problems)
    return finder.finish(mix.sections.duplicates.threshold)


def _announced(mix: Mix, source: OpenSource, preparation: Preparation, say: Say) -> Iterator[Prepared]:
    """The source's rows, with a sign of life now and then. Raises ConfigError."""
    section, key = source.section, f"sources.{source.index}"
    count = 0
    try:
        for prepared in preparation.of(source):
            before, count = count, count + prepared.read
            if before // ROWS_PER_SIGN != count // ROWS_PER_SIGN:
                say(f"{section.name}: {count} rows read")
            yield prepared
    except OwnOutputError as error:
        remedy = "Name the sources that it was made of instead."
        message = f"{error}, so the mix would feed on its own output"
        raise ConfigError([mix.problem(f"{key}.path", message, remedy)]) from None
    except ImportError as error:
        message = f"reading {section.language} needs the package {error.name}, which is not installed"
        remedy = f"pip install {str(error.name).replace('_', '-')}"
        raise ConfigError([mix.problem(f"{key}.language", message, remedy)]) from None
    except OSError as error:
        remedy = "Correct the file or its permissions, or leave it out."
        raise ConfigError([mix.problem(f"{key}.path", f"{section.path} cannot be read: {error}", remedy)]) from None
    say(f"{section.name}: {count} rows read")


def _note_bad(
    source: OpenSource, bad: Sequence[BadRow], into: Gathering, dropped: BinaryIO, problems: list[Problem]
) -> None:
    into.lost[source.index, Reason.BAD_ROW] += len(bad)
    for row in bad:
        if source.section.on_bad_row == "skip":
            place = f"{row.file}:{row.line}"
            dropped.write(dropped_line(source.section.name, place, Reason.BAD_ROW, row.problem))
            continue
        problems.append(row_problem(row))
        if len(problems) >= MAX_SHOWN_PROBLEMS:
            raise ConfigError(problems)


def _take(index: int, prepared: Prepared, into: Gathering) -> None:
    """Put the rows on disk, and what is known of them into the table."""
    into.read[index] += prepared.read
    into.lost[index, Reason.NOT_SAMPLED] += prepared.good - len(prepared.lines)
    into.digests[index].update(b"".join(prepared.digests))
    first = into.spool.extend(prepared.lines)
    into.answers.extend(prepared.answers)
    into.ranks.extend(prepared.ranks)
    for position in range(len(prepared.lines)):
        hit = prepared.hits.get(position)
        into.sources.append(index)
        if hit is None:
            into.reasons.append(Reason.KEPT)
            into.compared.append(first + position)
        else:
            into.reasons.append(Reason.CONTAMINATED)
            into.hits[first + position] = hit


def row_problem(bad: BadRow) -> Problem:
    remedy = "Correct the row, or set on_bad_row: skip for its source to leave such rows out and list them."
    return Problem("", bad.problem, remedy, bad.file, bad.line)
