"""The TLS front: the one port that nodes reach. It lets the fleet API through to the SuperLink, and nothing else.

Flower serves its control API on the same port as its fleet API, open to whoever reaches it. So the SuperLink listens on
loopback, and from outside only POSTs to exactly the paths below get there. A path is compared as it was sent: nothing
is decoded or shortened, so no spelling of another path can pass for one of them.

Who has a key is found out behind it, so nobody may take up more of this process than the limits below: connections,
bytes, time. Standard library only.
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import resource
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

FLEET = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "register-node", "activate-node", "deactivate-node", "unregister-node", "send-node-heartbeat", "pull-messages",
        "push-messages", "get-run", "get-fab", "push-object", "pull-object", "confirm-message-received",
    )
)  # fmt: skip
LARGEST = 16 << 20
"""Bytes of a body, either way. Flower cuts arrays into pieces of 5 MiB, and its apps have 10 MB at most."""
LARGEST_HEAD = 64 << 10
"""Bytes of a request's line and headers."""
MOST_BYTES, MOST_BYTES_OF_ONE = 256 << 20, 64 << 20
"""Of bodies that are held at one time, of all and of one address."""
MOST_CONNECTIONS, MOST_CONNECTIONS_OF_ONE = 400, 64
"""A node has about six while it sends."""
DESCRIPTORS_LEFT = 64
"""For the rest of this process, of those that it may open."""
PATIENCE_SECONDS = 60.0
"""For a peer's next bytes."""
REQUEST_SECONDS = 180.0
"""For a request and its answer, from the one before on."""
PIECE = 64 << 10
HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
     "upgrade", "host", "content-length", "expect")
)  # fmt: skip


def may_pass(method: str, target: str) -> bool:
    """Whether a request is one of the fleet API's. ``target``: as it stands in the request line."""
    return method == "POST" and target in FLEET


class Held(NamedTuple):
    peer: str
    since: float
    """By time.monotonic: when its connection was made, or its last request was over."""


class NoRoomError(Exception):
    pass


class Room:
    """How much of something is taken, in all and by each one. For several threads."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._taken: dict[str, int] = {}
        self._lock = threading.Lock()

    def take(self, one: str, amount: int) -> bool:
        """Whether there was so much left; if not, nothing is taken."""
        with self._lock:
            of_one = self._taken.get(one, 0) + amount
            if of_one > self._most_of_one or sum(self._taken.values()) + amount > self._most:
                return False
            self._taken[one] = of_one
            return True

    def give(self, one: str, amount: int) -> None:
        with self._lock:
            self._taken[one] -= amount
            if not self._taken[one]:
                del self._taken[one]


def every_address(host: str) -> str:
    """What to listen on, to be reached under ``host``: all addresses of its kind, or of both when it is a name."""
    try:
        return "0.0.0.0" if ipaddress.ip_address(host).version == 4 else "::"
    except ValueError:
        return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def most_connections() -> int:
    """Each takes two descriptors at most."""
    return max(1, min(MOST_CONNECTIONS, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - DESCRIPTORS_LEFT) // 2))


class Front(ThreadingHTTPServer):
    """Serves ``address`` by TLS with the certificate, and speaks TLS to the SuperLink behind it.

    ``behind``: host and port; ``authority`` signed the SuperLink's certificate. Raises OSError, ssl.SSLError.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self, address: tuple[str, int], certificate: Path, key: Path, behind: tuple[str, int], authority: Path
    ) -> None:
        self.behind = behind
        self.inner = ssl.create_default_context(cafile=str(authority))
        self.bytes = Room(MOST_BYTES, MOST_BYTES_OF_ONE)
        self._connections = Room(most_connections(), MOST_CONNECTIONS_OF_ONE)
        self._held: dict[object, Held] = {}
        self._lock = threading.Lock()
        self._outer = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._outer.minimum_version = ssl.TLSVersion.TLSv1_2
        self._outer.load_cert_chain(str(certificate), str(key))
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """For IPv4 too, where it is for IPv6; no name is looked up."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        """The handshake happens in the connection's own thread: a silent peer holds up nobody else."""
        plain, peer = super().get_request()
        plain.settimeout(PATIENCE_SECONDS)
        return self._outer.wrap_socket(plain, server_side=True, do_handshake_on_connect=False), peer

    def verify_request(self, request: object, client_address: tuple[str, int]) -> bool:
        """Whether there is room for one more; one that is refused is closed at once, and Flower tries again."""
        peer = client_address[0]
        if not self._connections.take(peer, 1):
            return False
        self.begin(request, peer)
        return True

    def begin(self, request: object, peer: str) -> None:
        """The time of a connection's next request begins."""
        with self._lock:
            self._held[request] = Held(peer, time.monotonic())

    def service_actions(self) -> None:
        """Cut off those whose time is over; their own threads then end."""
        oldest = time.monotonic() - REQUEST_SECONDS
        with self._lock:
            late = [request for request, held in self._held.items() if held.since < oldest]
        for request in late:
            if isinstance(request, socket.socket):
                with suppress(OSError):  # it has ended by itself meanwhile
                    socket.socket.shutdown(request, socket.SHUT_RDWR)  # TLS's own would not leave the thread its reader

    def shutdown_request(self, request: object) -> None:
        with self._lock:
            held = self._held.pop(request, None)
        if held is not None:
            self._connections.give(held.peer, 1)
        super().shutdown_request(request)  # type: ignore[arg-type]

    def handle_error(self, request: object, client_address: object) -> None:
        """Peers that speak no TLS, or go away in the middle, are no fault of ours."""


class _Lines(io.BufferedReader):
    """Reads no more than ``left`` bytes by lines, which is how a request's head is read."""

    left = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        self.left -= len(line)
        if self.left < 0:
            raise http.client.HTTPException("too large a head")
        return line


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE_SECONDS
    rbufsize = 0
    server: Front
    rfile: _Lines

    def setup(self) -> None:
        super().setup()
        self.rfile = _Lines(self.rfile)  # as that has no buffer of its own
        self._taken = 0

    def handle_one_request(self) -> None:
        self.rfile.left = LARGEST_HEAD
        try:
            super().handle_one_request()
        finally:
            self.server.bytes.give(self.client_address[0], self._taken)
            self._taken = 0
        self.server.begin(self.request, self.client_address[0])

    def _take_in(self, read: Callable[[int], bytes], most: int) -> bytearray:
        """What is there to read, up to ``most`` bytes, which are held until the request is over. Raises NoRoomError."""
        found = bytearray()
        while len(found) < most and (piece := read(min(PIECE, most - len(found)))):
            if not self.server.bytes.take(self.client_address[0], len(piece)):
                raise NoRoomError
            self._taken += len(piece)
            found += piece
        return found

    def _serve(self) -> None:
        target = self.requestline.split()[1]  # self.path has lost what it began with, if that was more than one slash
        if not may_pass(self.command, target):
            self._refuse(403, "only the fleet API is served here")
            return
        length = self.headers.get("content-length", "")
        if self.headers.get("transfer-encoding") is not None or not length.isdecimal() or not length.isascii():
            self._refuse(411, "a body's length must be said")
            return
        if len(length) > len(str(LARGEST)) or int(length) > LARGEST:
            self._refuse(413, f"a body has {LARGEST} bytes at most")
            return
        try:
            body = self._take_in(self.rfile.read1, int(length))
            if len(body) < int(length):
                self.close_connection = True
                return
            self._forward(target, body)
        except NoRoomError:
            self._refuse(503, "too much is under way just now")

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = do_CONNECT = do_TRACE = _serve

    def _forward(self, target: str, body: bytearray) -> None:
        host, port = self.server.behind
        connection = http.client.HTTPSConnection(host, port, timeout=PATIENCE_SECONDS, context=self.server.inner)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        try:
            connection.request("POST", target, body, headers)
            answer = connection.getresponse()
            content = self._take_in(answer.read, LARGEST + 1)
            if len(content) <= LARGEST and answer.length:
                raise http.client.IncompleteRead(bytes(content), answer.length)
        except (OSError, http.client.HTTPException):
            self._refuse(503, "the coordinator does not answer just now")
            return
        finally:
            connection.close()
        if len(content) > LARGEST:
            self._refuse(502, "the coordinator's answer is too large")
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP | {"server", "date"}:
                self.send_header(name, value)
        self._send(content)

    def _refuse(self, status: int, why: str) -> None:
        self.close_connection = True  # what else lies in the connection was never read
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Connection", "close")
        self._send(why.encode() + b"\n")

    def _send(self, content: bytes | bytearray) -> None:
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass
