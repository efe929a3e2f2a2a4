"""What no request can exceed, whatever it holds: connections, bytes and seconds. Enforced where the bytes arrive.

Every connection carries one request and is closed after its answer, and none outlives ``total_seconds``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from supervisor.daemon.control.wire import error_body


@dataclass(frozen=True)
class Limits:
    """``connections`` in all and ``per_peer`` at a time; a request has ``request_seconds`` to arrive, and
    ``total_seconds`` until its answer has been read."""

    connections: int = 64
    per_peer: int = 16
    request_seconds: float = 10.0
    total_seconds: float = 90.0
    head_bytes: int = 16 << 10
    body_bytes: int = 64 << 10


class RefusedError(Exception):
    """This connection is not served: ``status`` and a sentence for whoever made it."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


@dataclass(frozen=True)
class Caller:
    """At the other end of a connection. ``name``: connections are counted by it; ``state``: what the app is told."""

    name: str
    state: dict[str, Any]


Admit = Callable[[asyncio.BaseTransport], Caller]
"""Who made this connection. Raises RefusedError."""


def guarded(admit: Admit, limits: Limits) -> type[H11Protocol]:
    """A protocol for one listening socket of uvicorn."""
    open_now: Counter[str] = Counter()

    class Guarded(H11Protocol):
        def __init__(
            self,
            config: Config,
            server_state: ServerState,
            app_state: dict[str, Any],
            _loop: asyncio.AbstractEventLoop | None = None,
        ) -> None:
            super().__init__(config, server_state, app_state, _loop)
            self._caller: Caller | None = None
            self._timers: list[asyncio.TimerHandle] = []

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            try:
                caller = admit(transport)
                if open_now.total() >= limits.connections or open_now[caller.name] >= limits.per_peer:
                    raise RefusedError(503, "Too many requests at a time. Try again in a moment.")
            except RefusedError as error:
                transport.write(_raw_answer(error))
                transport.close()
                return
            self._caller = caller
            open_now[caller.name] += 1
            self.app_state = {**self.app_state, **caller.state}
            self._timers = [
                self.loop.call_later(limits.request_seconds, self._end_unless_arrived),
                self.loop.call_later(limits.total_seconds, transport.abort),
            ]
            super().connection_made(transport)

        def data_received(self, data: bytes) -> None:
            if self._caller is not None:
                super().data_received(data)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._caller is None:
                return
            for timer in self._timers:
                timer.cancel()
            open_now[self._caller.name] -= 1
            if not open_now[self._caller.name]:
                del open_now[self._caller.name]
            super().connection_lost(exc)

        def _end_unless_arrived(self) -> None:
            if self.cycle is None or self.cycle.more_body:
                self.transport.abort()

    return Guarded


class BoundedBody:
    """Reads the whole body before ``app`` sees any of it; answers 413 when it is too large."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self.limit:
                await send_error(send, 413, f"The request is larger than {self.limit} bytes.")
                return
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        await self.app(scope, replay, send)


async def send_error(
    send: Send, status: int, sentence: str, extra: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    body = error_body(sentence)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _raw_answer(error: RefusedError) -> bytes:
    body = error_body(error.sentence)
    reason = {401: "Unauthorized", 403: "Forbidden", 503: "Service Unavailable"}[error.status]
    head = (
        f"HTTP/1.1 {error.status} {reason}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
