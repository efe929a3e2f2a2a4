"""The sources of a mix: which files they are, and their rows one after another in a fixed order."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from supervisor.jobs import Problem
from supervisor.problems import ConfigError
from supervisor.protocol.manifest import digest_file
from trainer.cache import cache_root
from trainer.data.build.datasets_source import read_dataset
from trainer.data.build.manifest import BUILT_FIELDS, CorpusManifest, InputRecord, ManifestError, faults_of, manifest_of
from trainer.data.build.mix import Mix, SourceSection
from trainer.data.declarations import STDLIB, python_files, read_declarations
from trainer.data.messages import BadRow, Row, RowError
from trainer.data.rows import check_json, numbered_lines, objects_of, row_of

DECLARATION_FIELD = "declaration"
"""Metadata field with the name of the declaration that a row's answer is."""
PIECE_BYTES = 1 << 20
_PATTERN = "*?["
_HUB_ID = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*/)?[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Input:
    """A file of rows. ``shown`` is its name in rows, reports and problems, the same on every machine."""

    shown: str
    path: Path
    record: InputRecord
    manifest: CorpusManifest | None


@dataclass(frozen=True)
class OpenSource:
    """A source whose files have been found. ``folder`` is the tree that it is read from, if it is one.

    ``tree``: all files of a source tree or of a data set's folder, as one.
    """

    index: int
    section: SourceSection
    inputs: tuple[Input, ...] = ()
    folder: Path | None = None
    tree: InputRecord | None = None

    @property
    def metadata_fields(self) -> tuple[str, ...]:
        """The metadata that its rows may carry."""
        if self.section.type == "declarations":
            return (DECLARATION_FIELD,)
        inherited = {name for found in self.inputs if found.manifest for name in found.manifest.metadata_fields}
        return tuple(sorted({*self.section.metadata_fields, *inherited}))


class OwnOutputError(Exception):
    """A row that this very mix has made; one sentence."""


def open_sources(mix: Mix, out: Path) -> list[OpenSource]:
    """Find every file of every source.

    Raises ConfigError with all that is missing, that would be overwritten, or that derives from this very mix.
    """
    opened: list[OpenSource] = []
    problems: list[Problem] = []
    for index, section in enumerate(mix.sections.sources):
        key = f"sources.{index}.path"
        try:
            source = _open(mix, index, section)
            source = replace(source, tree=_tree(source))
            problems += [mix.problem(key, *found) for found in _loops(mix, source, out)]
            opened.append(source)
        except ManifestError as error:
            problems.append(mix.problem(key, str(error)))
        except _NotThereError as error:
            problems.append(mix.problem(key, str(error), error.remedy))
        except OSError as error:
            problems.append(mix.problem(key, f"{section.path} cannot be read: {error.strerror or error}"))
    if problems:
        raise ConfigError(problems)
    return opened


def read(mix: Mix, source: OpenSource) -> Iterator[Row | BadRow]:
    """The source's rows in order, with the metadata that they carry along.

    Raises OwnOutputError, ConfigError (a data set that cannot be had), OSError.
    """
    if source.section.type == "declarations":
        return _declarations(source)
    if source.section.type == "dataset":
        return _rows(mix, source, source.section.path, read_dataset(mix, source.index, source.folder))
    return (row for shown, lines in line_pieces(source) for row in read_lines(mix, source, shown, lines))


def line_pieces(source: OpenSource) -> Iterator[tuple[str, list[tuple[int, bytes | None]]]]:
    """The lines of the source's files, PIECE_BYTES at a time, each piece with the name of its file. Raises OSError."""
    for file in source.inputs:
        piece: list[tuple[int, bytes | None]] = []
        size = 0
        for number, line in numbered_lines(file.path):
            piece.append((number, line))
            size += len(line or b"")
            if size >= PIECE_BYTES:
                yield file.shown, piece
                piece, size = [], 0
        if piece:
            yield file.shown, piece


def read_lines(
    mix: Mix, source: OpenSource, shown: str, lines: Iterable[tuple[int, bytes | None]]
) -> Iterator[Row | BadRow]:
    """Rows of some lines of the source's file ``shown``. Raises OwnOutputError."""
    return _rows(mix, source, shown, objects_of(lines, shown))


def _rows(
    mix: Mix, source: OpenSource, shown: str, found: Iterable[tuple[int, dict[str, Any]] | BadRow]
) -> Iterator[Row | BadRow]:
    section = source.section
    metadata = frozenset(source.metadata_fields)
    ignored = frozenset(section.ignore_fields)
    if any(file.manifest and file.shown == shown for file in source.inputs):
        ignored |= frozenset(BUILT_FIELDS)
    for entry in found:
        if isinstance(entry, BadRow):
            yield entry
            continue
        line, fields = entry
        made_by = fields.get("mix") if "response_key" in fields else None
        if isinstance(made_by, str) and mix.sections.name in made_by.split():
            raise OwnOutputError(f"{shown}:{line}: this row was made by the mix {mix.sections.name} itself")
        try:
            fields = _renamed(fields, section, ignored) if ignored or section.rename else fields
            row = row_of(fields, file=shown, line=line, metadata_fields=metadata)
            if isinstance(made_by, str):
                row.extra["mix"] = made_by
            for name, value in row.extra.items():
                check_json(value, f"the metadata field {name!r}")
            msgspec.json.encode(row.extra)
            yield row
        except RowError as error:
            yield BadRow(shown, line, error.reason, _here(error.problem))
        except (TypeError, ValueError, RecursionError) as error:
            yield BadRow(shown, line, "not JSON", f"a metadata field is not a JSON value: {error}")


def changed_inputs(source: OpenSource) -> Iterator[str]:
    """Names of files that are not what they were when they were opened."""
    for file in source.inputs:
        if digest_file(file.path).sha256 != file.record.sha256:
            yield file.shown
    if source.tree is not None and _tree(source) != source.tree:
        yield source.section.path


class _NotThereError(Exception):
    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def _open(mix: Mix, index: int, section: SourceSection) -> OpenSource:
    path = Path(section.path).expanduser()
    target = mix.base / path
    if section.type == "declarations":
        if path == STDLIB:
            return OpenSource(index, section)
        if not target.is_dir():
            raise _NotThereError(f"{section.path} is not a folder with sources", "Name an existing folder.")
        return OpenSource(index, section, folder=target)
    if section.type == "dataset":
        return OpenSource(index, section, folder=_dataset_folder(section.path, target))
    if target.is_dir():
        files = _once(found for found in target.rglob("*.jsonl") if found.is_file() and not _hidden(found, target))
        if not files:
            raise _NotThereError(f"the folder {section.path} holds no *.jsonl file", "Name another, or a file.")
    elif target.is_file():
        files = [target]
    elif any(sign in section.path for sign in _PATTERN):
        files = matching(str(target))
        if not files:
            raise _NotThereError(f"no file matches {section.path}", "Correct the pattern; it is relative to the mix.")
    else:
        raise _NotThereError(
            f"{section.path} does not exist", "Correct the path; relative ones are relative to the mix's folder."
        )
    return OpenSource(
        index, section, tuple(_input(mix, section, file) for file in files), target if target.is_dir() else None
    )


def _tree(source: OpenSource) -> InputRecord | None:
    """Raises OSError."""
    from trainer.data.build.tree_declarations import tree_files

    section = source.section
    if section.type == "declarations" and section.language == "python":
        top = source.folder or _stdlib()
        files = python_files(top)
    elif source.folder is None or section.type == "jsonl":
        return None
    elif section.type == "declarations":
        assert section.language is not None
        top, files = source.folder, tree_files(source.folder, section.language)
    else:
        top = source.folder
        files = (path for path in sorted(top.rglob("*")) if path.is_file())
    size, digest = 0, hashlib.sha256()
    for path in files:
        record = digest_file(path)
        size += record.size
        digest.update(os.fsencode(path.relative_to(top)) + f"\0{record.sha256}\0".encode())
    return InputRecord(section.name, section.path, size, digest.hexdigest())


def _dataset_folder(named: str, target: Path) -> Path | None:
    """None for an id on the hub; ``datasets`` itself would also look into the folder that the command runs in."""
    if target.is_dir():
        return target
    remedy = "Correct the path; relative ones are relative to the mix's folder."
    if target.is_file():
        raise _NotThereError(f"{named} is a file, and a data set is a folder or a hub id", remedy)
    if not _HUB_ID.fullmatch(named):
        raise _NotThereError(f"{named} is not a folder, and no hub id reads like that", remedy)
    if os.path.lexists(named):
        message = f"{named} is no folder beside the mix, only one where the command runs, which is not meant"
        raise _NotThereError(message, remedy)
    return None


def matching(pattern: str) -> list[Path]:
    """The files that match an absolute pattern, sorted, each under one name."""
    found = (Path(name) for name in glob.glob(pattern, recursive=True))  # noqa: PTH207  (Path's takes no absolute one)
    return _once(path for path in found if path.is_file())


def _once(paths: Iterable[Path]) -> list[Path]:
    """Sorted; of several names of one file, by links, its own or else the shortest."""
    names: dict[str, Path] = {}
    for path in sorted(paths, key=lambda path: (path.is_symlink(), len(path.parts), path)):
        names.setdefault(os.path.realpath(path), path)
    return sorted(names.values())


def is_text(name: str) -> bool:
    """Whether a file's name can stand in a row and in a manifest."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _hidden(file: Path, top: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(top).parts)


def _input(mix: Mix, section: SourceSection, path: Path) -> Input:
    given = Path(section.path).expanduser()
    shown = str(path) if given.is_absolute() else Path(os.path.relpath(path, mix.base)).as_posix()
    if not is_text(shown):
        raise _NotThereError(f"the name of the file {shown!a} is not UTF-8", "Rename it.")
    manifest = manifest_of(path)
    if manifest is not None and (faults := faults_of(path, manifest)):
        raise ManifestError(f"the corpus {shown} cannot be used: {faults[0]}; build it again")
    record = digest_file(path)
    return Input(shown, path, InputRecord(section.name, shown, record.size, record.sha256), manifest)


def _loops(mix: Mix, source: OpenSource, out: Path) -> Iterator[tuple[str, str]]:
    """(message, remedy) for each way in which the build would read what it writes."""
    target = Path(os.path.realpath(out))
    remedy = "Name another --out, or take this source out of the mix."
    for file in source.inputs:
        if target in Path(os.path.realpath(file.path)).parents:
            yield f"{file.shown} lies inside --out {out}, so the mix would feed on its own output", remedy
        elif file.manifest is not None and mix.sections.name in (
            file.manifest.name, *(descent.name for descent in file.manifest.descent)
        ):  # fmt: skip
            yield (
                f"{file.shown} derives from the mix {mix.sections.name} itself, so it would feed on its own output",
                "Name the sources that it was made of instead.",
            )
    if source.folder is not None:
        folder = Path(os.path.realpath(source.folder))
        if folder == target or folder in target.parents or target in folder.parents:
            yield f"--out {out} and the source's folder {source.section.path} lie inside each other", remedy


def _renamed(fields: dict[str, Any], section: SourceSection, ignored: frozenset[str]) -> dict[str, Any]:
    if ignored:
        fields = {name: value for name, value in fields.items() if name not in ignored}
    for old, new in section.rename.items():
        if old not in fields:
            raise RowError("missing field", f"there is no field {old!r} to rename to {new!r}")
        if new in fields and new not in section.rename:
            raise RowError("two fields of one name", f"{old!r} is to be renamed to {new!r}, which the row has already")
    return {section.rename.get(name, name): value for name, value in fields.items()}


def _here(problem: str) -> str:
    """The reader's sentence, in the words of a mix."""
    return problem.replace(
        "remove it or list it under data.metadata_fields",
        "list it under the source's metadata_fields to carry it along, or under ignore_fields to leave it behind",
    ).replace("list the other under data.metadata_fields", "list the other under the source's ignore_fields")


def _declarations(source: OpenSource) -> Iterator[Row | BadRow]:
    from trainer.data.build.tree_declarations import read_tree

    section = source.section
    if section.language == "python":
        root = STDLIB if source.folder is None else source.folder
        rows: Iterable[Row] = read_declarations(root, cache_root() / "declarations")
        top = _stdlib() if source.folder is None else source.folder
    else:
        assert source.folder is not None and section.language is not None
        rows, top = read_tree(source.folder, section.language), source.folder
    for row in rows:
        shown = f"{section.path.rstrip('/')}/{Path(row.file).relative_to(top).as_posix()}"
        yield _moved(row, shown, {DECLARATION_FIELD: row.extra["name"]})


def _moved(row: Row, file: str, extra: dict[str, Any]) -> Row:
    return Row(row.messages, row.tools, file, row.line, extra)


def _stdlib() -> Path:
    return Path(sysconfig.get_path("stdlib"))
