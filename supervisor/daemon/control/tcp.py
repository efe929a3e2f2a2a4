"""The TCP port for looking: which address, which token, and which requests are meant for it."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from supervisor.daemon.control.guard import send_error
from supervisor.problems import InputError

MIN_TOKEN = 16


@dataclass(frozen=True)
class TcpAddress:
    """``host``: a numeric address."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        return ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> TcpAddress:
    """``PORT`` (of 127.0.0.1), ``ADDRESS:PORT`` or ``[ADDRESS]:PORT``. Raises InputError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    host = "127.0.0.1" if host == "localhost" else host
    try:
        ipaddress.ip_address(host)
        number = int(port)
    except ValueError:
        number = -1
    if not 0 <= number <= 65535:
        raise InputError(f"{text!r} is no address to listen at. Write PORT, ADDRESS:PORT or [ADDRESS]:PORT.")
    return TcpAddress(host, number)


def read_token(path: Path) -> str:
    """The token in ``path``, which is made with a new one when it is missing. Raises InputError."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise InputError(f"{path}: no token can be stored there ({error.strerror}).") from None
    else:
        with os.fdopen(fd, "w") as file:
            file.write(f"{secrets.token_urlsafe(32)}\n")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"{path}: the token can't be read ({error.strerror}).") from None
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise InputError(f"{path}: others could read the token. Make the file yours alone: chmod 600 {path}")
        text = file.read(4096).decode("utf-8", "replace").strip()
    if len(text) < MIN_TOKEN or not text.isascii() or not text.isprintable() or " " in text:
        raise InputError(f"{path} holds no token ({MIN_TOKEN} characters or more). Remove it to get a new one.")
    return text


class OnlyAsked:
    """Lets through what is meant for this address and, where there is a token, knows it.

    The Host header of an address of this machine has to name this machine: a page of somebody else whose name was made
    to point here (DNS rebinding) has its own name there. Elsewhere the token does that. Nothing is changed here: only
    GET and HEAD.
    """

    def __init__(self, app: ASGIApp, address: TcpAddress, token: str | None) -> None:
        if token is None and not address.loopback:
            raise InputError(f"{address} can be reached from other machines: it needs a token. Name a --token-file.")
        self.app = app
        self._hosts = {"localhost", "127.0.0.1", "[::1]", f"[{address.host}]", address.host} if token is None else None
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if self._hosts is not None and _host(headers.get("host", "")) not in self._hosts:
            await send_error(send, 421, "This is not the host that was asked for.")
        elif self._token is not None and not hmac.compare_digest(_presented(headers), self._token):
            asks = [(b"www-authenticate", b'Basic realm="mens-supervisor", charset="UTF-8"')]
            await send_error(send, 401, "Give the token, as a bearer token or as the password of any user.", asks)
        elif scope["method"] not in ("GET", "HEAD"):
            await send_error(send, 405, "Only looking is possible here.", [(b"allow", b"GET, HEAD")])
        else:
            await self.app(scope, receive, send)


def _host(header: str) -> str:
    """Without the port."""
    return header.lower() if header.endswith("]") else header.lower().rsplit(":", 1)[0]


def _presented(headers: Headers) -> bytes:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("utf-8", "replace")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""
