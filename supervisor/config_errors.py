"""What is wrong with a document, in words: pydantic's errors as problems with key, reason and remedy.

Pure functions of a schema, a document and an error list; no files.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from supervisor.jobs import Problem

ALIASES: dict[str, str] = {
    "lr": "learning_rate",
    "learningrate": "learning_rate",
    "batch_size": "per_device_train_batch_size",
    "micro_batch": "per_device_train_batch_size",
    "micro_batch_size": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "grad_accum": "gradient_accumulation_steps",
    "grad_accum_steps": "gradient_accumulation_steps",
    "gradient_accumulation": "gradient_accumulation_steps",
    "accumulation_steps": "gradient_accumulation_steps",
    "grad_clip": "max_grad_norm",
    "clip_grad_norm": "max_grad_norm",
    "gradient_clipping": "max_grad_norm",
    "wd": "weight_decay",
    "epochs": "num_train_epochs",
    "num_epochs": "num_train_epochs",
    "steps": "max_steps",
    "num_steps": "max_steps",
    "warmup": "warmup_ratio",
    "warmup_steps": "warmup_ratio",
    "scheduler": "lr_scheduler_type",
    "lr_scheduler": "lr_scheduler_type",
    "optimizer": "optim",
    "optimiser": "optim",
    "seq_len": "max_length",
    "seq_length": "max_length",
    "sequence_len": "max_length",
    "sequence_length": "max_length",
    "max_seq_len": "max_length",
    "max_seq_length": "max_length",
    "context_length": "max_length",
    "block_size": "max_length",
    "lora_r": "r",
    "lora_rank": "r",
    "rank": "r",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout",
    "base_model": "model.base",
    "model_name": "model.base",
    "model_name_or_path": "model.base",
    "base": "model.base",
    "dataset": "data.sources",
    "datasets": "data.sources",
    "train_file": "data.sources",
    "files": "data.sources",
    "validation_split": "data.validation",
    "val_size": "data.validation",
    "system_prompt": "data.system_prompt_file",
    "curriculum": "data.curriculum_field",
    "fp16": "model.dtype",
    "bf16": "model.dtype",
    "torch_dtype": "model.dtype",
    "load_in_4bit": "model.quantization",
    "quantisation": "quantization",
    "random_seed": "seed",
    "save_total_limit": "checkpoint.keep",
    "save_interval": "checkpoint.save_steps",
    "eval_interval": "eval_steps",
    "retries": "limits.max_attempts",
    "max_retries": "limits.max_attempts",
    "max_restarts": "limits.max_attempts",
}
"""What people type -> the key's usual name here; only offered when the schema has that key."""

_SYNONYMS: tuple[frozenset[str], ...] = (
    frozenset({"max_length", "max_seq_length", "seq_len", "sequence_length", "max_seq_len"}),
    frozenset({"r", "lora_r", "rank", "lora_rank"}),
    frozenset({"lora_alpha", "alpha"}),
    frozenset({"lora_dropout", "dropout"}),
    frozenset({"num_train_epochs", "epochs", "num_epochs"}),
    frozenset({"max_steps", "steps"}),
)

_EXPECTED: dict[str, str] = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a mapping of keys to values",
    "mapping_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "dataclass_type": "a mapping of keys to values",
    "path_type": "a path",
    "none_required": "nothing (null)",
}


def schema_keys(model: type[BaseModel]) -> list[str]:
    """Every dotted key that ``model`` knows, sections before their keys; list items are ``*``."""
    found: list[str] = []
    _collect(model, "", found, ())
    return found


def problems_of(error: ValidationError, model: type[BaseModel], document: Mapping[str, Any]) -> list[Problem]:
    """One problem per key that is wrong, in the order of the errors."""
    keys = schema_keys(model)
    wanted: dict[str, list[str]] = {}
    first: dict[str, ErrorDetails] = {}
    for detail in error.errors(include_url=False):
        key = _document_key(detail, document)
        first.setdefault(key, detail)
        expected = _expected(detail)
        if expected and expected not in wanted.setdefault(key, []):
            wanted[key].append(expected)
    return [_problem(key, detail, wanted.get(key, []), keys) for key, detail in first.items()]


def suggest(key: str, keys: Iterable[str]) -> str | None:
    """The known key that the unknown ``key`` probably means: a sibling, an alias, or one elsewhere."""
    parent, _, last = _general(key).rpartition(".")
    known = [name for name in keys if not name.endswith("*")]
    siblings = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == parent}
    typed = last.lower().replace("-", "_")
    if typed in siblings:
        return siblings[typed]
    meant = _names_for(typed)
    for name in meant:
        if name in siblings:
            return siblings[name]
    by_last: dict[str, list[str]] = {}
    for name in known:
        by_last.setdefault(name.rpartition(".")[2], []).append(name)
    for name in (*meant, typed):
        if name in known:
            return name
        if name in by_last:
            return by_last[name][0]
    if close := difflib.get_close_matches(typed, siblings, n=1, cutoff=0.6):
        return siblings[close[0]]
    if close := difflib.get_close_matches(typed, by_last, n=1, cutoff=0.75):
        return by_last[close[0]][0]
    return None


def show(value: Any) -> str:
    """A value as an error message names it, with its type where that could be unclear."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {_short(repr(value))}"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return f"the list {_short(repr(list(value)))}"
    return _short(str(value))


def _names_for(typed: str) -> list[str]:
    names = [ALIASES[typed]] if typed in ALIASES else []
    for group in _SYNONYMS:
        if typed in group or (names and names[0] in group):
            names += sorted(group - {typed, *names})
    return names


def _collect(annotation: Any, prefix: str, found: list[str], above: tuple[type, ...]) -> None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation in above:
            return
        for name, field in annotation.model_fields.items():
            key = f"{prefix}.{field.alias or name}" if prefix else (field.alias or name)
            if key not in found:
                found.append(key)
            _collect(field.annotation, key, found, (*above, annotation))
        return
    origin = getattr(annotation, "__origin__", None)
    for argument in get_args(annotation):
        inner = f"{prefix}.*" if origin in (list, tuple, dict, set, frozenset) else prefix
        _collect(argument, inner, found, above)


def _document_key(detail: ErrorDetails, document: Mapping[str, Any]) -> str:
    """The dotted key in the document that an error is about; pydantic's own markers are left out."""
    at: Any = document
    parts: list[str] = []
    location = detail["loc"]
    for index, part in enumerate(location):
        inside = part in at if isinstance(at, Mapping) else isinstance(at, list) and part in range(len(at))
        if inside:
            at = at[part]
        elif not (detail["type"] == "missing" and index == len(location) - 1):
            continue  # the name of a union's branch
        parts.append(str(part))
    return ".".join(parts)


def _problem(key: str, detail: ErrorDetails, expected: list[str], keys: list[str]) -> Problem:
    kind = detail["type"]
    if kind == "extra_forbidden":
        return _unknown(key, keys)
    if kind == "missing":
        return Problem(key, f"{key} is required and missing")
    if kind in ("value_error", "assertion_error"):
        reason = str(detail.get("ctx", {}).get("error", detail["msg"]))
        return Problem(key, f"{key}: {reason}" if key else reason)
    given = detail["input"]
    wanted = " or ".join(expected) or detail["msg"]
    shown = f"a value of type {type(given).__name__}" if key.startswith("launch.env") else show(given)
    return Problem(key, f"{key or 'the document'} must be {wanted}, not {shown}", _remedy(given, expected))


def _unknown(key: str, keys: list[str]) -> Problem:
    message = f"{key} is not a known key"
    if meant := suggest(key, keys):
        if meant.rpartition(".")[0] == _general(key).rpartition(".")[0]:
            meant = f"{key.rpartition('.')[0]}.{meant.rpartition('.')[2]}".lstrip(".")
        return Problem(key, message, f"Did you mean {meant}?")
    parent = _general(key).rpartition(".")[0]
    siblings = [name.rpartition(".")[2] for name in keys if name.rpartition(".")[0] == parent]
    place = f"under {key.rpartition('.')[0]}" if parent else "at the top"
    return Problem(key, message, f"Known keys {place}: {', '.join(siblings)}." if siblings else "Remove it.")


def _expected(detail: ErrorDetails) -> str | None:
    context = detail.get("ctx", {})
    match detail["type"]:
        case "greater_than":
            return f"more than {_plain(context['gt'])}"
        case "greater_than_equal":
            return f"at least {_plain(context['ge'])}"
        case "less_than":
            return f"less than {_plain(context['lt'])}"
        case "less_than_equal":
            return f"at most {_plain(context['le'])}"
        case "literal_error" | "enum":
            return f"{context['expected']}"
        case "too_short":
            return f"a list of at least {context['min_length']}"
        case "too_long":
            return f"a list of at most {context['max_length']}"
        case "string_too_short":
            return f"text of at least {context['min_length']} character(s)"
        case "string_too_long":
            return f"text of at most {context['max_length']} character(s)"
        case "string_pattern_mismatch":
            return f"text that matches {context['pattern']}"
        case kind:
            return _EXPECTED.get(kind)


def _plain(limit: Any) -> str:
    return str(int(limit)) if isinstance(limit, float) and limit.is_integer() else str(limit)


def _remedy(given: Any, expected: list[str]) -> str:
    if isinstance(given, str):
        if any("number" in name for name in expected) and _is_number(given):
            return "Remove the quotes."
        if "true or false" in expected and given.lower() in ("yes", "no", "on", "off", "true", "false"):
            return f"Write {'true' if given.lower() in ('yes', 'on', 'true') else 'false'}."
        if "a list" in expected:
            return f"Write [{given}]."
        if close := difflib.get_close_matches(given, _quoted(expected), n=1, cutoff=0.6):
            return f"Did you mean {close[0]}?"
    elif "text" in expected and isinstance(given, bool | int | float):
        return "Put it in quotes."
    return ""


def _quoted(expected: list[str]) -> list[str]:
    return [part for name in expected for part in name.split("'")[1::2]]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _general(key: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in key.split("."))


def _short(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
