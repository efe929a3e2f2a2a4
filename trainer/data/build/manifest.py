"""``manifest.json`` of a built corpus: what went in, what came out, what it was measured to be. No torch, no numpy.

It holds no time and no absolute path: the same inputs give the same bytes.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from supervisor.protocol.manifest import FileRecord, digest_file
from trainer.data.build.readiness import Measured, Thresholds, shortfalls
from trainer.data.keys import CLUSTER_FIELD
from trainer.data.mix_spec import MixSpec, mix_spec_of

FORMAT = "mens-sup corpus"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
ROWS = "corpus.jsonl"
DROPPED = "dropped.jsonl"
REPORT_TEXT = "report.txt"
REPORT_HTML = "report.html"

SOURCE_FIELD = "source"
BUILT_FIELDS = ("mix", SOURCE_FIELD, "lane", "origin", "response_key", CLUSTER_FIELD, "oracle")
"""Metadata that every row of a built corpus has (``oracle`` only where one was asked)."""
CONVERSATION_FIELDS = ("messages", "tools")
"""What a row of a built corpus is trained on."""


class InputRecord(msgspec.Struct, frozen=True):
    """One file that was read, by its name in the mix; ``sha256`` of its content."""

    source: str
    file: str
    size: int
    sha256: str


class Descent(msgspec.Struct, frozen=True):
    """A mix that this corpus derives from, by its name and the digest of its file."""

    name: str
    sha256: str


class SourceRecord(msgspec.Struct, frozen=True):
    """One source: what was declared, what became of its rows, what is left of it.

    ``dropped`` counts rows by reason. ``rows_sha256``: over every row as it was read, with its metadata, and
    every bad one with what is wrong with it. Token counts are None without a
    tokenizer: ``tokens`` of all rows at full length, ``learnt_tokens`` of the answers inside the window.
    """

    name: str
    type: str
    lane: str
    weight: float | None
    rows_sha256: str
    read: int
    dropped: dict[str, int]
    tokens: int | None
    learnt_tokens: int | None
    share: float | None
    repeats: float | None
    thresholds: Thresholds
    measured: Measured
    histogram: list[int] | None


class CorpusManifest(msgspec.Struct, frozen=True):
    """The whole. ``unguarded``: bench items too short to look for. ``descent``: this mix, and those of its inputs.

    ``tokenizer_sha256``: over the tokenizer's files. ``versions``: of the software that reads and compares the rows.

    ``compared_from``: rows of this similarity and more are of one cluster; None: nobody has looked for near duplicates.
    """

    format: str
    format_version: int
    name: str
    mix_sha256: str
    seed: int
    tokenizer: str | None
    max_length: int | None
    metadata_fields: tuple[str, ...]
    max_repeats: float
    thresholds: Thresholds
    measured: Measured
    sources: tuple[SourceRecord, ...]
    unguarded: tuple[str, ...]
    inputs: tuple[InputRecord, ...]
    descent: tuple[Descent, ...]
    outputs: dict[str, FileRecord]
    compared_from: float | None = None
    tokenizer_sha256: str | None = None
    versions: dict[str, str] = {}

    @property
    def row_fields(self) -> frozenset[str]:
        """All metadata that its rows carry."""
        return frozenset((*BUILT_FIELDS, *self.metadata_fields))

    def mix_spec(self) -> MixSpec | None:
        """The weights; None when the mix declares none."""
        return mix_spec_of(((source.name, source.lane, source.weight) for source in self.sources), self.max_repeats)


class ManifestError(Exception):
    """A manifest that cannot be used; one sentence."""


def encode_manifest(manifest: CorpusManifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def manifest_of(rows: Path) -> CorpusManifest | None:
    """The manifest beside a file of rows; None when there is none, or when it is of something else.

    Raises ManifestError when it is ours and damaged or of another version, OSError when it cannot be read.
    """
    path = rows.parent / MANIFEST
    if rows.name != ROWS or not path.is_file():
        return None
    data = path.read_bytes()
    try:
        head = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise ManifestError(f"{path} is damaged ({error}); build the corpus again with mens-sup data build") from None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        return None
    if head.get("format_version") != FORMAT_VERSION:
        raise ManifestError(
            f"{path} is of format {head.get('format_version')!r}, this version reads {FORMAT_VERSION}; "
            "build the corpus again with mens-sup data build"
        )
    try:
        return msgspec.json.decode(data, type=CorpusManifest)
    except msgspec.DecodeError as error:
        raise ManifestError(f"{path} is damaged ({error}); build the corpus again with mens-sup data build") from None


def faults_of(rows: Path, manifest: CorpusManifest) -> list[str]:
    """Why the corpus is not the one that its manifest describes, or was never ready; reads the whole file."""
    faults = []
    recorded = manifest.outputs.get(ROWS)
    if recorded is None or digest_file(rows) != recorded:
        faults.append("its rows are not those that its manifest describes: the file was changed after it was built")
    for source in manifest.sources:
        faults += [f"source {source.name}: {text}" for text in shortfalls(source.thresholds, source.measured)]
    return faults + shortfalls(manifest.thresholds, manifest.measured)
