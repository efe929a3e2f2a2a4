"""Keys and certificates, and the front that lets only the fleet API through."""

import http.client
import socket
import sqlite3
import ssl
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from trainer.federated.bytes_moved import DATABASE, counted_bytes
from trainer.federated.front import FLEET, Front, may_pass
from trainer.federated.identity import Node, init, read_delta_key, read_delta_public


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fed") / "lan"
    return init(root, "lan", "127.0.0.1", 9443, ["node1", "node2"], "train.yaml").parent


# proves FED-1 (each node has keys of its own, nobody else can read them, the coordinator knows only the public ones)
def test_init_makes_a_folder_for_each_node(folder: Path) -> None:
    private = sorted(path for path in folder.rglob("*.key"))
    assert len(private) == 3 + 2 * 2
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in private)
    assert stat.S_IMODE((folder / "node1").stat().st_mode) == 0o700
    assert not list((folder / "coordinator" / "node1").glob("*.key"))
    for node in ("node1", "node2"):
        key = read_delta_key(folder / node)
        read_delta_public(folder / "coordinator", node).verify(key.sign(b"x"), b"x")
    assert msgspec.json.decode((folder / "node2/node.json").read_bytes(), type=Node) == Node(
        "lan", "node2", "127.0.0.1", 9443
    )


# proves FED-1 (MB per round are Flower's own count; what cannot be read is unknown, not zero)
def test_bytes_are_read_from_flowers_own_counter(tmp_path: Path) -> None:
    database = tmp_path / DATABASE
    assert counted_bytes(database) is None
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE run (bytes_sent INTEGER, bytes_recv INTEGER)")
        assert counted_bytes(database) is None
        connection.execute("INSERT INTO run VALUES (300, 20), (1, 4)")
        connection.commit()
        assert counted_bytes(database) == 325
    assert not list(tmp_path.glob("*-journal"))


def test_keys_that_exist_are_not_made_anew(folder: Path) -> None:
    before = (folder / "node1/delta.key").read_bytes()
    with pytest.raises(FileExistsError):
        init(folder, "lan", "127.0.0.1", 9443, ["node1"], "train.yaml")
    assert (folder / "node1/delta.key").read_bytes() == before


# proves FED-1 (only the fleet API passes, however another path is spelt)
@pytest.mark.parametrize(
    "target",
    [
        "/v1/control/start-run", "/v1/fleet", "/v1/fleet/", "/v1/fleet/../control/start-run", "/v1/fleet/get-run/",
        "/v1/fleet/%2e%2e/control/start-run", "//v1/fleet/get-run", "/v1/fleet/get-run?x=1", "/v1/FLEET/get-run",
        "https://127.0.0.1/v1/fleet/get-run", "/docs", "/health", "/v1/runtime/get-nodes", "*",
    ],
)  # fmt: skip
def test_nothing_but_the_fleet_api_may_pass(target: str) -> None:
    assert not may_pass("POST", target)


def test_the_fleet_api_may_pass_by_post_only() -> None:
    assert all(may_pass("POST", path) for path in FLEET)
    assert not any(may_pass(method, path) for path in FLEET for method in ("GET", "PUT", "DELETE", "post"))


class _SuperLink(BaseHTTPRequestHandler):
    seen: list[tuple[str, bytes, str | None]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.path, body, self.headers.get("x-key")))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def front(folder: Path) -> Iterator[Front]:
    _SuperLink.seen.clear()
    keys = folder / "coordinator"
    behind = ThreadingHTTPServer(("127.0.0.1", 0), _SuperLink)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(keys / "superlink.pem"), str(keys / "superlink.key"))
    behind.socket = context.wrap_socket(behind.socket, server_side=True)
    served = Front(
        ("127.0.0.1", 0), keys / "front.pem", keys / "front.key", behind.server_address[:2], keys / "authority.pem"
    )  # type: ignore[arg-type]
    for server in (behind, served):
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield served
    for server in (served, behind):
        server.shutdown()
        server.server_close()


def _connect(front: Front, folder: Path) -> http.client.HTTPSConnection:
    """Checks as strictly as Python does by default from 3.13 on."""
    context = ssl.create_default_context(cafile=str(folder / "node1/authority.pem"))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return http.client.HTTPSConnection("127.0.0.1", front.server_address[1], context=context, timeout=60)


# proves FED-1 (encrypted, with a certificate that the node's folder knows, by every check of RFC 5280 that OpenSSL has;
# the control API is refused from outside)
def test_the_front_passes_the_fleet_api_and_refuses_the_rest(front: Front, folder: Path) -> None:
    connection = _connect(front, folder)
    connection.request("POST", "/v1/fleet/pull-messages", b"question", {"x-key": "signed"})
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (200, b"ok")
    assert _SuperLink.seen == [("/v1/fleet/pull-messages", b"question", "signed")]
    for path in ("/v1/control/start-run", "/v1/fleet/../control/start-run"):
        connection = _connect(front, folder)
        connection.request("POST", path, b"x")
        assert connection.getresponse().status == 403
    assert len(_SuperLink.seen) == 1


# proves FED-1 (plain HTTP, strange certificates and smuggled requests get nowhere)
def test_plain_http_and_smuggled_requests_get_nowhere(front: Front, folder: Path) -> None:
    with socket.create_connection(front.server_address[:2], timeout=60) as plain:
        plain.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert b"200" not in plain.recv(1000)
    with pytest.raises(ssl.SSLError):
        http.client.HTTPSConnection("127.0.0.1", front.server_address[1], timeout=60).connect()
    connection = _connect(front, folder)
    connection.connect()
    assert connection.sock is not None
    connection.sock.sendall(
        b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\nPOST /v1/control/start-run HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    )
    got = b""
    while piece := connection.sock.recv(4096):
        got += piece
    assert got.startswith(b"HTTP/1.1 411") and got.count(b"HTTP/1.1") == 1
    assert _SuperLink.seen == []
