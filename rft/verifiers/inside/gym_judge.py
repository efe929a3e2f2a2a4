"""Scores answers with reasoning-gym's own scorers; loaded by judge_server.py, with gym_package.py beside it.

Several of the scorers hand the answer to ``eval``, or to sympy's reader, which does. Here these read literals and
arithmetic and nothing else, so no answer is ever run.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any, NoReturn

MAX_EXPRESSION = 2000
MAX_EXPONENT = 1000
_LITERALS = (
    ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.UnaryOp, ast.BinOp, ast.operator,
    ast.unaryop, ast.Load,
)  # fmt: skip
_ALGEBRA = (
    ast.Expression, ast.Constant, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop, ast.Load, ast.Name, ast.Call,
)  # fmt: skip
_FUNCTIONS = frozenset(
    {
        "exp", "log", "ln", "sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh",
        "tanh", "asinh", "acosh", "atanh", "Abs", "pi", "E", "I",
    }
)  # fmt: skip


def make(argument: dict[str, str]) -> Scorers:
    sys.path.insert(0, str(Path(argument["gym_package"]).parent))
    gym_package = importlib.import_module("gym_package")

    gym_package.load()
    disarm(gym_package.PACKAGE)
    return Scorers(gym_package)


class Scorers:
    def __init__(self, gym_package: Any) -> None:
        self._gym = gym_package
        self._known: dict[str, Any] = {}

    def prepare(self, request: dict[str, Any]) -> None:
        """Called before the judging process is split off, so that a generator is made once."""
        key = self._key(request)
        if key not in self._known:
            if len(self._known) > 256:
                self._known.clear()
            self._known[key] = self._gym.dataset(request["dataset"], request["params"], 0, 1)

    def __call__(self, request: dict[str, Any]) -> float | None:
        if "answer" not in request:
            return None
        score = self._known[self._key(request)].score_answer(request["answer"], request["entry"])
        score = float(score)
        if not math.isfinite(score):
            raise ValueError(f"the scorer of {request['dataset']} gave {score}")
        return min(1.0, max(0.0, score))

    @staticmethod
    def _key(request: dict[str, Any]) -> str:
        return json.dumps([request["dataset"], request["params"]], sort_keys=True)


def disarm(package: str) -> None:
    """Replace every evaluating reader that the package's modules have by one that only reads."""
    import sympy
    import sympy.parsing.sympy_parser

    reader = sympy.parsing.sympy_parser.parse_expr

    def read_algebra(text: str, *arguments: Any, **named: Any) -> Any:
        named.pop("global_dict", None)
        known = set(named.get("local_dict") or ())
        check(text, _ALGEBRA, known)
        return reader(text, *arguments, **named)

    def sympify(value: Any, *arguments: Any, **named: Any) -> Any:
        return read_algebra(value) if isinstance(value, str) else original_sympify(value, *arguments, **named)

    original_sympify = sympy.sympify
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == package]:
        module.__dict__["eval"] = read_literal
        module.__dict__["exec"] = refuse
        for name, value in list(module.__dict__.items()):
            if value is reader:
                module.__dict__[name] = read_algebra
            elif value is original_sympify:
                module.__dict__[name] = sympify
    sympy.parse_expr = read_algebra


def read_literal(text: str, *_scopes: Any) -> Any:
    """A literal, or arithmetic on literals, as ``eval`` gives it. Raises ValueError."""
    tree = check(text, _LITERALS, set())
    return builtins.eval(compile(tree, "<answer>", "eval"), {"__builtins__": {}})


def refuse(*_arguments: Any) -> NoReturn:
    raise ValueError("nothing of an answer is run here")


def check(text: str, allowed: tuple[type[ast.AST], ...], known: set[str]) -> ast.Expression:
    """The parsed text when it has no more than ``allowed`` kinds of parts. Raises ValueError, SyntaxError."""
    if not isinstance(text, str) or len(text) > MAX_EXPRESSION:
        raise ValueError("no expression")
    tree = ast.parse(text.strip(), mode="eval")
    for node in ast.walk(tree):
        if not isinstance(node, allowed):
            raise ValueError(f"{type(node).__name__} is not allowed in an answer")
        if isinstance(node, ast.Name) and node.id not in _FUNCTIONS | known and len(node.id) > 1:
            raise ValueError(f"{node.id} is not allowed in an answer")
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS):
            raise ValueError("no such function")
        if isinstance(node, ast.BinOp):
            check_size(node)
        if isinstance(node, ast.Constant) and allowed is _ALGEBRA and not isinstance(node.value, (int, float)):
            raise ValueError("a text is not allowed in an answer")
    return tree


def check_size(node: ast.BinOp) -> None:
    if isinstance(node.op, (ast.Pow, ast.LShift)):
        for part in ast.walk(node.right):
            if isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Pow, ast.LShift)):
                raise ValueError("a power in an exponent")
            if isinstance(part, ast.Constant) and not (
                isinstance(part.value, (int, float)) and abs(part.value) <= MAX_EXPONENT
            ):
                raise ValueError("too large a power")
    if isinstance(node.op, ast.Mult) and any(
        isinstance(side, (ast.List, ast.Tuple))
        or (isinstance(side, ast.Constant) and isinstance(side.value, (str, bytes)))
        for side in (node.left, node.right)
    ):
        raise ValueError("nothing is repeated in an answer")
