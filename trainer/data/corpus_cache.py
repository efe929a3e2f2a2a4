"""The rendered corpus on disk, so that a relaunch does not render it again.

An entry is named by everything that the corpus depends on and carries its own digest: one that is damaged,
or that other inputs, other code or another version made, is never used.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from supervisor.protocol.atomic import write_atomic
from trainer.data.build.manifest import MANIFEST
from trainer.data.corpus import Corpus, CorpusReport
from trainer.data.declarations import tree_state
from trainer.data.mix_spec import MixSpec
from trainer.data.sources import Source
from trainer.data.token_rows import TokenRows

KEPT_ENTRIES = 8
"""The most recently used ones; older ones are removed when one is added."""
LARGEST_ENTRY_BYTES = 1 << 29
SHARE_OF_FREE_DISK = 0.05
"""Of the cache's disk, which one entry may take: checkpoints need the room more."""
_ALIGNED = 64
_KEY_CHARACTERS = 32
_TOKENIZER_FILES = ("tokenizer", "special_tokens", "added_tokens", "vocab", "merges", "chat_template")
_VERSIONS = ("tokenizers", "transformers", "jinja2", "numpy", "msgspec", "rensa", "xxhash")
"""Of what reads, renders, groups and splits rows."""


class _Array(msgspec.Struct, frozen=True):
    dtype: str
    length: int
    offset: int
    """In bytes, from the end of the header's line."""


class _Header(msgspec.Struct, frozen=True):
    report: dict[str, Any]
    arrays: dict[str, _Array]
    mix: MixSpec | None
    unready: tuple[str, ...]


def cached_corpus(
    folder: Path, key: Callable[[], str], build: Callable[[], Corpus], report: Callable[[str], None]
) -> Corpus:
    """The corpus of ``key``, read from ``folder``, else built and kept there.

    ``key`` is asked again after building: what was read while it changed is not kept. ``report`` is told when
    nothing could be kept. Raises what ``build`` raises.
    """
    try:
        wanted = key()
    except OSError:
        return build()  # which says what cannot be read
    entry = folder / f"{wanted}.corpus"
    found = read_corpus(entry)
    if found is not None:
        return found
    corpus = build()
    try:
        if key() == wanted:
            folder.mkdir(parents=True, exist_ok=True)
            size = sum(values.nbytes for rows in (corpus.train, corpus.validation) for _, values in _arrays(rows))
            if size > min(LARGEST_ENTRY_BYTES, shutil.disk_usage(folder).free * SHARE_OF_FREE_DISK):
                report(
                    f"the rendered corpus ({size / 2**20:.0f} MiB) is too large to keep; later starts render it again"
                )
                return corpus
            _make_room(folder)
            write_atomic(entry, encode_corpus(corpus), mode=0o600)  # the rows may be private
    except OSError as error:
        report(f"the rendered corpus was not kept in {folder} ({error}); later starts will render it again")
    return corpus


def corpus_key(
    sources: Sequence[Source], tokenizer: Path, settings: Mapping[str, object], held_out: Path | None = None
) -> str:
    """A digest over the content of every file of rows, the tokenizer's files, ``settings``, our code and versions.

    Source trees count by the size and time of their files, as in the cache of declarations. ``settings``: all else that
    :func:`trainer.data.corpus.build_corpus` is given, as JSON values. Raises OSError.
    """
    parts = {
        "code": _digest(sorted(Path(__file__).parent.rglob("*.py"))),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in _VERSIONS},
        "tokenizer": tokenizer_digest(tokenizer),
        "sources": [[source.type, str(source.path), source.max_rows, _state(source)] for source in sources],
        "held_out": held_out and [str(held_out), _state_of_rows(held_out)],
        "settings": settings,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def read_corpus(path: Path) -> Corpus | None:
    """The corpus of an entry; None when there is none or it is damaged."""
    try:
        with open(path, "rb") as file:
            data = bytearray(os.fstat(file.fileno()).st_size)
            file.readinto(data)
        os.utime(path)
    except OSError:
        return None
    start = data.find(b"\n") + 1
    if hashlib.sha256(memoryview(data)[start:]).hexdigest().encode() != data[: max(0, start - 1)]:
        return None
    body = data.find(b"\n", start) + 1
    header = msgspec.json.decode(memoryview(data)[start:body], type=_Header)

    def array(name: str) -> np.ndarray[Any, Any] | None:
        found = header.arrays.get(name)
        if found is None:
            return None
        return np.frombuffer(data, np.dtype(found.dtype), found.length, body + found.offset)

    report = msgspec.convert(header.report, type=CorpusReport)
    return Corpus(_rows("train", array, header.mix), _rows("validation", array, header.mix), report, header.unready)


def encode_corpus(corpus: Corpus) -> list[bytes | memoryview]:
    """The content of an entry in parts: a line with the digest of the rest, a line of JSON, the arrays themselves."""
    arrays: dict[str, _Array] = {}
    parts: list[bytes | memoryview] = []
    offset = 0
    for part, rows in (("train", corpus.train), ("validation", corpus.validation)):
        for name, values in _arrays(rows):
            padding = bytes(-values.nbytes % _ALIGNED)
            arrays[f"{part}.{name}"] = _Array(values.dtype.str, len(values), offset)
            parts += [np.ascontiguousarray(values).view(np.uint8).data, padding]
            offset += values.nbytes + len(padding)
    header = _Header(asdict(corpus.report), arrays, corpus.train.mix, corpus.unready)
    parts.insert(0, msgspec.json.encode(header) + b"\n")
    digest = hashlib.sha256()
    for each in parts:
        digest.update(each)
    return [digest.hexdigest().encode() + b"\n", *parts]


def _arrays(rows: TokenRows) -> Iterable[tuple[str, np.ndarray[Any, Any]]]:
    yield "ids", rows.ids
    yield "labels", rows.labels
    yield "offsets", rows.offsets
    yield "keys", np.frombuffer("".join(rows.keys).encode("ascii"), np.uint8)
    yield "groups", rows.groups
    if rows.difficulty is not None:
        yield "difficulty", rows.difficulty
    if rows.sources is not None:
        yield "sources", rows.sources


def _rows(part: str, array: Callable[[str], np.ndarray[Any, Any] | None], mix: MixSpec | None) -> TokenRows:
    ids, labels, offsets, keys = (array(f"{part}.{name}") for name in ("ids", "labels", "offsets", "keys"))
    groups = array(f"{part}.groups")
    assert ids is not None and labels is not None and offsets is not None and keys is not None and groups is not None
    text = keys.tobytes().decode("ascii")
    sources = array(f"{part}.sources")
    return TokenRows(
        ids,
        labels,
        offsets,
        tuple(text[start : start + _KEY_CHARACTERS] for start in range(0, len(text), _KEY_CHARACTERS)),
        array(f"{part}.difficulty"),
        groups,
        sources,
        None if sources is None else mix,
    )


def _state(source: Source) -> str:
    if source.type == "python_declarations":
        return tree_state(source.path)
    return _state_of_rows(source.path)


def _state_of_rows(rows: Path) -> str:
    """With the manifest beside the file: it decides which fields of its rows are known."""
    manifest = rows.parent / MANIFEST
    return _digest([rows, *([manifest] if manifest.is_file() else [])])


def tokenizer_digest(folder: Path) -> str:
    """Over all files of a model's folder that decide its tokens and its template. Raises OSError."""
    return _digest(_tokenizer_files(folder))


def _tokenizer_files(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.iterdir() if path.name.startswith(_TOKENIZER_FILES) or path.suffix == ".model"
    )


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            digest.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\0".encode())
    return digest.hexdigest()


def _make_room(folder: Path) -> None:
    """Keep all but the newest ``KEPT_ENTRIES - 1``; another process may be at it as well."""
    entries = sorted(folder.glob("*.corpus"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in entries[KEPT_ENTRIES - 1 :]:
        path.unlink(missing_ok=True)
