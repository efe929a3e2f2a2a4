"""Wrong and right programs made from HumanEval's reference solutions, the same ones each time."""

from __future__ import annotations

import ast
import copy
import random
from typing import Any

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPERATIONS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.FloorDiv, ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def completions(problem: dict[str, Any], count: int) -> list[str]:
    """``count`` bodies for a problem: its reference solution with one thing changed in each."""
    draw = random.Random(problem["task_id"])
    whole = ast.parse(problem["prompt"] + problem["canonical_solution"])
    places = [place for place, node in enumerate(ast.walk(whole)) if _changes(node)]
    found = []
    for _ in range(count):
        tree = copy.deepcopy(whole)
        node = list(ast.walk(tree))[draw.choice(places)]
        draw.choice(_changes(node))(node)
        function = next(
            part for part in tree.body if isinstance(part, ast.FunctionDef) and part.name == problem["entry_point"]
        )
        body = [part for part in function.body if not _is_docstring(part)] or [ast.Pass()]
        lines = ast.unparse(ast.Module(body, [])).splitlines()
        found.append("".join(f"    {line}\n" for line in lines))
    return found


def _changes(node: ast.AST) -> list[Any]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        return [lambda n: n.ops.__setitem__(0, COMPARISONS[type(n.ops[0])]())]
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OPERATIONS:
        return [lambda n: setattr(n, "op", OPERATIONS[type(n.op)]())]
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return [lambda n: setattr(n, "value", n.value + 1), lambda n: setattr(n, "value", n.value - 1)]
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        return [lambda n: setattr(n, "value", not n.value)]
    if isinstance(node, ast.Return):
        return [lambda n: setattr(n, "value", None), lambda n: setattr(n, "value", ast.Tuple([n.value], ast.Load()))]
    if isinstance(node, ast.If):
        return [lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))]
    return []


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
