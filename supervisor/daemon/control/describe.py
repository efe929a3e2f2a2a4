"""How routes are described in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from supervisor.daemon.control.wire import REFERENCE

_MEANS = {
    400: "The body is no JSON",
    403: "You may not",
    404: "There is no such thing",
    409: "It is not possible as things stand",
    413: "The request is too large",
    422: "The request is not as it should be",
    500: "A defect of the daemon",
    503: "Not now",
}


def answers(schema: str | list[str] | None, *errors: int, code: int = 200) -> dict[str, Any]:
    """For a route that answers JSON: ``schema`` names its value, [name] many of it, None any object.

    Every route may answer 500 and 503 besides ``errors``.
    """
    shape: dict[str, Any] = {"type": "object"}
    if isinstance(schema, list):
        shape = {"type": "array", "items": _reference(schema[0])}
    elif schema is not None:
        shape = _reference(schema)
    return _route(code, {} if code == 204 else {"application/json": {"schema": shape}}, errors)


def answers_text(media_type: str, *errors: int) -> dict[str, Any]:
    """For a route that answers text of ``media_type``."""
    return _route(200, {media_type: {"schema": {"type": "string"}}}, errors)


def _route(code: int, content: dict[str, Any], errors: tuple[int, ...]) -> dict[str, Any]:
    error = {"application/json": {"schema": _reference("ErrorAnswer")}}
    responses: dict[int, dict[str, Any]] = {
        each: {"description": _MEANS[each], "content": error} for each in dict.fromkeys((*errors, 500, 503))
    }
    responses[code] = {"description": "Done", **({"content": content} if content else {})}
    return {"responses": responses, "response_class": Response}


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": REFERENCE.format(name=name)}
