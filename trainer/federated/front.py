"""The TLS front: the one port that nodes reach. It lets the fleet API through to the SuperLink, and nothing else.

Flower serves its control API on the same port as its fleet API, open to whoever reaches it. So the SuperLink listens on
loopback, and from outside only POSTs to exactly the paths below get there. A path is compared as it was sent: nothing
is decoded or shortened, so no spelling of another path can pass for one of them. Standard library only.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FLEET = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "register-node", "activate-node", "deactivate-node", "unregister-node", "send-node-heartbeat", "pull-messages",
        "push-messages", "get-run", "get-fab", "push-object", "pull-object", "confirm-message-received",
    )
)  # fmt: skip
LARGEST = 256 << 20
"""Bytes of a body, either way."""
PATIENCE_SECONDS = 60.0
HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
     "upgrade", "host", "content-length", "expect")
)  # fmt: skip


def may_pass(method: str, target: str) -> bool:
    """Whether a request is one of the fleet API's. ``target``: as it stands in the request line."""
    return method == "POST" and target in FLEET


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
        self._outer = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._outer.minimum_version = ssl.TLSVersion.TLSv1_2
        self._outer.load_cert_chain(str(certificate), str(key))
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, object]:
        """The handshake happens in the connection's own thread: a silent peer holds up nobody else."""
        plain, peer = super().get_request()
        plain.settimeout(PATIENCE_SECONDS)
        return self._outer.wrap_socket(plain, server_side=True, do_handshake_on_connect=False), peer

    def handle_error(self, request: object, client_address: object) -> None:
        """Peers that speak no TLS, or go away in the middle, are no fault of ours."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE_SECONDS
    server: Front

    def _serve(self) -> None:
        if not may_pass(self.command, self.path):
            self._refuse(403, "only the fleet API is served here")
            return
        length = self.headers.get("content-length", "")
        if self.headers.get("transfer-encoding") is not None or not length.isdecimal() or not length.isascii():
            self._refuse(411, "a body's length must be said")
            return
        if int(length) > LARGEST:
            self._refuse(413, f"a body has {LARGEST} bytes at most")
            return
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            self.close_connection = True
            return
        self._forward(body)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = do_CONNECT = do_TRACE = _serve

    def _forward(self, body: bytes) -> None:
        host, port = self.server.behind
        connection = http.client.HTTPSConnection(host, port, timeout=PATIENCE_SECONDS, context=self.server.inner)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        try:
            connection.request("POST", self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read(LARGEST + 1)
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

    def _send(self, content: bytes) -> None:
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass
