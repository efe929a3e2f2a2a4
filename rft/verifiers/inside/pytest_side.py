"""pytest's side: runs the tests with a stand-in for the module that is judged, and counts their passes.

Runs in a sandbox of its own, in the folder with the tests, beside mens_spec.json; the module answers on descriptor 0.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_MAX_RECEIVED, _MAX_SENT = 1 << 23, 1 << 26


def imported(node: ast.AST) -> list[str]:
    """The top-level modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.partition(".")[0]]
    return []


def wanted_names(source: str, tests: Sequence[str], module: str) -> list[str]:
    """Names that the module defines at its top, and that tests ask of it."""
    found: set[str] = set()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        tree = ast.Module([], [])  # loading it will tell
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    for text in tests:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module == module:
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
    return sorted(found - {"*"})


class _StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the module from the other side, once; the tests' imports of it get what it defines there."""

    def __init__(self, peer: Any, module: str, source: str, wanted: Sequence[str]) -> None:
        self._peer, self._module, self._source, self._wanted = peer, module, source, wanted
        self.error: ImportError | None = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == self._module else None

    def exec_module(self, module: types.ModuleType) -> None:
        if self.error is not None:
            raise self.error
        try:
            names = self._peer.ask("load", None, (self._source, self._wanted, ()))
        except BaseException as error:  # noqa: BLE001  (whatever it raised over there, here the import has failed)
            self.error = ImportError(f"{self._module} cannot be imported: {error}\n{self._peer.trace}")
            raise self.error from None
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names):
            self._peer.lost = "malformed"
            raise ImportError(f"{self._module} broke the protocol")
        module.__dict__.update({name: value for name, value in names.items() if not name.startswith("__")})


class _Counter:
    """A plug-in of pytest's: which tests there are, and which of them have passed in all their phases."""

    def __init__(self) -> None:
        self.collected: list[str] = []
        self.phases: dict[str, list[bool]] = {}
        self.reason = ""

    def pytest_collection_finish(self, session: Any) -> None:
        self.collected = [item.nodeid for item in session.items]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.reason = self.reason or "the tests cannot import it"
        elif report.skipped:
            self.collected.append(report.nodeid)  # a module that is skipped as a whole has not passed

    def pytest_runtest_logreport(self, report: Any) -> None:
        good = report.passed and not hasattr(report, "wasxfail")
        self.phases.setdefault(report.nodeid, []).append(good)
        if not good:
            skipped = report.skipped or hasattr(report, "wasxfail")
            self.reason = self.reason or ("tests were skipped" if skipped else "tests failed")

    @property
    def passed(self) -> int:
        return sum(all(self.phases.get(name, [])) and len(self.phases.get(name, [])) == 3 for name in self.collected)


def _call(thing: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return thing(*arguments, **named)


def _trouble(peer: Any) -> str | None:
    if peer.unsendable is not None:
        return "the tests hand over what cannot be handed over"
    if peer.lost is not None:
        return "ends its process" if peer.lost == "gone" else "breaks the protocol"
    return "gives an answer that is no value" if peer.no_value is not None else None


def main() -> int:
    spec = json.loads(Path("mens_spec.json").read_text(encoding="utf-8"))
    sys.path.insert(0, spec["root"])
    from rft.sandbox.inside.peer import Channel, Peer

    report, link = os.dup(1), os.dup(0)  # pytest puts others in their place
    channel = Channel(link, _MAX_RECEIVED, _MAX_SENT)
    served: dict[str, Callable[..., Any]] = {"call": _call, "next": next}
    peer = Peer(channel, served)
    channel.receive()
    sys.path.remove(spec["root"])
    sys.dont_write_bytecode = True

    # Plug-ins that happen to be installed judge nobody; `-p NAME` among the arguments asks for one.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import pytest

    texts = [path.read_text(encoding="utf-8") for path in Path().rglob("*.py") if path.name != Path(__file__).name]
    sys.meta_path.insert(
        0, _StandIn(peer, spec["module"], spec["source"], wanted_names(spec["source"], texts, spec["module"]))
    )
    counter = _Counter()
    options = ["-p", "no:cacheprovider", "-q", "--tb=short", "--color=no", "--rootdir=.", "-o", "addopts="]
    code = int(pytest.main([*options, *spec["arguments"]], plugins=[counter]))
    found = {
        "passed": counter.passed,
        "expected": len(counter.collected),
        "exit": code,
        "reason": counter.reason,
        "trouble": _trouble(peer),
        "lost": peer.lost is not None,
    }
    sys.stdout.flush()
    os.write(report, f"\n{spec['nonce']} {json.dumps(found)}".encode())
    return code


if __name__ == "__main__":
    sys.exit(main())
