"""The daemon's values as JSON, in both directions, and their schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from supervisor.daemon.service import Entry, Health, Schedule

T = TypeVar("T")

REFERENCE = "#/components/schemas/{name}"


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Why a request was not done: a sentence or two for people."""

    error: str


class LogPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of what an attempt's program has written. ``start``, ``end``: bytes from the beginning of the file, which
    has ``size`` now. ``attempt``: 0 before the first. ``text``: what is not UTF-8 is replaced. ``over``: no more comes,
    the run has ended."""

    attempt: int
    latest_attempt: int
    start: int
    end: int
    size: int
    text: str
    over: bool


def encode(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=_plain)


def decode(data: bytes, kind: type[T]) -> T:
    """Raises msgspec.DecodeError or msgspec.ValidationError."""
    return msgspec.json.decode(data, type=kind, dec_hook=_value)


def error_body(sentence: str) -> bytes:
    return encode(ErrorAnswer(sentence))


def schemas() -> dict[str, Any]:
    """The JSON schema of every value that is answered, by name."""
    _, components = msgspec.json.schema_components(
        [Entry, Health, Schedule, ErrorAnswer, LogPiece], schema_hook=_schema, ref_template=REFERENCE
    )
    for name, schema in components.items():
        if "description" in schema:
            schema["description"] = re.sub(r"``(.+?)``", r"`\1`", schema["description"])
        schema.setdefault("title", name)
    return components


# msgspec makes its own errors of NotImplementedError in these.


def _plain(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value))


def _value(kind: type[Any], value: object) -> object:
    if issubclass(kind, Path) and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(kind)


def _schema(kind: type[Any]) -> dict[str, Any]:
    if issubclass(kind, Path):
        return {"type": "string"}
    raise NotImplementedError(kind)
