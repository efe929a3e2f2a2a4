"""What a function needs of its module: imports of pure modules and short definitions, as source."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator, Sequence
from typing import ClassVar

from trainer.data.declarations import dedented

MAX_CONTEXT_CHARACTERS = 1500
PURE_MODULES = frozenset(
    {
        "__future__", "abc", "base64", "binascii", "bisect", "calendar", "cmath", "collections", "colorsys", "copy",
        "dataclasses", "datetime", "decimal", "difflib", "enum", "fractions", "functools", "hashlib", "heapq", "html",
        "itertools", "json", "keyword", "math", "numbers", "operator", "re", "statistics", "string", "struct",
        "textwrap", "types", "typing", "unicodedata", "urllib.parse",
    }
)  # fmt: skip
"""Modules whose functions give the same for the same and change nothing outside."""
IMPURE_BUILTINS = frozenset(
    {
        "__import__", "breakpoint", "compile", "eval", "exec", "exit", "globals", "hash", "help", "id", "input",
        "locals", "open", "print", "quit", "vars",
    }
)  # fmt: skip


class ModuleContext:
    """The top level of one module, to take from it what a function refers to."""

    BUILTINS: ClassVar[frozenset[str]] = frozenset(dir(builtins)) - IMPURE_BUILTINS

    def __init__(self, tree: ast.Module, lines: Sequence[str]) -> None:
        self._lines = lines
        self._defined: dict[str, ast.stmt] = {}
        self._unclear: set[str] = set()
        for node in tree.body:
            for name in _binds(node):
                if name in self._defined:
                    self._unclear.add(name)
                self._defined[name] = node
        self._future = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]

    def needed(self, function: ast.FunctionDef) -> str | None:
        """The source of all that ``function`` refers to, in the module's order, ending in a blank line if there is any;
        None when that is too much, unclear, or reaches outside."""
        taken: dict[int, ast.stmt] = {}
        waiting: list[ast.stmt] = [function]
        aliases: dict[int, set[str]] = {}
        while waiting:
            node = waiting.pop()
            for name in self._globals(node):
                if name == function.name or (name in self.BUILTINS and name not in self._defined):
                    continue
                found = self._defined.get(name)
                if found is None or name in self._unclear:
                    return None
                aliases.setdefault(found.lineno, set()).add(name)
                if isinstance(found, ast.Import | ast.ImportFrom):
                    taken[found.lineno] = found
                    continue
                if found.lineno not in taken:
                    taken[found.lineno] = found
                    waiting.append(found)
        parts = []
        for line, node in sorted([*((n.lineno, n) for n in self._future), *taken.items()], key=lambda pair: pair[0]):
            text = self._source(node, aliases.get(line, set()))
            if text is None:
                return None
            parts.append(text)
        text = "\n".join(parts)
        if len(text) > MAX_CONTEXT_CHARACTERS:
            return None
        return f"{text}\n\n\n" if text else ""

    def _globals(self, node: ast.stmt) -> Iterator[str]:
        """Names of the module or of builtins that its source refers to."""
        table = symtable.symtable(self._text(node), "<function>", "exec")
        waiting = [table]
        while waiting:
            scope = waiting.pop()
            waiting += scope.get_children()
            for symbol in scope.get_symbols():
                outer = scope is table or symbol.is_global()
                if outer and symbol.is_referenced() and not (scope is table and symbol.is_assigned()):
                    yield symbol.get_name()

    def _source(self, node: ast.stmt, names: set[str]) -> str | None:
        if isinstance(node, ast.ImportFrom):
            if node.level or node.module not in PURE_MODULES:
                return None
            future = node.module == "__future__"
            kept = [alias for alias in node.names if future or (alias.asname or alias.name) in names]
            return ast.unparse(ast.ImportFrom(node.module, kept, 0))
        if isinstance(node, ast.Import):
            kept = [alias for alias in node.names if (alias.asname or alias.name).split(".")[0] in names]
            if any(alias.name not in PURE_MODULES for alias in kept):
                return None
            return ast.unparse(ast.Import(kept))
        return self._text(node)

    def _text(self, node: ast.stmt) -> str:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        return dedented(list(self._lines[first - 1 : node.end_lineno]))


def _binds(node: ast.stmt) -> Iterator[str]:
    """Names that a statement of the top level binds; of one that may not run, all that it could."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield (alias.asname or alias.name).split(".")[0]
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    else:
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                yield each.id
            elif each is not node and isinstance(
                each, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
            ):
                yield from _binds(each)
