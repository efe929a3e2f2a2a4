"""Keys and certificates, and the front that lets only the fleet API through."""

import http.client
import socket
import sqlite3
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from trainer.federated.bytes_moved import DATABASE, counted_bytes
from trainer.federated.front import FLEET, LARGEST, LARGEST_HEAD, Front, every_address, may_pass
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


def test_the_fleet_api_may_pass_by_post_only() -> None:
    assert all(may_pass("POST", path) for path in FLEET)
    assert not any(may_pass(method, path) for path in FLEET for method in ("GET", "PUT", "DELETE", "post"))


def test_what_is_listened_on_fits_the_name_that_nodes_use() -> None:
    assert (every_address("192.168.1.10"), every_address("fd00::1")) == ("0.0.0.0", "::")
    assert every_address("coordinator.local") == ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")


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
    inner = ("127.0.0.1", int(behind.server_address[1]))
    served = Front(("127.0.0.1", 0), keys / "front.pem", keys / "front.key", inner, keys / "authority.pem")
    for server in (behind, served):
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield served
    for server in (served, behind):
        server.shutdown()
        server.server_close()


# Limits that are soon reached, for tests that name them before ``front``.


@pytest.fixture
def few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.federated.front.MOST_CONNECTIONS_OF_ONE", 2)


@pytest.fixture
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.federated.front.MOST_BYTES_OF_ONE", 100_000)


def _plain(front: Front) -> socket.socket:
    return socket.create_connection(("127.0.0.1", front.server_address[1]), timeout=60)


def _connect(front: Front, folder: Path, source: str = "127.0.0.1") -> http.client.HTTPSConnection:
    """Checks as strictly as Python does by default from 3.13 on."""
    context = ssl.create_default_context(cafile=str(folder / "node1/authority.pem"))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return http.client.HTTPSConnection(
        "127.0.0.1", front.server_address[1], context=context, timeout=60, source_address=(source, 0)
    )


def _raw(front: Front, folder: Path, request: bytes) -> bytes:
    """All that is answered to these bytes, until the front closes."""
    connection = _connect(front, folder)
    connection.connect()
    with connection.sock as sock:
        sock.sendall(request)
        return b"".join(iter(lambda: sock.recv(4096), b""))


def _ask(connection: http.client.HTTPSConnection, body: bytes) -> int:
    """The answer's status; 0 when the connection was closed without one."""
    try:
        connection.request("POST", "/v1/fleet/push-object", body)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def _ask_until(status: int, front: Front, folder: Path) -> None:
    for _ in range(1000):
        if _ask(_connect(front, folder), b"y" * 50_000) == status:
            return
    raise AssertionError(f"no answer was {status}")


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
    with _plain(front) as plain:
        plain.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert b"200" not in plain.recv(1000)
    with pytest.raises(ssl.SSLError):
        http.client.HTTPSConnection("127.0.0.1", front.server_address[1], timeout=60).connect()
    got = _raw(
        front, folder,
        b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\nPOST /v1/control/start-run HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    )  # fmt: skip
    assert got.startswith(b"HTTP/1.1 411") and got.count(b"HTTP/1.1") == 1
    assert _SuperLink.seen == []


# proves FED-1 (only the fleet API passes, however another path is spelt)
def test_nothing_but_the_fleet_api_passes_however_it_is_spelt(front: Front, folder: Path) -> None:
    for target in (
        "/v1/control/start-run", "/v1/fleet", "/v1/fleet/", "/v1/fleet/../control/start-run", "/v1/fleet/get-run/",
        "/v1/fleet/%2e%2e/control/start-run", "//v1/fleet/get-run", "/v1/fleet/get-run?x=1", "/v1/FLEET/get-run",
        "https://127.0.0.1/v1/fleet/get-run", "/docs", "/health", "/v1/runtime/get-nodes", "*", "/v1/fleet/get-run#x",
    ):  # fmt: skip
        got = _raw(front, folder, f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        assert got.startswith(b"HTTP/1.1 403"), target
    assert _SuperLink.seen == []


# proves FED-1 (who has no key cannot fill the coordinator's memory: neither by a head nor by a body)
def test_what_is_too_large_is_refused(front: Front, folder: Path) -> None:
    line = b"POST /v1/fleet/get-run HTTP/1.1\r\n"
    assert _raw(front, folder, line + b"content-length: %d\r\n\r\n" % (LARGEST + 1)).startswith(b"HTTP/1.1 413")
    assert _raw(front, folder, line + b"content-length: %s\r\n\r\n" % (b"9" * 5000)).startswith(b"HTTP/1.1 413")
    head = (b"x: " + b"y" * 10_000 + b"\r\n") * (LARGEST_HEAD // 10_000 + 1)
    assert b" 431 " in _raw(front, folder, line + head).partition(b"\r\n")[0]
    assert _SuperLink.seen == []


# proves FED-1 (one peer's unfinished bodies cost others nothing, and its memory is free again when it is gone)
def test_bodies_of_one_address_have_bounded_room(few_bytes: None, front: Front, folder: Path) -> None:
    hostile = _connect(front, folder)
    hostile.connect()
    hostile.sock.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\ncontent-length: 99000\r\n\r\n" + b"x" * 98_000)
    _ask_until(503, front, folder)
    assert _ask(_connect(front, folder, "127.0.0.2"), b"z" * 50_000) == 200
    hostile.close()
    _ask_until(200, front, folder)


# proves FED-1 (connections that say nothing: so many of one address, none for ever, and others are served meanwhile)
def test_silent_connections_are_few_and_end(
    few_connections: None, front: Front, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = [_plain(front) for _ in range(2)]
    with _plain(front) as third:
        assert third.recv(1) == b"", "it is one too many"
    assert _ask(_connect(front, folder, "127.0.0.2"), b"") == 200
    for each in silent:
        each.settimeout(0)
        with pytest.raises(BlockingIOError):
            each.recv(1)
    with monkeypatch.context() as hasty:
        hasty.setattr("trainer.federated.front.REQUEST_SECONDS", 0.0)
        for each in silent:
            with each:
                each.settimeout(30)
                assert each.recv(1) == b"", "its time is over"
    _ask_until(200, front, folder)


FEW_FILES = """
import resource, sys, threading
from pathlib import Path
from trainer.federated.front import Front

keys = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (66, 66))
front = Front(("127.0.0.1", 0), keys / "front.pem", keys / "front.key", ("127.0.0.1", 9), keys / "authority.pem")
threading.Thread(target=front.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
print(front.server_address[1], flush=True)
sys.stdin.readline()
print(len(keys.joinpath("authority.pem").read_bytes()))
"""


# proves FED-1 (silent connections leave serve the files that it opens itself)
def test_connections_leave_serve_its_files(folder: Path) -> None:
    keys = folder / "coordinator"
    with subprocess.Popen(
        [sys.executable, "-c", FEW_FILES, str(keys)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as serving:
        assert serving.stdin is not None and serving.stdout is not None
        port = int(serving.stdout.readline())
        silent = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(63)]
        assert silent[-1].recv(1) == b"", "all are accepted, and this one was too many"
        serving.stdin.write("\n")
        serving.stdin.flush()
        assert serving.stdout.read().strip() == str((keys / "authority.pem").stat().st_size)
        for each in silent:
            each.close()
