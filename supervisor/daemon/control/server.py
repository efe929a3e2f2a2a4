"""The control server: listening sockets, and a thread that serves them until it is told to stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio.to_thread
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import Server

from supervisor.daemon.control.api import control_app, pages_app
from supervisor.daemon.control.guard import Admit, BoundedBody, Caller, Limits, RefusedError, guarded
from supervisor.daemon.control.listening import Listening, listen_tcp, listen_unix
from supervisor.daemon.control.peers import Circle, own_circle, peer_of
from supervisor.daemon.control.tcp import OnlyAsked, TcpAddress, read_token
from supervisor.daemon.service import DaemonService

WORKERS = 8
"""Threads that answer requests."""


@dataclass(frozen=True)
class ControlSettings:
    """``socket``: where it listens. ``group``: whose members may ask besides the daemon's user (see own_circle).

    ``http``: a TCP address for looking only, None for none. ``token_file``: who asks there has to know the token in it;
    made when it is missing. None: no token, for addresses of this machine alone.
    """

    socket: Path
    group: str | None = None
    http: TcpAddress | None = None
    token_file: Path | None = None
    limits: Limits = field(default_factory=Limits)


class ControlServer:
    """Serves ``service`` from a thread of its own, beginning with start()."""

    def __init__(self, service: DaemonService, settings: ControlSettings, version: str) -> None:
        self._service = service
        self._settings = settings
        self._version = version
        self._servers: list[Server] = []
        self._listening: list[Listening] = []
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def alive(self) -> bool:
        """Whether requests are being served; False once the thread has ended for whatever reason."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def connections(self) -> int:
        """How many are served at the moment."""
        return sum(len(server.server_state.connections) for server in self._servers)

    @property
    def http_port(self) -> int | None:
        """The TCP port in use, also when port 0 was asked for."""
        return next((each.port for each in self._listening if each.port is not None), None)

    def start(self) -> None:
        """Listen, and return when requests are answered. Raises InputError when an address can't be had."""
        settings = self._settings
        circle = own_circle(settings.group)
        self._listening = [listen_unix(settings.socket, circle)]
        self._servers = [_server(control_app(self._service, self._version), _admit_by(circle), settings.limits)]
        try:
            if settings.http is not None:
                token = None if settings.token_file is None else read_token(settings.token_file)
                self._listening.append(listen_tcp(settings.http))
                app = OnlyAsked(pages_app(self._service, self._version), settings.http, token)
                self._servers.append(_server(app, _admit_all, settings.limits))
            self._serve_in_thread()
        except BaseException:
            self._close()
            raise

    def stop(self) -> None:
        """Answer what has been asked, for a few seconds at most, and end."""
        for server in self._servers:
            server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._close()

    def _close(self) -> None:
        for each in self._listening:
            each.close()

    def _serve_in_thread(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()
        while not all(server.started for server in self._servers):
            if not self._thread.is_alive():
                raise RuntimeError("the control server did not start") from self._failure
            self._thread.join(0.01)

    def _serve(self) -> None:
        try:
            asyncio.run(_serve_all(self._servers, self._listening))
        except BaseException as error:
            self._failure = error
            raise


async def _serve_all(servers: Sequence[Server], listening: Sequence[Listening]) -> None:
    anyio.to_thread.current_default_thread_limiter().total_tokens = WORKERS
    pairs = zip(servers, listening, strict=True)
    await asyncio.gather(*(server.serve([each.socket]) for server, each in pairs))


def _server(app: ASGIApp, admit: Admit, limits: Limits) -> Server:
    config = Config(
        BoundedBody(app, limits.body_bytes),
        http=guarded(admit, limits),
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        headers=[("connection", "close"), ("cache-control", "no-store"), ("x-content-type-options", "nosniff")],
        h11_max_incomplete_event_size=limits.head_bytes,
        timeout_graceful_shutdown=3,
        proxy_headers=False,
    )
    return Server(config)


def _admit_by(circle: Circle) -> Admit:
    def admit(transport: asyncio.BaseTransport) -> Caller:
        peer = peer_of(transport.get_extra_info("socket"))
        if not circle.admits(peer):
            raise RefusedError(403, "You may not ask this daemon.")
        return Caller(str(peer.uid), {"peer": peer})

    return admit


def _admit_all(transport: asyncio.BaseTransport) -> Caller:
    name = transport.get_extra_info("peername")
    return Caller(str(name[0]) if name else "", {})
