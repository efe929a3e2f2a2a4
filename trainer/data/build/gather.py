"""Reading all sources once: sample, look for bench items, put rows on disk, find duplicates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec

from supervisor.jobs import Problem
from supervisor.problems import ConfigError
from trainer.data.build.benches import bench_items
from trainer.data.build.manifest import InputRecord
from trainer.data.build.mix import Mix
from trainer.data.build.reading import OpenSource, OwnOutputError, read
from trainer.data.build.spool import dropped_line
from trainer.data.build.table import Gathering, Reason
from trainer.data.contamination import BenchHit, BenchIndex
from trainer.data.keys import response_key
from trainer.data.messages import BadRow, Row
from trainer.data.near_duplicates import Duplicates, duplicate_parts, find_duplicates
from trainer.data.sources import MAX_SHOWN_PROBLEMS

Say = Callable[[str], None]
ROWS_PER_SIGN = 100_000
"""Rows between two lines of progress."""
BATCH_ROWS = 512
"""Rows that bench items are looked for in at a time."""


def gather(
    mix: Mix,
    opened: list[OpenSource],
    benches: list[list[tuple[Path, InputRecord]]],
    into: Gathering,
    dropped: BinaryIO,
    folder: Path,
    say: Say,
) -> Duplicates:
    """One pass over all sources. Fills ``into``; bad rows that are skipped go to ``dropped``.

    ``folder`` is for temporary files. Returns duplicates by position in ``into.compared``. Raises ConfigError, OSError.
    """
    items = [item for index, files in enumerate(benches) for item in bench_items(mix, index, files)]
    index = BenchIndex.from_items(items, mix.sections.contamination.ngram) if items else None
    into.unguarded = index.unguarded if index else ()

    def parts() -> Iterator[tuple[str, str]]:
        problems: list[Problem] = []
        for source in opened:
            for row, text, hit in _looked_up(_sampled(mix, source, into, dropped, problems, say), index):
                number = into.spool.add(row)
                if hit is not None:
                    into.hits[number] = f"{hit.item} (containment {hit.containment:.2f})"
                key = response_key(row.response)
                into.sources.append(source.index)
                into.reasons.append(Reason.KEPT if hit is None else Reason.CONTAMINATED)
                into.answers.append(int(key[:16], 16))
                into.ranks.append(_hash64(mix.sections.seed, "cap", source.section.name, number, key))
                if hit is None:
                    into.compared.append(number)
                    yield _with_tools(row, text)
        if problems:
            raise ConfigError(problems)

    duplicates = mix.sections.duplicates
    return find_duplicates(parts(), threshold=duplicates.threshold, seed=mix.sections.seed, spool=folder)


def _looked_up(
    rows: Iterator[Row], index: BenchIndex | None
) -> Iterator[tuple[Row, tuple[str, str], BenchHit | None]]:
    """Each row with its parts and the bench item in it."""
    while batch := list(islice(rows, BATCH_ROWS)):
        texts = [duplicate_parts(row) for row in batch]
        hits = index.hits(["\n".join(text) for text in texts]) if index else [None] * len(batch)
        yield from zip(batch, texts, hits, strict=True)


def _with_tools(row: Row, text: tuple[str, str]) -> tuple[str, str]:
    """Rows with other tools are other rows."""
    return (f"{text[0]}\n{json.dumps(row.tools, sort_keys=True)}", text[1]) if row.tools else text


def _sampled(
    mix: Mix, source: OpenSource, into: Gathering, dropped: BinaryIO, problems: list[Problem], say: Say
) -> Iterator[Row]:
    section, index = source.section, source.index
    digest = hashlib.sha256()
    into.digests.append(digest)
    limit = int(section.sample_rate * 2**64)
    try:
        for row in read(mix, source):
            into.read[index] += 1
            if into.read[index] % ROWS_PER_SIGN == 0:
                say(f"{section.name}: {into.read[index]} rows read")
            if isinstance(row, BadRow):
                into.lost[index, Reason.BAD_ROW] += 1
                if section.on_bad_row == "refuse":
                    problems.append(row_problem(row))
                    if len(problems) >= MAX_SHOWN_PROBLEMS:
                        raise ConfigError(problems)
                else:
                    dropped.write(dropped_line(section.name, f"{row.file}:{row.line}", Reason.BAD_ROW, row.problem))
                continue
            content = msgspec.json.encode([row.messages, row.tools])
            digest.update(hashlib.blake2b(content, digest_size=16).digest())
            if section.sample_rate < 1 and _hash64(mix.sections.seed, "sample", section.name, content) >= limit:
                into.lost[index, Reason.NOT_SAMPLED] += 1
                continue
            yield row
    except OwnOutputError as error:
        remedy = "Name the sources that it was made of instead."
        message = f"{error}, so the mix would feed on its own output"
        raise ConfigError([mix.problem(f"sources.{index}.path", message, remedy)]) from None
    except ImportError as error:
        message = f"reading {section.language} needs the package {error.name}, which is not installed"
        remedy = f"pip install {str(error.name).replace('_', '-')}"
        raise ConfigError([mix.problem(f"sources.{index}.language", message, remedy)]) from None
    say(f"{section.name}: {into.read[index]} rows read")


def row_problem(bad: BadRow) -> Problem:
    remedy = "Correct the row, or set on_bad_row: skip for its source to leave such rows out and list them."
    return Problem("", bad.problem, remedy, bad.file, bad.line)


def _hash64(*parts: object) -> int:
    data = b"\0".join(part if isinstance(part, bytes) else str(part).encode() for part in parts)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
