"""The configuration: the supervisor's sections and those of a kind of job, one strict document.

``load_config`` reads a file and reports everything that is wrong with it at once. Validation goes
through JSON in strict mode: ``"5"`` and ``true`` are no integers, a list fits a tuple.
"""

from __future__ import annotations

import copy
import datetime
import importlib.util
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError, create_model

from supervisor.config_errors import problems_of, show, suggest
from supervisor.config_ladder import fit_ladder
from supervisor.config_sections import NAME_PATTERN, NotifySettings, SupervisorSections
from supervisor.jobs import (
    JobKind,
    Patch,
    Problem,
    SeveralProcesses,
    UnknownKindError,
    has_adapter,
    keeps_own_state,
    load_kind,
)
from supervisor.problems import ConfigError, render_problems
from supervisor.secret_file import read_addresses
from supervisor.subcommands import subcommand_names
from supervisor.yaml_source import parse_yaml_value, read_yaml

__all__ = [
    "OPERATIONAL",
    "ConfigError",
    "LoadedConfig",
    "SupervisorSections",
    "check_preflight",
    "differences",
    "installed_kind",
    "json_schema",
    "load_command",
    "load_config",
    "load_document",
    "render_problems",
    "set_key",
    "unaccepted",
]

M = TypeVar("M", bound=BaseModel)

OPERATIONAL = frozenset({
    "limits", "relief", "notify", "name", "checkpoint.keep", "checkpoint.snapshot",
    "launch.python", "launch.env", "launch.standby", "gates",
})  # fmt: skip
"""Keys that may change freely when a run directory is continued; nothing learnt depends on them. It does on how many
processes train, and on how they share the work."""

_SET_PREFIX = "--set "
JUDGE = "eval"
"""The command that judges gates, of another package."""


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration that holds.

    ``document`` is the whole of it as plain data: defaults filled in, relative paths absolute.
    ``sections`` is an instance of ``kind.schema``, ``own`` the supervisor's part of the same
    document. ``path`` is None when it didn't come from a file. ``lines`` maps dotted keys to where
    they stand, (file, line), for problems that are found later.
    """

    path: Path | None
    kind: JobKind
    document: dict[str, Any]
    own: SupervisorSections
    sections: BaseModel
    lines: Mapping[str, tuple[str, int | None]]


def load_config(
    path: Path,
    sets: Sequence[str] = (),
    *,
    kind: JobKind | None = None,
    overrides: Mapping[str, Any] | None = None,
    preflight: bool = True,
) -> LoadedConfig:
    """Read, override by ``overrides`` (a run's accepted changes, by dotted key) and then by ``sets`` (each
    ``a.b=YAML``), validate, resolve paths, check what it names unless ``preflight`` is False.

    ``kind`` is for tests; otherwise the document's ``kind`` is looked up. Raises ConfigError with
    all problems of the schema, or, when the schema holds, all that the preflight found.
    """
    document, lines = read_yaml(path)
    places: dict[str, tuple[str, int | None]] = {key: (str(path), line) for key, line in lines.items()}
    places[""] = (str(path), None)
    for key, value in (overrides or {}).items():
        set_key(document, key, copy.deepcopy(value))
    problems = [problem for text in sets for problem in _apply_set(document, places, text)]
    if problems:
        raise ConfigError(problems)
    document.setdefault("name", _safe_name(path.stem))
    config = _validate(document, places, kind, path)
    if preflight:
        check_preflight(config)
    return config


def load_command(command: Sequence[str], sets: Sequence[str] = (), *, preflight: bool = True) -> LoadedConfig:
    """The configuration of `mens-sup run -- COMMAND`: kind ``command``, in the present folder. Raises ConfigError."""
    script = next((word for word in command if word.endswith((".py", ".sh", ".yaml", ".yml"))), command[0])
    document: dict[str, Any] = {"kind": "command", "name": _safe_name(Path(script).stem), "command": list(command)}
    document["working_dir"] = str(Path.cwd())
    places: dict[str, tuple[str, int | None]] = {"": ("command line", None)}
    problems = [problem for text in sets for problem in _apply_set(document, places, text)]
    if problems:
        raise ConfigError(problems)
    config = _validate(document, places, None, None)
    if preflight:
        check_preflight(config)
    return config


def load_document(document: Mapping[str, Any], kind: JobKind | None = None, source: str = "run.yaml") -> LoadedConfig:
    """Validate a resolved document without a file, for example after relief; no preflight.

    ``source`` names the document in problems. Raises ConfigError.
    """
    return _validate(copy.deepcopy(dict(document)), {"": (source, None)}, kind, None)


def check_preflight(config: LoadedConfig) -> None:
    """Raise ConfigError when something that the configuration names would fail the first attempt."""
    problems = [
        *_launch_problems(config.own),
        *_gate_problems(config),
        *_process_problems(config),
        *config.kind.preflight(config.sections),
    ]
    if problems:
        raise _config_error(problems, config.lines)


def json_schema(kind: JobKind) -> dict[str, Any]:
    """The JSON schema of a whole configuration for ``kind``."""
    schema = _combined(kind).model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = f"mens-supervisor configuration, kind {kind.name}"
    return schema


def installed_kind(name: str) -> JobKind:
    """The kind of job registered as ``name``. Raises ConfigError when there is none, or none that loads."""
    try:
        return load_kind(name)
    except UnknownKindError as error:
        meant = suggest(name, error.known)
        raise ConfigError([Problem("kind", str(error), f"Did you mean {meant}?" if meant else "")]) from None
    except (ImportError, AttributeError) as error:
        message = f"kind {name!r} is installed but cannot be loaded ({error})"
        raise ConfigError([Problem("kind", message, "Reinstall the package that brings it.")]) from error


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Patch]:
    """What differs, by dotted key; lists are compared as wholes, a missing key equals null."""
    patches = []
    flat_old, flat_new = _flatten(old), _flatten(new)
    for key in dict.fromkeys((*flat_old, *flat_new)):
        before, after = flat_old.get(key), flat_new.get(key)
        if before != after or isinstance(before, bool) != isinstance(after, bool):
            patches.append(Patch(key, before, after))
    return patches


def unaccepted(old: Mapping[str, Any], new: Mapping[str, Any], accepted: Iterable[str]) -> list[Patch]:
    """The differences that are neither operational nor accepted, by key or by the section above it."""
    allowed = (*OPERATIONAL, *accepted)
    return [patch for patch in differences(old, new) if not any(_covers(name, patch.key) for name in allowed)]


def set_key(document: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in place, making sections as needed. Raises ValueError if a part is no section."""
    parts = key.split(".")
    if not all(parts):
        raise ValueError(f"{key!r} is not a dotted key")
    at = document
    for index, part in enumerate(parts[:-1]):
        below = at.get(part)
        if below is None:
            below = at[part] = {}
        if not isinstance(below, dict):
            raise ValueError(f"{'.'.join(parts[: index + 1])} is {show(below)}, not a section; set it as a whole")
        at = below
    at[parts[-1]] = value


def _validate(
    document: dict[str, Any],
    places: Mapping[str, tuple[str, int | None]],
    kind: JobKind | None,
    path: Path | None,
) -> LoadedConfig:
    if problems := _foreign_values(document, ""):
        raise _config_error(problems, places)
    kind_problems: list[Problem] = []
    if kind is None:
        kind, kind_problems = _find_kind(document)
    if kind is None:
        own_part = {key: document[key] for key in document if key in SupervisorSections.model_fields}
        problems = [*kind_problems, *_schema_problems(SupervisorSections, own_part)]
        raise _config_error(problems, places)
    problems = _schema_problems(_combined(kind), document)
    if problems:
        raise _config_error(problems, places)
    own_part = {key: value for key, value in document.items() if key in SupervisorSections.model_fields}
    own = _parse(SupervisorSections, own_part)
    sections = _parse(kind.schema, {key: value for key, value in document.items() if key not in own_part})
    combined = _combined(kind)
    if keeps_own_state(kind) and "checkpoint" in document:
        message = f"checkpoint: a job of kind {kind.name} keeps what it has done by itself and saves no checkpoints"
        raise _config_error([Problem("checkpoint", message, "Remove the section.")], places)
    own, problems = fit_ladder(own, kind, document, lambda changed: _schema_problems(combined, changed), set_key)
    if problems:
        raise _config_error(problems, places)
    if path is not None:
        base = path.absolute().parent
        own = own.resolved(base)
        sections = kind.resolve(sections, base)
    own_plain = own.model_dump(mode="json")
    if keeps_own_state(kind):
        del own_plain["checkpoint"]
    whole = {
        "name": own_plain.pop("name"),
        "kind": own_plain.pop("kind"),
        **sections.model_dump(mode="json"),
        **own_plain,
    }
    return LoadedConfig(path, kind, whole, own, sections, places)


def _find_kind(document: Mapping[str, Any]) -> tuple[JobKind | None, list[Problem]]:
    name = document.get("kind", SupervisorSections.model_fields["kind"].default)
    if not isinstance(name, str):
        return None, []  # the schema's own check says so
    try:
        return installed_kind(name), []
    except ConfigError as error:
        return None, error.problems


def _combined(kind: JobKind) -> type[BaseModel]:
    shared = set(SupervisorSections.model_fields) & set(kind.schema.model_fields)
    if shared:
        raise TypeError(f"kind {kind.name!r} redefines the supervisor's sections {sorted(shared)}")
    return create_model("Configuration", __base__=(SupervisorSections, kind.schema), __doc__=kind.schema.__doc__)


def _parse(model: type[M], data: Mapping[str, Any]) -> M:
    return model.model_validate_json(json.dumps(data), strict=True, extra="forbid")


def _schema_problems(model: type[BaseModel], data: Mapping[str, Any]) -> list[Problem]:
    try:
        _parse(model, data)
    except ValidationError as error:
        return problems_of(error, model, data)
    return []


def _notify_problems(notify: NotifySettings) -> list[Problem]:
    problems = []
    for key, file in (("notify.urls_file", notify.urls_file), ("notify.ping_file", notify.ping_file)):
        if file is not None and isinstance(found := read_addresses(Path(file)), str):
            remedy = f"chmod o-r {file}" if "by everybody" in found else "Write one address a line into it."
            problems.append(Problem(key, f"{key}: {found}", remedy))
    if notify.urls_file is not None and importlib.util.find_spec("apprise") is None:
        message = "notify.urls_file: apprise is not installed"
        problems.append(Problem("notify.urls_file", message, "pip install 'mens-supervisor[notify]'"))
    return problems


def _launch_problems(own: SupervisorSections) -> list[Problem]:
    problems = []
    if own.launch.python is not None and shutil.which(own.launch.python) is None:
        message = f"launch.python: {own.launch.python} is no program that can be run"
        problems.append(Problem("launch.python", message, "Name a Python interpreter, or remove the key."))
    if own.notify.command and shutil.which(own.notify.command[0]) is None:
        message = f"notify.command: {own.notify.command[0]} is no program that can be run"
        problems.append(Problem("notify.command", message, "Install it or give its path."))
    return [*problems, *_notify_problems(own.notify)]


def _gate_problems(config: LoadedConfig) -> list[Problem]:
    problems = []
    for index, gate in enumerate(config.own.gates):
        if not Path(gate).is_file():
            message = f"gates: {gate} does not exist or is not a file"
            problems.append(Problem(f"gates.{index}", message, "Give the path of a gate's file."))
    if config.own.gates and not has_adapter(config.kind):
        message = f"gates judge an adapter, and a run of kind {config.kind.name} trains none"
        problems.append(Problem("gates", message, "Remove the key; judge by hand with `mens-sup eval gate`."))
    elif config.own.gates and JUDGE not in subcommand_names():
        message = f"gates are judged by `mens-sup {JUDGE}`, which is not installed"
        problems.append(Problem("gates", message, "Reinstall mens-supervisor, or remove the key."))
    return problems


def _process_problems(config: LoadedConfig) -> list[Problem]:
    launch = config.own.launch
    if isinstance(config.kind, SeveralProcesses):
        return config.kind.launch_problems(config.sections, launch.processes, launch.strategy)
    if launch.processes == 1:
        return []
    message = f"launch.processes is {launch.processes}, and a job of kind {config.kind.name} starts no ranks of its own"
    starter = "a command starts them itself (`torchrun --nproc-per-node ...`)"
    remedy = f"Remove the key; {starter}." if config.kind.name == "command" else "Remove the key."
    return [Problem("launch.processes", message, remedy)]


def _apply_set(document: dict[str, Any], places: dict[str, tuple[str, int | None]], text: str) -> list[Problem]:
    key, equals, value_text = text.partition("=")
    key = key.strip()
    source = f"{_SET_PREFIX}{key}=..." if key == "launch" or _covers("launch.env", key) else f"{_SET_PREFIX}{text}"
    if not equals or not key:
        return [Problem(key, "no assignment", "Write --set section.key=value.", source)]
    try:
        set_key(document, key, parse_yaml_value(value_text))
    except ValueError as error:
        return [Problem(key, f"{key}: {error}", "", source)]
    for below in [place for place in places if place.startswith(f"{key}.")]:
        del places[below]
    places[key] = (source, None)
    return []


def _foreign_values(value: Any, key: str) -> list[Problem]:
    """YAML knows dates and bytes; a configuration doesn't."""
    if isinstance(value, Mapping):
        problems = []
        for name, below in value.items():
            if isinstance(name, str):
                problems += _foreign_values(below, f"{key}.{name}" if key else name)
            else:
                message = f"{key or 'the document'} has the key {name}, which is not text"
                problems.append(Problem(key, message, "Put it in quotes."))
        return problems
    if isinstance(value, list):
        return [problem for index, below in enumerate(value) for problem in _foreign_values(below, f"{key}.{index}")]
    if value is None or isinstance(value, str | bool | int | float):
        return []
    what = "a date" if isinstance(value, datetime.date) else f"a {type(value).__name__}"
    return [Problem(key, f"{key} is {what}, which no key takes", "Put it in quotes to make it text.")]


def _config_error(problems: Sequence[Problem], places: Mapping[str, tuple[str, int | None]]) -> ConfigError:
    """The problems in the order in which they stand: the command line, the configuration, other files."""
    main, _ = places[""]

    def place(problem: Problem) -> tuple[int, int]:
        file = problem.file or ""
        rank = 0 if file.startswith(_SET_PREFIX) else 1 if file == main else 2
        return rank, problem.line or 0

    return ConfigError(sorted((_located(problem, places) for problem in problems), key=place))


def _located(problem: Problem, places: Mapping[str, tuple[str, int | None]]) -> Problem:
    """Fill in where the key, or the nearest section above it, stands; ``rows[0]`` is ``rows.0`` here."""
    problem = replace(problem, key=re.sub(r"\[(\d+)\]", r".\1", problem.key))
    if problem.file is not None:
        return problem
    key = problem.key
    while key not in places and key:
        key = key.rpartition(".")[0]
    file, line = places.get(key, (None, None))
    return replace(problem, file=file, line=line)


def _flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in document.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{key}."))
        else:
            flat[key] = list(value) if isinstance(value, tuple) else value
    return flat


def _covers(name: str, key: str) -> bool:
    return key == name or key.startswith(f"{name}.")


def _safe_name(stem: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:100]
    return name if re.fullmatch(NAME_PATTERN, name) else "run"
