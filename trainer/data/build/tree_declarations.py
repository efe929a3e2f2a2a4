"""Instruction pairs from source trees through tree-sitter: a doc comment and a signature ask, the declaration answers.

Rust, JavaScript, TypeScript, Go and C; Python has its own extractor (trainer.data.declarations), which can compile.
Names, code and prose are those of the source. What stands between declarations (licences, imports, comments without
a declaration) reaches neither side, nor do declarations that do not parse, tests, or files that look generated.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.data.declarations import MAX_ANSWER_CHARACTERS, SKIPPED_DIRECTORIES, is_source_file
from trainer.data.keys import response_key
from trainer.data.messages import Message, Row

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_FILE_BYTES = 1_000_000
"""Larger files are bundles or generated."""
SKIPPED = SKIPPED_DIRECTORIES | {
    "vendor", "third_party", "target", "testdata", "benches", "examples", "__tests__", "spec", "out",
}  # fmt: skip
_TEST_FILE = re.compile(r"(^test_|_test\.|\.test\.|\.spec\.|\.min\.|\.d\.ts$|_generated\.|\.pb\.)")


@dataclass(frozen=True)
class Grammar:
    """A language as tree-sitter has it.

    ``parsers``: suffix -> (module, function) of the grammar. ``declarations``: node type -> what it is called in a
    question. ``containers``: node types that hold declarations, among them those of an ``owner`` whose name is in the
    field given. ``doc``: what a doc comment looks like; ``adjacent``: it must end on the line above.
    """

    title: str
    parsers: Mapping[str, tuple[str, str]]
    declarations: Mapping[str, str]
    containers: Mapping[str, str | None]
    doc: re.Pattern[str]
    adjacent: bool = False
    attributes: frozenset[str] = frozenset()


_BLOCK_DOC = re.compile(r"/\*\*[^*/]")
_ECMA = {
    "function_declaration": "function", "generator_function_declaration": "function", "method_definition": "method",
    "lexical_declaration": "function", "class_declaration": "class",
}  # fmt: skip
_ECMA_CONTAINERS: dict[str, str | None] = {
    "program": None, "export_statement": None, "class_declaration": "name", "class_body": None,
}  # fmt: skip

GRAMMARS: Mapping[str, Grammar] = {
    "rust": Grammar(
        "Rust",
        {".rs": ("tree_sitter_rust", "language")},
        {"function_item": "function", "struct_item": "struct", "enum_item": "enum", "trait_item": "trait"},
        {
            "source_file": None, "mod_item": None, "impl_item": "type", "trait_item": "name", "declaration_list": None,
        },
        re.compile(r"///(?!/)|/\*\*[^*/]"),
        attributes=frozenset({"attribute_item"}),
    ),
    "javascript": Grammar(
        "JavaScript",
        dict.fromkeys((".js", ".mjs", ".cjs", ".jsx"), ("tree_sitter_javascript", "language")),
        _ECMA,
        _ECMA_CONTAINERS,
        _BLOCK_DOC,
    ),
    "typescript": Grammar(
        "TypeScript",
        {
            ".ts": ("tree_sitter_typescript", "language_typescript"),
            ".tsx": ("tree_sitter_typescript", "language_tsx"),
        },
        {**_ECMA, "interface_declaration": "interface", "type_alias_declaration": "type", "enum_declaration": "enum"},
        {**_ECMA_CONTAINERS, "internal_module": None, "statement_block": None},
        _BLOCK_DOC,
        attributes=frozenset({"decorator"}),
    ),
    "go": Grammar(
        "Go",
        {".go": ("tree_sitter_go", "language")},
        {"function_declaration": "function", "method_declaration": "method", "type_declaration": "type"},
        {"source_file": None},
        re.compile(r"//(?!go:|\s*\+build|nolint)|/\*"),
        adjacent=True,
    ),
    "c": Grammar(
        "C",
        {".c": ("tree_sitter_c", "language"), ".h": ("tree_sitter_c", "language")},
        {"function_definition": "function", "struct_specifier": "struct", "enum_specifier": "enum"},
        {
            "translation_unit": None, "preproc_ifdef": None, "preproc_if": None, "preproc_else": None,
            "linkage_specification": None, "declaration_list": None,
        },
        re.compile(r"///|//|/\*"),
        adjacent=True,
    ),
}  # fmt: skip


def read_tree(root: Path, language: str) -> Iterator[Row]:
    """One row per documented declaration below ``root``, by path and line; equal answers once.

    ``extra`` has the declaration's ``name``. Raises ImportError when the grammar is not installed, OSError.
    """
    grammar = GRAMMARS[language]
    parsers = {suffix: _parser(*where) for suffix, where in grammar.parsers.items()}
    seen: set[str] = set()
    for path in tree_files(root, language):
        data = path.read_bytes()
        if not _is_text(data):
            continue
        for row in _rows_in(parsers[path.suffix].parse(data).root_node, grammar, path):
            if (key := response_key(row.response)) not in seen:
                seen.add(key)
                yield row


def _rows_in(root: Node, grammar: Grammar, path: Path) -> list[Row]:
    try:
        rows = [_row(found, grammar, path) for found in _declarations(root, grammar, None)]
    except RecursionError:
        return []
    return [row for row in rows if row is not None]


def packages_of(language: str) -> set[str]:
    """The packages that its grammar is in."""
    return {module.replace("_", "-") for module, _ in GRAMMARS[language].parsers.values()}


@dataclass(frozen=True)
class _Found:
    """A declaration: the node that names it, the outer one with ``export``, what stands before, its owner."""

    node: Node
    outer: Node
    attributes: tuple[Node, ...]
    doc: str
    owner: str | None


def _parser(module: str, function: str) -> Parser:
    from tree_sitter import Language, Parser

    return Parser(Language(getattr(importlib.import_module(module), function)()))


def tree_files(root: Path, language: str) -> Iterator[Path]:
    """The files below ``root`` that declarations are taken from, in order."""
    suffixes = GRAMMARS[language].parsers
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix not in suffixes or _TEST_FILE.search(name) or not is_source_file(path):
                continue
            if path.stat().st_size <= MAX_FILE_BYTES:
                yield path


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode("utf-8")
    except UnicodeDecodeError:
        return False


def _text(node: Node) -> str:
    return node.text.decode("utf-8") if node.text else ""


def _declarations(container: Node, grammar: Grammar, owner: str | None) -> Iterator[_Found]:
    """Declarations of a container with the doc comment right before each, and those of the containers inside."""
    comments: list[Node] = []
    attributes: list[Node] = []
    for node in container.named_children:
        if "comment" in node.type:
            if comments and (attributes or node.start_point.row > _last_line(comments[-1]) + 1):
                comments = []
            comments.append(node)
            continue
        if node.type in grammar.attributes:
            attributes.append(node)
            continue
        inner = node
        if node.type == "export_statement":
            inner = node.child_by_field_name("declaration") or node
        if not any("test" in _text(attribute) for attribute in attributes):
            doc = _documentation(comments, attributes, node, grammar)
            if inner.type in grammar.declarations and doc:
                yield _Found(inner, node, tuple(attributes), doc, owner)
            if inner.type in grammar.containers:
                field = grammar.containers[inner.type]
                named = inner.child_by_field_name(field) if field else None
                body = inner.child_by_field_name("body") or inner
                yield from _declarations(body, grammar, _text(named) if named else owner)
        comments, attributes = [], []


def _last_line(comment: Node) -> int:
    """Some grammars end a line comment after its newline."""
    return comment.end_point.row - (1 if comment.end_point.column == 0 else 0)


def _documentation(comments: list[Node], attributes: list[Node], node: Node, grammar: Grammar) -> str:
    """The first paragraph of the doc comment, without its markup; empty when there is none."""
    first = attributes[0] if attributes else node
    if not comments or not all(grammar.doc.match(_text(comment)) for comment in comments):
        comments = [comment for comment in comments[-1:] if grammar.doc.match(_text(comment))]
    if not comments or (grammar.adjacent and _last_line(comments[-1]) + 1 != first.start_point.row):
        return ""
    lines = [line for comment in comments for line in _prose(_text(comment))]
    paragraph: list[str] = []
    for line in lines:
        if re.match(r"[@\\](brief|description|summary)\s+", line):
            line = re.sub(r"^[@\\]\w+\s+", "", line)
        if not line or line.startswith(("@", "\\", "```", "# ")):
            if paragraph:
                break
            continue
        paragraph.append(line)
    return "\n".join(paragraph)


def _prose(comment: str) -> list[str]:
    """Lines of a comment without ``//``, ``/*`` and leading stars."""
    if comment.startswith("//"):
        return [re.sub(r"^//[/!]?", "", comment).strip()]
    inside = re.sub(r"^/\*[*!]?", "", comment).removesuffix("*/").rstrip("*")
    return [re.sub(r"^\s*\*? ?", "", line).strip() for line in inside.split("\n")]


def _row(found: _Found, grammar: Grammar, path: Path) -> Row | None:
    node, outer = found.node, found.outer
    named = _named(node)
    body = _body(node)
    if named is None or body is None or outer.has_error or not body.named_child_count:
        return None
    source = node
    while source.parent is not None:
        source = source.parent
    data = source.text or b""
    first = min([outer.start_byte, *(attribute.start_byte for attribute in found.attributes)])
    first = data.rfind(b"\n", 0, first) + 1
    answer = _dedented(data[first : outer.end_byte].decode("utf-8"))
    signature = re.sub(r"\s*(=>|=)?\s*$", "", _dedented(data[first : body.start_byte].decode("utf-8")))
    if len(answer) > MAX_ANSWER_CHARACTERS or not signature:
        return None
    owner = found.owner or _receiver(node)
    kind = grammar.declarations[node.type]
    if owner and kind == "function":
        kind = "method"
    place = f" of `{owner}`" if owner else ""
    question = f"Write the {grammar.title} {kind} `{named}`{place}.\n\n{found.doc}\n\n{signature}"
    extra = {"name": f"{owner}.{named}" if owner else named}
    return Row(
        (Message("user", question), Message("assistant", answer)), (), str(path), node.start_point.row + 1, extra
    )


def _named(node: Node) -> str | None:
    """The declared name, wherever the grammar hides it."""
    if node.type == "lexical_declaration":
        return _named(node.named_children[0]) if len(node.named_children) == 1 else None
    if node.type == "type_declaration":
        return _named(node.named_children[0]) if len(node.named_children) == 1 else None
    if (name := node.child_by_field_name("name")) is not None:
        return _text(name)
    inner = node.child_by_field_name("declarator")
    while inner is not None:
        if inner.type == "identifier":
            return _text(inner)
        inner = inner.child_by_field_name("declarator")
    return None


def _body(node: Node) -> Node | None:
    """Where the signature ends; of ``const f = ...`` only a function has one."""
    if node.type == "lexical_declaration":
        value = node.named_children[0].child_by_field_name("value") if node.named_children else None
        return value.child_by_field_name("body") if value is not None else None
    if node.type == "type_declaration":
        return node.named_children[0].child_by_field_name("type") if node.named_children else None
    return node.child_by_field_name("body") or node.child_by_field_name("value")


def _receiver(node: Node) -> str | None:
    """The type that a Go method belongs to."""
    receiver = node.child_by_field_name("receiver")
    found = re.search(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?\s*\)$", _text(receiver)) if receiver is not None else None
    return found.group(1) if found else None


def _dedented(text: str) -> str:
    """Without the first line's indentation."""
    lines = text.split("\n")
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip(" \t"))]
    return "\n".join(line.removeprefix(indent) for line in lines).rstrip()
