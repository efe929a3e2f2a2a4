"""Modules that a program under test must do without: those that have the original of what it is to write."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


def withhold(modules: Sequence[str]) -> None:
    """From here on they, and their halves in C, can be neither imported nor opened, and no loaded module that has
    something of theirs is found any more. For good: an audit hook cannot be taken away."""
    names = {*modules, *(f"_{module.partition('.')[0]}" for module in modules)}
    files = {file for name in names for file in _files(name)}
    for name, module in list(sys.modules.items()):
        if name in names or (name not in _NEEDED and _has_of(module, names)):
            del sys.modules[name]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "import" and arguments[0] in names:
            raise ImportError(f"{arguments[0]} has what is to be written here")
        if event == "open" and isinstance(arguments[0], str | bytes) and os.path.realpath(arguments[0]) in files:
            raise PermissionError("it has what is to be written here")

    sys.addaudithook(hook)


_NEEDED = frozenset({"sys", "builtins", "__main__"})


def _files(name: str) -> list[str]:
    """Real paths of a module's source and of what is compiled from it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return []
    found = [] if spec is None else [spec.origin, spec.cached]
    return [os.path.realpath(file) for file in found if file]


def _has_of(module: ModuleType, names: set[str]) -> bool:
    if module.__name__.startswith("rft."):
        return False
    return any(
        (isinstance(value, ModuleType) and value.__name__ in names)
        or (callable(value) and getattr(value, "__module__", None) in names)
        for value in list(vars(module).values())
    )
