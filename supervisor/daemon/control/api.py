"""The HTTP interface: what is asked, checked, handed to the daemon and answered. Its OpenAPI document is /openapi.json.

``control_app`` is for the socket, ``pages_app``, which can change nothing, for a TCP port.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, HTTPException, Query, Request, Response
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException as StarletteHTTPException

from supervisor.daemon.control.describe import answers
from supervisor.daemon.control.logs import read_piece
from supervisor.daemon.control.pages import page_routes
from supervisor.daemon.control.peers import Peer, may_read
from supervisor.daemon.control.requests import MAX_ID, ScheduleRequest, SubmitRequest
from supervisor.daemon.control.wire import encode, error_body, schemas
from supervisor.daemon.service import DaemonService, Entry, NoSuchEntryError, NotPossibleError
from supervisor.problems import InputError
from supervisor.status import read_status

EntryId = Annotated[int, InPath(ge=1, le=MAX_ID, description="of an entry of the queue")]
MAX_CONFIG_BYTES = 1 << 20

Endpoint = Callable[..., Any]


def control_app(service: DaemonService, version: str) -> FastAPI:
    """Everything. ``request.state.peer`` says who asks."""
    app = _app(version)
    app.include_router(page_routes(service))
    app.include_router(_reading(service))
    app.include_router(_logs(service))
    app.include_router(_steering(service))
    return app


def pages_app(service: DaemonService, version: str) -> FastAPI:
    """What can be looked at."""
    app = _app(version)
    app.include_router(page_routes(service))
    app.include_router(_reading(service))
    return app


def _app(version: str) -> FastAPI:
    app = FastAPI(title="mens-supervisor", version=version, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(NoSuchEntryError, _said(404))
    app.add_exception_handler(NotPossibleError, _said(409))
    app.add_exception_handler(InputError, _said(409))
    app.add_exception_handler(sqlite3.OperationalError, _unwritable)
    app.add_exception_handler(OSError, _unwritable)
    app.add_exception_handler(Exception, _defect)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=version, routes=app.routes)
            document.setdefault("components", {}).setdefault("schemas", {}).update(schemas())
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def _reading(service: DaemonService) -> APIRouter:
    routes = APIRouter()

    @routes.get("/v1/health", **answers("Health", 503))
    def health() -> Response:
        """How the daemon itself is."""
        return _json(service.health())

    @routes.get("/v1/entries", **answers(["Entry"], 422))
    def entries(
        ended: Annotated[int, Query(ge=0, le=100_000, description="how many of those that ended, the latest")] = 20,
    ) -> Response:
        """The queue: everything that has not ended, and what ended last."""
        return _json(service.entries(ended))

    @routes.get("/v1/entries/{entry_id}", **answers("Entry", 404, 422))
    def entry(entry_id: EntryId) -> Response:
        return _json(service.entry(entry_id))

    @routes.get("/v1/entries/{entry_id}/status", **answers(None, 404, 409, 422))
    def status(entry_id: EntryId) -> Response:
        """How its run stands, as `mens-sup status --json` says it; 409 while there is no run yet."""
        return _json(read_status(service.entry(entry_id).run_dir))

    @routes.get("/v1/schedules", **answers(["Schedule"]))
    def schedules() -> Response:
        return _json(service.schedules())

    return routes


def _logs(service: DaemonService) -> APIRouter:
    routes = APIRouter()

    @routes.get("/v1/entries/{entry_id}/log", **answers("LogPiece", 404, 409, 422))
    def log(
        entry_id: EntryId,
        stream: Literal["stdout", "stderr"] = "stdout",
        attempt: Annotated[int | None, Query(ge=1, le=MAX_ID, description="the newest when left out")] = None,
        offset: Annotated[int, Query(ge=-MAX_ID, le=MAX_ID, description="in bytes; below 0 from the end")] = 0,
    ) -> Response:
        """A piece of what an attempt of its run has written. Ask again from `end` on for what comes later."""
        try:
            return _json(read_piece(service.entry(entry_id).run_dir, stream, attempt, offset))
        except OSError as error:
            raise InputError(f"{error.filename}: {error.strerror}") from None

    return routes


def _steering(service: DaemonService) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/entries", status_code=201, **answers("Entry", 400, 403, 404, 409, 413, 422, code=201))
    def submit(request: Request, body: SubmitRequest) -> Response:
        """Queue a job."""
        config = Path(body.config)
        return _json(service.submit(body.submission(config, _kind(config, _peer(request)))), 201)

    def act(name: str, action: Callable[[int], Entry], what: str) -> None:
        def endpoint(entry_id: EntryId) -> Response:
            return _json(action(entry_id))

        routes.add_api_route(
            f"/v1/entries/{{entry_id}}/{name}",
            endpoint,
            methods=["POST"],
            name=name,
            description=what,
            **answers("Entry", 404, 409, 413, 422),
        )

    act("cancel", service.cancel, "Take it out of the queue; a running one saves a checkpoint and ends.")
    act("pause", service.pause, "Hold it back; a running one saves a checkpoint and ends.")
    act("resume", service.resume, "Put a paused one into the queue again.")

    @routes.post("/v1/schedules", status_code=201, **answers("Schedule", 400, 403, 404, 409, 413, 422, code=201))
    def add_schedule(request: Request, body: ScheduleRequest) -> Response:
        """Submit a configuration again and again, from now on."""
        config = Path(body.config)
        _kind(config, _peer(request))
        return _json(service.add_schedule(config, body.cron), 201)

    @routes.delete("/v1/schedules/{schedule_id}", status_code=204, **answers(None, 404, 413, 422, code=204))
    def remove_schedule(
        schedule_id: Annotated[str, InPath(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9._-]+$")],
    ) -> Response:
        service.remove_schedule(schedule_id)
        return Response(status_code=204)

    return routes


def _peer(request: Request) -> Peer:
    peer = request.state.peer
    assert isinstance(peer, Peer)
    return peer


def _kind(config: Path, peer: Peer) -> str:
    """The kind of job in a configuration that ``peer`` can read. Raises HTTPException and InputError."""
    from supervisor.yaml_source import read_yaml

    _check_readable(config, peer)
    document, _ = read_yaml(config)
    kind = document.get("kind", "sft")
    if not isinstance(kind, str):
        raise InputError(f"{config}: kind is no text. Write the name of a kind of job, such as sft.")
    return kind


def _check_readable(config: Path, peer: Peer) -> None:
    """Can both the daemon and ``peer`` read it? Raises HTTPException; InputError when it is too large, or no file.

    Who can't read it is told the same whether it exists or not.
    """
    refusal = HTTPException(403, f"{config}: there is no such file, or you may not read it.")
    try:
        real = config.resolve(strict=True)
        if not may_read(real, peer):
            raise refusal
        if not stat.S_ISREG(real.stat().st_mode) or real.stat().st_size > MAX_CONFIG_BYTES:
            raise InputError(f"{config} is no YAML file of at most {MAX_CONFIG_BYTES} bytes.")
        os.close(os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except (OSError, RuntimeError):  # RuntimeError: links in a circle
        if peer.uid in (0, os.geteuid()):
            raise refusal from None
        sentence = f"{config}: the daemon's user can't read it. Put it where it can, or give it the right to."
        raise HTTPException(403, sentence) from None


def _json(value: object, status: int = 200) -> Response:
    return Response(encode(value), status, media_type="application/json")


def _error(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    return Response(error_body(sentence), status, headers, media_type="application/json")


def _said(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(_: Request, error: Exception) -> Response:
        return _error(status, str(error))

    return answer


async def _invalid(_: Request, error: Exception) -> Response:
    """Places and reasons only: what was sent is not repeated."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[:5]
    if any(each["type"] == "json_invalid" for each in first):
        return _error(400, "The body is no JSON.")
    return _error(422, "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in first) + ".")


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    return _error(error.status_code, str(error.detail), dict(error.headers or {}))


async def _unwritable(_: Request, error: Exception) -> Response:
    """A full disk, most often: what was asked has been undone."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return _error(503, f"The daemon cannot use its state folder just now: {why}. Nothing was changed; ask again later.")


async def _defect(_: Request, error: Exception) -> Response:
    return _error(500, f"The daemon has a defect here ({type(error).__name__}); its journal says more.")
