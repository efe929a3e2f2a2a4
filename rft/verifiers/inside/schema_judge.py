"""Validates JSON values against JSON Schemas; loaded by judge_server.py. Needs the library jsonschema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jsonschema import validators
from referencing import Registry

MAX_ERRORS = 5


def make(_argument: None) -> Callable[[dict[str, Any]], list[list[list[str]]]]:
    return validate


def validate(request: dict[str, Any]) -> list[list[list[str]]]:
    """The first errors of ``request["values"]``, pairs of a value and its schema: ``[[place, message], ...]`` each.

    Nothing is fetched: a reference outside the schema is not found.
    """
    found = []
    for value, schema in request["values"]:
        kind: Any = validators.validator_for(schema, default=validators.Draft202012Validator)
        validator = kind(schema, registry=Registry(), format_checker=kind.FORMAT_CHECKER)
        errors: list[list[str]] = []
        for error in validator.iter_errors(value):
            place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
            errors.append([place.lstrip("."), error.message[:300]])
            if len(errors) == MAX_ERRORS:
                break
        found.append(errors)
    return found
