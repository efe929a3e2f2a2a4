"""Flower's programs as serve starts and asks them."""

import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from trainer.federated import flower
from trainer.federated.identity import init


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Flower's own environment, empty but for the program that it is known by."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/flower-superlink").touch()
    monkeypatch.setenv(flower.VENV_VARIABLE, str(tmp_path))
    return tmp_path


# proves FED-1 (a coordinator may be reached by name, IPv4 or IPv6)
@pytest.mark.parametrize(
    ("host", "address"), [("10.0.0.1", "10.0.0.1:9443"), ("fd00::1", "[fd00::1]:9443"), ("lan.local", "lan.local:9443")]
)
def test_a_supernode_is_told_an_address_that_can_be_parsed(venv: Path, host: str, address: str) -> None:
    command = flower.supernode(venv, host, 9443, 1)
    assert command[command.index("--superlink") + 1] == address


class _Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


# proves FED-1 (a proxy in the environment is not asked about the SuperLink, which is on this machine's loopback)
def test_a_proxy_is_not_asked_about_the_superlink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = init(tmp_path / "lan", "lan", "127.0.0.1", 9443, ["node1"], "train.yaml").parent
    with HTTPServer(("127.0.0.1", 0), _Healthy) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(str(root / "coordinator/superlink.pem"), str(root / "coordinator/superlink.key"))
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        for name in ("https_proxy", "HTTPS_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.delenv("no_proxy", raising=False)
        port = server.server_address[1]
        assert flower.illness(root, port) is None
        server.shutdown()
    assert flower.illness(root, port) is not None


# proves FED-1 (serve ends when asked to, also while a command of Flower's doesn't; nothing of that is left)
def test_a_command_of_flowers_does_not_hold_up_the_end(venv: Path) -> None:
    slow = venv / "bin/flwr"
    slow.write_text(f"#!/bin/sh\nsleep 60 & echo $! > {venv}/child\nwait\n")
    slow.chmod(0o755)
    child = venv / "child"
    began = time.monotonic()
    assert flower.submit(venv, lambda: child.is_file() and bool(child.read_text())) == "asked to stop"
    assert time.monotonic() - began < 60, "it has waited for the command"
    alive = ["ps", "-o", "stat=", "-p", child.read_text().strip()]
    assert subprocess.run(alive, capture_output=True, text=True, check=False).stdout[:1] in ("", "Z")
