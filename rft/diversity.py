"""When two accepted answers are the same, and which of a task's answers go into a corpus. Pure.

What is compared is the code of an answer that is Python, in its first fence or bare, and the whole answer otherwise.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trainer.data.code_block import first_code_block

Distinct = Literal["text", "tokens", "python_ast"]

MAX_PARSED = 100_000
"""Characters of code that are parsed; longer answers are compared by their tokens."""

_TOKEN = re.compile(r"\w+|[^\w\s]")
_LAYOUT = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING, tokenize.ENDMARKER})


def answer_key(text: str, distinct: Distinct) -> str:
    """32 hexadecimal digits that are equal for answers which count as the same.

    ``text``: to the letter. ``tokens``: but for layout and comments. ``python_ast``: but for docstrings and for names
    of arguments and local variables as well; an answer that is no Python is compared by its tokens.
    """
    if distinct == "text":
        return _digest("text", text)
    code, tree = _python(text)
    if tree is None:
        return _digest("words", "\0".join(_TOKEN.findall(text)))
    if distinct == "python_ast":
        return _digest("ast", ast.dump(_canonical(tree), annotate_fields=False))
    return _digest("tokens", "\0".join(_python_tokens(code)))


@dataclass(frozen=True)
class Answer:
    """An accepted answer of a task: its sample's index, its key and its length in tokens."""

    index: int
    key: str
    tokens: int


def choose(answers: Sequence[Answer], keep: Literal["all", "shortest", "first"], most: int) -> list[int]:
    """Indices of the answers to take, in order: the first one of those that are the same, then at most ``most``.

    ``first`` prefers those drawn first, ``shortest`` those with the fewest tokens (drawn first among equals), ``all``
    takes every different one whatever ``most`` says.
    """
    order = sorted(answers, key=lambda answer: answer.index)
    if keep == "shortest":
        order.sort(key=lambda answer: answer.tokens)  # stable
    different: dict[str, Answer] = {}
    for answer in order:
        different.setdefault(answer.key, answer)
    chosen = list(different.values())[: None if keep == "all" else most]
    return sorted(answer.index for answer in chosen)


def _digest(how: str, text: str) -> str:
    return hashlib.blake2b(f"{how}\0{text}".encode("utf-8", "replace"), digest_size=16).hexdigest()


def _python(text: str) -> tuple[str, ast.Module | None]:
    """The code of an answer, fenced or bare, and its tree; None for what is no Python."""
    for code in (first_code_block(text), text):
        if code is not None and (tree := _parsed(code)) is not None:
            return code, tree
    return text, None


def _parsed(code: str) -> ast.Module | None:
    if len(code) > MAX_PARSED:
        return None
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _python_tokens(code: str) -> list[str]:
    """Tokens without layout and comments, blocks marked, of code that can be parsed."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in (tokenize.INDENT, tokenize.DEDENT):
            found.append(tokenize.tok_name[token.type])
        elif token.type not in _LAYOUT:
            found.append(token.string)
    return found


def _canonical(tree: ast.Module) -> ast.Module:
    """The tree without docstrings, local names replaced by their order."""
    try:
        renamed = _Renamer().visit(tree)
    except RecursionError:
        return tree
    assert isinstance(renamed, ast.Module)
    return renamed


class _Names(ast.NodeVisitor):
    """The names that one function binds, in order of appearance, without those of functions inside it."""

    def __init__(self) -> None:
        self.bound: dict[str, None] = {}
        self.elsewhere: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store | ast.Del):
            self.bound.setdefault(node.id)

    def visit_arg(self, node: ast.arg) -> None:
        self.bound.setdefault(node.arg)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.bound.setdefault(node.name)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self.elsewhere.update(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.elsewhere.update(node.names)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.bound.setdefault(node.name)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.bound.setdefault(node.name)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.bound.setdefault(node.name)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        pass


class _Renamer(ast.NodeTransformer):
    """Renames what functions bind; names of modules and attributes stay, and so do keyword arguments of calls."""

    def __init__(self) -> None:
        self._scopes: list[dict[str, str]] = []
        self._given = 0

    def _inside(self, arguments: ast.arguments, body: Sequence[ast.AST]) -> dict[str, str]:
        names = _Names()
        names.visit(arguments)
        for statement in body:
            names.visit(statement)
        scope = {}
        for name in names.bound:
            if name not in names.elsewhere:
                scope[name] = f"_{self._given}"
                self._given += 1
        return scope

    def _name(self, name: str) -> str:
        return next((scope[name] for scope in reversed(self._scopes) if name in scope), name)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        node.name = self._name(node.name)
        node.decorator_list = [self.visit(each) for each in node.decorator_list]
        node.body = _without_docstring(node.body)
        self._scopes.append(self._inside(node.args, node.body))
        node.args = self.visit(node.args)
        node.body = [self.visit(each) for each in node.body]
        node.returns = node.returns and self.visit(node.returns)
        self._scopes.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self._scopes.append(self._inside(node.args, [node.body]))
        self.generic_visit(node)
        self._scopes.pop()
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self._name(node.name)
        node.body = _without_docstring(node.body)
        return self.generic_visit(node)

    def visit_Module(self, node: ast.Module) -> ast.AST:
        node.body = _without_docstring(node.body)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._name(node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._name(node.arg)
        return self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        node.name = node.name and self._name(node.name)
        return self.generic_visit(node)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
        node.names = [self._name(name) for name in node.names]
        return node


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(ast.Constant(str())), *rest]:
            return rest or [ast.Pass()]
    return body
