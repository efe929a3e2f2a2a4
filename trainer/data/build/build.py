"""From a mix to a corpus: read this file top to bottom.

Rows are read once and put on disk; what is decided about each stays in memory as a few numbers (see table.py).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from supervisor.problems import ConfigError, InputError
from supervisor.protocol.atomic import staged_directory
from supervisor.protocol.manifest import digest_file
from trainer.data.build.benches import bench_files
from trainer.data.build.dead_builds import mark_alive, remove_dead_builds
from trainer.data.build.drop import count_tokens, judge
from trainer.data.build.gather import Say, gather
from trainer.data.build.manifest import (
    DROPPED,
    FORMAT,
    FORMAT_VERSION,
    MANIFEST,
    REPORT_HTML,
    REPORT_TEXT,
    ROWS,
    CorpusManifest,
    Descent,
    InputRecord,
    SourceRecord,
    encode_manifest,
)
from trainer.data.build.measure import measure, refuse_unready
from trainer.data.build.mix import Mix, MixSections
from trainer.data.build.readiness import Measured
from trainer.data.build.reading import OpenSource, changed_inputs, open_sources
from trainer.data.build.report import html_report, text_report
from trainer.data.build.settle import Settled, drop_repeated, settle
from trainer.data.build.spool import Spool, answer_key_in, dropped_line, output_line, row_in
from trainer.data.build.table import COUNTED_ONLY, Bools, Gathering, Reason, Table
from trainer.data.build.tokens import TokenTable, token_counter
from trainer.data.build.tree_declarations import packages_of
from trainer.data.keys import CLUSTER_FIELD
from trainer.data.near_duplicates import DuplicateFinder

_SPOOL = ".rows"


@dataclass(frozen=True)
class Built:
    """A finished build: its manifest and the text of its report."""

    manifest: CorpusManifest
    report: str


def build(mix: Mix, out: Path, say: Say) -> Built:
    """Build ``mix`` into the new folder ``out``; ``say`` is told what is being done.

    Raises ConfigError or InputError for what the mix or its files lack, and OSError; nothing is written then.
    """
    opened = open_sources(mix, out)
    if os.path.lexists(out):
        remedy = "Name a new --out, or remove it"
        raise InputError(f"{out} exists already and a build never writes over anything. {remedy}.")
    for name in remove_dead_builds(out):
        say(f"removed {name}, left by a build that was killed")
    benches = [bench_files(mix, index) for index in range(len(mix.sections.exclude))]
    counter = token_counter(mix)
    with (
        staged_directory(out) as staged,
        open(staged / DROPPED, "wb", buffering=1 << 20) as dropped,
        DuplicateFinder(staged) as finder,
    ):
        mark_alive(dropped)
        gathering = Gathering(Spool(staged / _SPOOL))
        duplicates = gather(mix, opened, benches, gathering, dropped, finder, say)
        table = gathering.table()
        drop_repeated(table, duplicates)
        judged = table.kept()
        verdicts = judge(mix, table, say)
        tokens = count_tokens(mix, table, counter, say)
        settled = settle(mix, table, duplicates, tokens, finder.similar)
        _refuse_changed(mix, opened, benches)
        records, whole = measure(mix, table, verdicts, tokens)
        refuse_unready(mix, records, whole)
        say(f"writing {whole.rows} rows")
        with open(staged / ROWS, "wb", buffering=1 << 20) as rows:
            _write_rows(mix, table, settled, judged, verdicts, tokens, rows, dropped)
        table.spool.remove()
        dropped.close()
        manifest = _manifest(mix, opened, benches, gathering.unguarded, records, whole)
        if counter is not None:
            manifest = msgspec.structs.replace(manifest, tokenizer_sha256=counter.tokenizer_sha256)
        report = text_report(manifest)
        (staged / REPORT_TEXT).write_text(report, encoding="utf-8")
        (staged / REPORT_HTML).write_text(html_report(manifest), encoding="utf-8")
        outputs = {name: digest_file(staged / name) for name in (ROWS, DROPPED, REPORT_TEXT, REPORT_HTML)}
        manifest = msgspec.structs.replace(manifest, outputs=outputs)
        (staged / MANIFEST).write_bytes(encode_manifest(manifest))
    return Built(manifest, report)


def _refuse_changed(
    mix: Mix, opened: list[OpenSource], benches: list[list[tuple[Path, InputRecord]]]
) -> None:
    remedy = "Build again when it is still."
    problems = [
        mix.problem(f"sources.{source.index}.path", f"{name} changed while it was read", remedy)
        for source in opened
        for name in changed_inputs(source)
    ]
    problems += [
        mix.problem(f"exclude.{index}.path", f"{record.file} changed while it was read", remedy)
        for index, files in enumerate(benches)
        for path, record in files
        if digest_file(path).sha256 != record.sha256
    ]
    if problems:
        raise ConfigError(problems)


def _write_rows(
    mix: Mix,
    table: Table,
    settled: Settled,
    judged: Bools,
    verdicts: dict[int, list[str]],
    tokens: TokenTable | None,
    rows: BinaryIO,
    dropped: BinaryIO,
) -> None:
    """Every row to one of the two files, in the order in which they were read; ``judged`` are those with verdicts."""
    left = {index: iter(found) for index, found in verdicts.items()}
    copied = set(np.unique(settled.copy_of).tolist())
    origins: dict[int, str] = {}
    for number, line in table.spool.lines():
        reason, index = Reason(int(table.reasons[number])), int(table.sources[number])
        section, verdict = mix.sections.sources[index], None
        if index in left and judged[number]:
            verdict = next(left[index])
        if reason in COUNTED_ONLY and number not in copied:
            continue
        row = row_in(line)
        origin = f"{row.file}:{row.line}"
        if number in copied:
            origins[number] = origin
        if reason is Reason.KEPT:
            metadata: dict[str, object] = {
                **row.extra,
                "mix": " ".join((mix.sections.name, *row.extra.get("mix", "").split())),
                "source": section.name,
                "lane": section.lane,
                "origin": origin,
                "response_key": answer_key_in(line),
                CLUSTER_FIELD: int(settled.clusters[number]),
            }
            rows.write(output_line(row, metadata | ({"oracle": verdict} if verdict else {})))
        elif reason is Reason.CONTAMINATED:
            dropped.write(dropped_line(section.name, origin, reason, table.gathering.hits[number], row))
        elif reason is Reason.ORACLE:
            dropped.write(dropped_line(section.name, origin, reason, verdict or "", row))
        elif reason is Reason.NOT_RENDERED and tokens is not None:
            dropped.write(dropped_line(section.name, origin, reason, tokens.problems[number], row))
        elif reason in (Reason.EXACT_DUPLICATE, Reason.NEAR_DUPLICATE):
            detail = f"copy of {origins[int(settled.copy_of[number])]}"
            dropped.write(dropped_line(section.name, origin, reason, detail))


def _manifest(
    mix: Mix,
    opened: list[OpenSource],
    benches: list[list[tuple[Path, InputRecord]]],
    unguarded: tuple[str, ...],
    records: list[SourceRecord],
    whole: Measured,
) -> CorpusManifest:
    sections = mix.sections
    inputs = [file.record for source in opened for file in source.inputs]
    inputs += [source.tree for source in opened if source.tree is not None]
    inputs += [record for files in benches for _, record in files]
    descent = {Descent(sections.name, mix.sha256)}
    for source in opened:
        for file in source.inputs:
            descent |= set(file.manifest.descent) if file.manifest else set()
    return CorpusManifest(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        name=sections.name,
        mix_sha256=mix.sha256,
        seed=sections.seed,
        tokenizer=sections.tokenizer,
        max_length=sections.max_length,
        metadata_fields=tuple(sorted({name for source in opened for name in source.metadata_fields})),
        max_repeats=sections.max_repeats,
        thresholds=sections.readiness.thresholds(),
        measured=whole,
        sources=tuple(records),
        unguarded=unguarded,
        inputs=tuple(inputs),
        descent=tuple(sorted(descent, key=lambda found: (found.name, found.sha256))),
        outputs={},
        compared_from=None if sections.duplicates.near == "off" else sections.duplicates.threshold,
        versions=_versions(sections),
    )


def _versions(sections: MixSections) -> dict[str, str]:
    """Of what reads rows out of other things, counts their tokens and compares them."""
    packages = {"rensa", "xxhash"} | ({"tokenizers", "transformers", "jinja2"} if sections.tokenizer else set())
    found = {}
    for source in sections.sources:
        if source.type == "dataset":
            packages.add("datasets")
        elif source.language == "python":
            found["python"] = platform.python_version()
        elif source.language is not None:
            packages |= {"tree-sitter", *packages_of(source.language)}
    return dict(sorted((found | {name: importlib.metadata.version(name) for name in packages}).items()))
