"""YAML files as plain data plus the line on which each key stands.

YAML 1.2 rules: ``2e-4`` is a number, ``yes`` is text, and a key that stands twice is an error.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from supervisor.jobs import Problem
from supervisor.problems import ConfigError

MAX_NODES = 100_000
"""More nodes than any configuration has; aliases of aliases ("billion laughs") stop here."""

_MERGE_TAG = "tag:yaml.org,2002:merge"


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The mapping in ``path`` and the line (from 1) of each dotted key; list items count as ``key.0``.

    Raises ConfigError: no such file, not readable, not UTF-8, not YAML, duplicate keys, keys that
    aren't text, or a document that isn't a mapping.
    """
    file = str(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise ConfigError([Problem("", "there is no such file", "Check the path.", file)]) from None
    except IsADirectoryError:
        raise ConfigError([Problem("", "this is a folder", "Name a YAML file.", file)]) from None
    except OSError as error:
        raise ConfigError([Problem("", f"can't be read: {error.strerror}", "", file)]) from None
    except UnicodeDecodeError as error:
        message = f"byte {error.start} is not UTF-8"
        raise ConfigError([Problem("", message, "Save the file as UTF-8.", file)]) from None
    return parse_yaml_mapping(text, file)


def parse_yaml_mapping(text: str, file: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Like :func:`read_yaml` for text; ``file`` only names it in problems."""
    try:
        root = _yaml().compose(io.StringIO(text))
        if not isinstance(root, MappingNode):
            message = "the file is empty" if root is None else "the file holds no mapping of keys to values"
            raise ConfigError([Problem("", message, "Write `key: value` lines.", file, 1)])
        walk = _Walk(file)
        walk.visit(root, "")
        if walk.problems:
            raise ConfigError(walk.problems)
        data: dict[str, Any] = _yaml().load(io.StringIO(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"not valid YAML: {error.problem or error.context or 'unreadable'}"
        raise ConfigError([Problem("", message, "", file, mark.line + 1 if mark else None)]) from None
    except RecursionError:
        message = "nested too deeply, or an alias that refers to itself"
        raise ConfigError([Problem("", message, "", file)]) from None
    except (YAMLError, ValueError) as error:
        raise ConfigError([Problem("", f"not valid YAML: {_first_line(error)}", "", file)]) from None
    return data, walk.lines


def parse_yaml_value(text: str) -> Any:
    """One YAML value as plain data. Raises ValueError with a short reason."""
    try:
        return _yaml().load(io.StringIO(text))
    except MarkedYAMLError as error:
        raise ValueError(error.problem or error.context or "unreadable") from None
    except YAMLError as error:
        raise ValueError(_first_line(error)) from None
    except RecursionError:
        raise ValueError("nested too deeply, or an alias that refers to itself") from None


def render_yaml(document: Mapping[str, Any]) -> str:
    """``document`` as block YAML in its own key order; reading it back gives an equal document."""
    yaml = _yaml()
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 4096
    yaml.allow_unicode = False  # unescaped, some control characters would not survive reading
    stream = io.StringIO()
    yaml.dump(dict(document), stream)
    return stream.getvalue()


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _yaml() -> YAML:
    return YAML(typ="safe", pure=True)  # libyaml would read YAML 1.1, where 2e-4 is text


class _Walk:
    """Collects lines and problems of a node tree."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[str, int] = {}
        self.problems: list[Problem] = []
        self._nodes = 0

    def visit(self, node: Node, prefix: str) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise ValueError("aliases refer to each other without end, or the file is far too large")
        if isinstance(node, MappingNode):
            self._visit_mapping(node, prefix)
        elif isinstance(node, SequenceNode):
            for index, item in enumerate(node.value):
                key = f"{prefix}.{index}" if prefix else str(index)
                self.lines.setdefault(key, item.start_mark.line + 1)
                self.visit(item, key)

    def _visit_mapping(self, node: MappingNode, prefix: str) -> None:
        seen: dict[str, int] = {}
        for key_node, value in node.value:
            line = key_node.start_mark.line + 1
            if str(key_node.tag) == _MERGE_TAG:
                for merged in value.value if isinstance(value, SequenceNode) else [value]:
                    self.visit(merged, prefix)
                continue
            name = key_node.value
            if not isinstance(name, str) or str(key_node.tag) != "tag:yaml.org,2002:str":
                shown = name if isinstance(name, str) else "a list or mapping"
                self.problems.append(
                    Problem(prefix, f"the key {shown} is not text", "Put it in quotes.", self.file, line)
                )
                continue
            key = f"{prefix}.{name}" if prefix else name
            if name in seen:
                message = f"{key} stands twice, first on line {seen[name]}"
                self.problems.append(Problem(key, message, "Keep one of the two.", self.file, line))
                continue
            seen[name] = line
            self.lines[key] = line
            self.visit(value, key)
