"""Files of tasks: finding them, and their objects one after another. What is wrong is an InputError with file:line."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from supervisor.problems import InputError
from trainer.data.build.reading import matching
from trainer.data.messages import BadRow
from trainer.data.rows import MAX_LINE_BYTES, objects_of, read_objects

_PATTERN = "*?["


def matching_files(path: str) -> list[Path]:
    """The file, or the files of a glob in order. Raises InputError when there are none."""
    whole = Path(path).expanduser()
    if whole.is_file():
        return [whole]
    if any(character in path for character in _PATTERN):
        if files := matching(str(whole)):
            return files
        raise InputError(f"{path} matches no file. Correct the pattern, or make the file of tasks first.")
    what = "is a folder" if whole.is_dir() else "does not exist"
    raise InputError(f"{path} {what}. Name a JSONL file with one task a line, or a pattern such as tasks/*.jsonl.")


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """``(line, object)`` of every line that is not blank; ``.gz`` is unpacked on the way. Raises InputError."""
    try:
        for found in _packed(path) if path.suffix == ".gz" else read_objects(path, str(path)):
            if isinstance(found, BadRow):
                raise InputError(f"{found.file}:{found.line}: {found.problem}. Correct the line or remove it.")
            yield found
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} is no whole gzip file: {error}. Get the file again.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error


def _packed(path: Path) -> Iterator[tuple[int, dict[str, Any]] | BadRow]:
    with gzip.open(path) as file:
        lines = enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1)
        whole = ((number, None if len(line) > MAX_LINE_BYTES else line) for number, line in lines if line.strip())
        yield from objects_of(whole, str(path))
