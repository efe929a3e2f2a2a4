"""A control server over a service in memory, and raw HTTP to it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toy_service import ToyService

from supervisor.daemon.control.guard import Limits
from supervisor.daemon.control.server import ControlServer, ControlSettings


@dataclass
class Bench:
    service: ToyService
    server: ControlServer
    socket: Path

    def connect(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(30)
        made.connect(str(self.socket))
        return made

    def send(self, data: bytes) -> bytes:
        """Everything that comes back until the server closes; what it does not take any more is not sent."""
        with self.connect() as made:
            with suppress(BrokenPipeError, ConnectionResetError):
                made.sendall(data)
            return read_all(made)

    def ask(self, method: str, target: str, body: object = None) -> tuple[int, Any]:
        """Status and decoded answer (None when there is none)."""
        head, answer = self.ask_raw(method, target, None if body is None else json.dumps(body).encode())
        return int(head.split()[1]), json.loads(answer) if answer else None

    def ask_raw(self, method: str, target: str, body: bytes | None = None) -> tuple[str, bytes]:
        """Head and body of the answer."""
        lines = [f"{method} {target} HTTP/1.1", "Host: localhost"]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        got = self.send("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        head, _, answer = got.partition(b"\r\n\r\n")
        return head.decode(), answer

    def works(self) -> bool:
        """Is a question answered, within half a minute?"""
        deadline = time.monotonic() + 30
        while self.server.alive and time.monotonic() < deadline:
            if self.send(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 200"):
                return True
        return False

    def wait_until_alone(self) -> None:
        """Until no connection is served any more."""
        deadline = time.monotonic() + 30
        while self.server.connections:
            assert time.monotonic() < deadline, "a connection stays"
            time.sleep(0.02)


def read_all(connection: socket.socket) -> bytes:
    """Until the other end closes, in whatever way."""
    got = b""
    try:
        while piece := connection.recv(65536):
            got += piece
    except ConnectionResetError:
        pass
    return got


@contextmanager
def control_bench(folder: Path, limits: Limits | None = None, **settings: Any) -> Iterator[Bench]:
    folder.mkdir(exist_ok=True)
    runs = folder / "runs"
    runs.mkdir(exist_ok=True)
    service = ToyService(runs)
    path = folder / "control.sock"
    server = ControlServer(service, ControlSettings(path, limits=limits or Limits(), **settings), "0")
    server.start()
    try:
        yield Bench(service, server, path)
    finally:
        server.stop()
