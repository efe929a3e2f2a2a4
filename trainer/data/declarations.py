"""Instruction pairs from Python source trees: a docstring and a signature ask, the function answers.

Names, code and prose are those of the source; every answer is checked by compiling it on its own.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import os
import platform
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

import msgspec

from supervisor.protocol.atomic import write_atomic
from trainer.data.keys import response_key
from trainer.data.messages import Message, Row
from trainer.data.rows import decode_row, encode_row

EXTRACTOR_VERSION = 1
"""Raise it with every change that alters the rows; it is part of the cache's name."""

STDLIB = Path("stdlib")
"""As root: the standard library of the running interpreter."""

MAX_ANSWER_CHARACTERS = 6000

SKIPPED_DIRECTORIES = frozenset(
    {
        "test", "tests", "idle_test", "testing", "site-packages", "dist-packages", "node_modules", "venv", "build",
        "dist", "__pycache__", "__phello__", "idlelib", "turtledemo", "lib2to3", "pydoc_data", "lib-dynload",
    }
)  # fmt: skip
"""Tests, other people's packages, and parts of the standard library that are examples or generated.

Folders whose name begins with a dot or with ``config-`` are skipped as well.
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def read_declarations(root: Path, cache: Path | None = None) -> list[Row]:
    """One row per documented function or method below ``root`` (or STDLIB), by path and line.

    Answers that differ only in whitespace or case are kept once, the first in that order. ``cache`` is a
    folder for the extracted rows: they are read back as long as interpreter, extractor and every source
    file (by size and time) are the same. Files that do not parse are passed over, as Python would refuse
    them. Raises OSError when ``root`` cannot be read or the cache cannot be written.
    """
    files = files_of(root)
    if cache is None:
        return _extract(files)
    stored = cache / f"declarations-{_cache_key(files)}.jsonl"
    rows = _read_cache(stored)
    if rows is None:
        rows = _extract(files)
        cache.mkdir(parents=True, exist_ok=True)
        lines = [msgspec.json.encode(len(rows)), *map(encode_row, rows)]
        write_atomic(stored, b"\n".join(lines) + b"\n")
    return rows


def tree_state(root: Path) -> str:
    """A digest over size and time of every source file below ``root``, interpreter and extractor. Raises OSError."""
    return _cache_key(files_of(root))


def files_of(root: Path) -> list[Path]:
    """The files below ``root`` (or STDLIB) that functions are taken from, in order. Raises OSError."""
    top = Path(sysconfig.get_path("stdlib")) if root == STDLIB else root
    if not top.is_dir():
        raise NotADirectoryError(f"{top} is not a folder with Python sources")
    return list(python_files(top))


def python_files(top: Path) -> Iterator[Path]:
    """The files below ``top`` that functions are taken from, in order."""
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if not _skipped(name))
        for name in sorted(names):
            if not name.endswith(".py") or name.startswith("test_") or name.endswith("_test.py"):
                continue
            if is_source_file(path := Path(folder, name)):
                yield path


def is_source_name(path: PurePath) -> bool:
    """Whether functions are taken from a file of this name, relative to the top of its tree."""
    name = path.name
    if not name.endswith(".py") or name.startswith(("test_", ".")) or name.endswith("_test.py"):
        return False
    return not any(map(_skipped, path.parts[:-1]))


def is_source_file(path: Path) -> bool:
    """Whether it is a file with code: no pipe or device, no link to nowhere, no editor's own file, of a usable name."""
    try:
        path.name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return not path.name.startswith(".") and path.is_file()


def _skipped(name: str) -> bool:
    return name in SKIPPED_DIRECTORIES or name.startswith((".", "config-"))


def _cache_key(files: list[Path]) -> str:
    digest = hashlib.sha256(f"{EXTRACTOR_VERSION} {platform.python_version()}".encode())
    for path in files:
        state = path.stat()
        digest.update(f"{path}\0{state.st_size}\0{state.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:24]


def _read_cache(path: Path) -> list[Row] | None:
    """The rows of a whole cache file; None when there is none or it was cut or damaged."""
    try:
        count, *lines = path.read_bytes().splitlines()
        rows = [decode_row(line) for line in lines]
        return rows if int(count) == len(rows) else None
    except (FileNotFoundError, ValueError):  # msgspec's decoding errors are ValueErrors
        return None


def _extract(files: list[Path]) -> list[Row]:
    rows: dict[str, Row] = {}
    for path in files:
        for row in _file_rows(path):
            rows.setdefault(response_key(row.response), row)
    return list(rows.values())


def parsed(path: Path) -> tuple[ast.Module, list[str]] | None:
    """A file's tree and its lines as the parser counts them; None when Python refuses it. Raises OSError."""
    try:
        with tokenize.open(path) as file:
            source = file.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # ValueError: bad encoding or NUL bytes
        return None
    lines = source.splitlines(keepends=True)
    if len(lines) != source.count("\n") + (not source.endswith("\n")):
        lines = source.split("\n")  # form feeds and the like end no line for the parser
        lines = [f"{line}\n" for line in lines]
    return tree, lines


def _file_rows(path: Path) -> Iterator[Row]:
    found = parsed(path)
    if found is None:
        return
    tree, lines = found
    for node, owner in _functions(tree.body, None):
        if pair := _pair(node, owner, lines):
            messages = (Message("user", pair.question), Message("assistant", pair.answer))
            extra = {"name": f"{owner}.{node.name}" if owner else node.name, "lines": pair.answer.count("\n") + 1}
            yield Row(messages, (), str(path), node.lineno, extra)


def _functions(body: list[ast.stmt], owner: str | None) -> Iterator[tuple[Function, str | None]]:
    """Functions of a module or class body, also under ``if``, ``try`` and ``with``; none inside functions."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, owner
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{owner}.{node.name}" if owner else node.name)
        elif isinstance(node, ast.If):
            yield from _functions(node.body + node.orelse, owner)
        elif isinstance(node, ast.Try):
            handlers = [statement for handler in node.handlers for statement in handler.body]
            yield from _functions(node.body + handlers + node.orelse + node.finalbody, owner)
        elif isinstance(node, ast.With):
            yield from _functions(node.body, owner)


@dataclass(frozen=True)
class _Pair:
    question: str
    answer: str


def _pair(node: Function, owner: str | None, lines: list[str]) -> _Pair | None:
    documentation = (ast.get_docstring(node) or "").strip()
    if not documentation or _is_trivial(node):
        return None
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
    answer = dedented(lines[first : node.end_lineno])
    if len(answer) > MAX_ANSWER_CHARACTERS or "\0" in answer or not _compiles_alike(answer, node):
        return None
    signature = signature_of(node, lines, first)
    if not signature:
        return None
    paragraph = documentation.split("\n\n")[0].strip()
    kind = "method" if owner else "function"
    place = f" of the class `{owner}`" if owner else ""
    question = f"Write the Python {kind} `{node.name}`{place}.\n\n{paragraph}\n\n{signature}"
    return _Pair(question, answer)


def _is_trivial(node: Function) -> bool:
    body = node.body[1:]
    if not body:
        return True
    if len(body) > 1:
        return False
    only = body[0]
    if isinstance(only, ast.Return):
        return only.value is None or isinstance(only.value, ast.Constant)
    if isinstance(only, ast.Expr):
        return isinstance(only.value, ast.Constant)
    return isinstance(only, ast.Pass | ast.Raise)


def dedented(lines: list[str]) -> str:
    """The lines without the first one's indentation; a line of a string that has less of it stays."""
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip(" \t"))]
    return "".join(line.removeprefix(indent) for line in lines).rstrip()


def _compiles_alike(answer: str, node: Function) -> bool:
    """Whether the dedented text compiles and is the same code, its docstring's indentation aside."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(answer, "<answer>", "exec", dont_inherit=True)
            tree = ast.parse(answer)
    except (SyntaxError, ValueError, RecursionError):
        return False
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return _code(tree.body[0]) == _code(node)


def _code(node: Function) -> str:
    without = copy.copy(node)
    without.body = node.body[1:]
    return ast.dump(without)


def signature_of(node: Function, lines: list[str], first: int) -> str:
    """Decorators and header as they stand, from the first decorator to the colon."""
    docstring = node.body[0]
    header = lines[first : docstring.lineno]
    header[-1] = header[-1].encode()[: docstring.col_offset].decode()
    text = dedented(header)
    while text and not text.endswith(":"):  # comments between the header and the docstring
        text = text.rpartition("\n")[0].rstrip()
    return text
