"""The control server: what it answers, to whom, and that no request takes it down."""

from __future__ import annotations

import base64
import errno
import grp
import json
import os
import select
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from control_bench import Bench, control_bench, read_all

from supervisor.daemon.control.guard import Limits
from supervisor.daemon.control.listening import listen_unix
from supervisor.daemon.control.logs import PIECE_BYTES, read_piece
from supervisor.daemon.control.peers import Circle, Peer, may_read, own_circle
from supervisor.daemon.control.tcp import TcpAddress, parse_address, read_token
from supervisor.daemon.service import Submission
from supervisor.problems import InputError
from supervisor.protocol.paths import RunPaths
from supervisor.state import Outcome, RunState, write_state

NOBODY = 65534


def submitted(bench: Bench, folder: Path, **more: Any) -> tuple[int, Any]:
    config = folder / "job.yaml"
    config.write_text("kind: sft\n")
    return bench.ask("POST", "/v1/entries", {"config": str(config), **more})


# proves SUP-18: every question of the interface, with the codes that the document names
def test_the_queue_is_steered(tmp_path: Path) -> None:
    with control_bench(tmp_path) as bench:
        code, entry = submitted(
            bench, tmp_path, priority=3, name="mine", sets=["train.max_steps=2"], max_attempts=2, force_overfit=True
        )
        assert (code, entry["id"], entry["state"], entry["kind"]) == (201, 1, "waiting", "sft")
        assert entry["arguments"] == ["--set=train.max_steps=2", "--max-attempts=2", "--force-overfit"]
        assert submitted(bench, tmp_path, after=[1])[1]["state"] == "blocked"
        assert submitted(bench, tmp_path, after=[9]) == (404, {"error": "There is no entry 9 in the queue."})
        assert [each["id"] for each in bench.ask("GET", "/v1/entries")[1]] == [1, 2]
        assert bench.ask("POST", "/v1/entries/1/pause")[1]["state"] == "paused"
        assert bench.ask("POST", "/v1/entries/1/resume")[1]["state"] == "waiting"
        assert bench.ask("POST", "/v1/entries/1/cancel")[1]["state"] == "cancelled"
        assert bench.ask("POST", "/v1/entries/1/cancel")[0] == 409
        assert [each["id"] for each in bench.ask("GET", "/v1/entries?ended=0")[1]] == [2]
        assert bench.ask("GET", "/v1/entries/7")[0] == 404
        code, status = bench.ask("GET", "/v1/entries/2/status")
        assert code == 409 and "no such folder" in status["error"]
        config = str(tmp_path / "job.yaml")
        code, schedule = bench.ask("POST", "/v1/schedules", {"config": config, "cron": "0 2 * * *"})
        assert (code, schedule["cron"]) == (201, "0 2 * * *")
        assert bench.ask("POST", "/v1/schedules", {"config": config, "cron": "now, please"})[0] == 409
        assert len(bench.ask("GET", "/v1/schedules")[1]) == 1
        assert bench.ask("DELETE", "/v1/schedules/1") == (204, None)
        assert bench.ask("DELETE", "/v1/schedules/1")[0] == 404
        assert bench.ask("GET", "/openapi.json")[1]["openapi"].startswith("3.")
    assert not bench.socket.exists()


WRONG: list[tuple[object, str]] = [
    ({"config": "job.yaml"}, "body.config"),
    ({"config": "/a\0b"}, "body.config"),
    ({"config": "/a", "priority": "5"}, "body.priority"),
    ({"config": "/a", "priority": 10**400}, "body"),
    ({"config": "/a", "surprise": 1}, "body.surprise"),
    ({"config": "/a", "after": [0]}, "body.after.0"),
    ({"config": "/a", "name": "../x"}, "body.name"),
    ({"config": "/a", "sets": ["a\nb"]}, "body.sets.0"),
    ([1], "body"),
    (None, "body"),
]


# proves SUP-18: what is asked is strict, and no answer repeats what was sent
def test_what_is_not_as_it_should_be(tmp_path: Path) -> None:
    with control_bench(tmp_path) as bench:
        for body, said in WRONG:
            code, answer = bench.ask("POST", "/v1/entries", body)
            assert code in (400, 422) and said in answer["error"], (body, answer)
        assert not bench.service.queue


# proves SUP-18: configurations are read for those alone who could read them themselves
def test_a_configuration_has_to_be_readable(tmp_path: Path) -> None:
    with control_bench(tmp_path) as bench:
        for path in (tmp_path / "none.yaml", tmp_path, Path("/dev/zero")):
            code, answer = bench.ask("POST", "/v1/entries", {"config": str(path)})
            assert code in (403, 409) and str(path) in answer["error"]
        (tmp_path / "bad.yaml").write_text("kind: [\n")
        code, answer = bench.ask("POST", "/v1/entries", {"config": str(tmp_path / "bad.yaml")})
        assert code == 409 and "bad.yaml:2" in answer["error"]
        (tmp_path / "huge.yaml").write_bytes(b"#" * (2 << 20))
        assert bench.ask("POST", "/v1/entries", {"config": str(tmp_path / "huge.yaml")})[0] == 409


def test_who_may_read_a_file(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "job.yaml"
    file.parent.mkdir()
    file.write_text("kind: sft\n")
    open_above = all(stat.S_IMODE(each.stat().st_mode) & 0o1 for each in tmp_path.parents)
    tmp_path.chmod(0o755)
    stranger = Peer(1, 54321, 54321)
    member = Peer(1, 54321, 54321, frozenset({file.stat().st_gid}))
    file.chmod(0o640)
    file.parent.chmod(0o755)
    assert not may_read(file, stranger)
    assert may_read(file, member) == open_above
    assert may_read(file, Peer(1, 0, 0)) and may_read(file, Peer(1, os.geteuid(), 1)) | (not open_above)
    file.chmod(0o604)
    assert may_read(file, stranger) == open_above
    assert not may_read(file, member)  # the group's own bits count for its members, as the kernel has it
    file.parent.chmod(0o750)
    assert not may_read(file, stranger)


# proves SUP-18: root, the owner and one group; a group that may hold everybody is let in only when it is named
def test_who_may_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    circle = Circle(owner=1000, group=50)
    assert all(map(circle.admits, (Peer(1, 0, 0), Peer(1, 1000, 7), Peer(1, 7, 50), Peer(1, 7, 7, frozenset({50})))))
    assert not circle.admits(Peer(1, 1001, 1001, frozenset({51})))
    assert not Circle(owner=1000, group=None).admits(Peer(1, 7, 50))
    named = grp.getgrall()[-1]
    assert own_circle(named.gr_name) == Circle(os.geteuid(), named.gr_gid)
    other = next(each for each in grp.getgrall() if each.gr_gid not in (0, os.geteuid()))
    monkeypatch.setattr(os, "getegid", lambda: other.gr_gid)
    assert own_circle().group is None
    with pytest.raises(InputError, match="no group such-as-this"):
        own_circle("such-as-this")


_ASK = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
try:
    connection.connect(sys.argv[1])
except PermissionError:
    print("no entry")
else:
    try:
        connection.sendall(b"POST /v1/entries/1/cancel HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    except BrokenPipeError:
        pass
    print(connection.recv(100).split(b"\\r\\n")[0].decode())
"""


def as_user(uid: int, gid: int, groups: str, path: Path) -> str:
    ids = [f"--reuid={uid}", f"--regid={gid}", f"--groups={groups}" if groups else "--clear-groups"]
    command = ["setpriv", *ids, os.path.realpath(sys.executable), "-I", "-c", _ASK, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout.strip()


# proves SUP-18: another user of the machine, a real one, can neither read nor steer, even where the file lets them in
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: NOT SHOWN HERE that others are kept out")
def test_another_user_is_kept_out(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("control")
    for each in (folder, *folder.parents):
        if each == Path(tempfile.gettempdir()):
            break
        each.chmod(0o755)
    group = next(each for each in grp.getgrall() if each.gr_gid not in (0, NOBODY))
    with control_bench(folder, group=group.gr_name) as bench:
        assert submitted(bench, folder)[0] == 201
        assert stat.S_IMODE(bench.socket.stat().st_mode) == 0o660
        assert as_user(NOBODY, NOBODY, "", bench.socket) == "no entry"
        bench.socket.chmod(0o666)
        assert as_user(NOBODY, NOBODY, "", bench.socket) == "HTTP/1.1 403 Forbidden"
        assert bench.service.queue[1].state == "waiting"
        assert as_user(NOBODY, NOBODY, str(group.gr_gid), bench.socket) == "HTTP/1.1 200 OK"
        assert bench.service.queue[1].state == "cancelled"
        private = folder / "private.yaml"
        private.write_text("kind: sft\n")
        private.chmod(0o600)
    with control_bench(folder) as bench:  # root's own group holds root alone
        assert as_user(NOBODY, NOBODY, str(group.gr_gid), bench.socket) == "no entry"


_POST = b"POST /v1/entries HTTP/1.1\r\nHost: x\r\n"
_JSON = b"Content-Type: application/json\r\n"

MALFORMED = [
    b"",
    b"\r\n\r\n",
    b"\0" * 100,
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /v1/health HTTP/1.1\r\n\r\n",
    b"GET http://[::1/ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /%ff%00%2e%2e/ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/entries?ended=%00 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/entries/" + b"9" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/health HTTP/1.1\r\nHost: x\r\nX: \xff\xfe\r\n\r\n",
    b"GET /v1/health HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    _POST + b"Content-Length: -1\r\n\r\n",
    _POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
    _POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    _POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    _POST + b"Transfer-Encoding: gzip\r\n\r\n",
    _POST + _JSON + b"Content-Length: 9\r\n\r\n\xff\xfe\xfd\0\0\0\0\0\0",
    _POST + _JSON + b"Content-Length: 60000\r\n\r\n" + b"[" * 60000,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
]  # fmt: skip


# proves SUP-18: malformed requests never take the daemon down
def test_malformed_requests(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with control_bench(tmp_path, Limits(request_seconds=0.5)) as bench:
        for data in MALFORMED:
            with bench.connect() as made:
                made.sendall(data)
                made.shutdown(socket.SHUT_WR)
                answer = read_all(made)
            assert answer == b"" or 200 <= int(answer.split()[1]) < 500, (data[:80], answer[:300])
            assert bench.works()
        assert not bench.service.queue
    said = capfd.readouterr()
    assert "Traceback" not in said.out + said.err, said.err


# proves SUP-18: huge requests are cut off while they come
def test_huge_requests(tmp_path: Path) -> None:
    with control_bench(tmp_path, Limits()) as bench:
        endless_head = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: 0123456789\r\n" * 100_000
        assert bench.send(endless_head)[:12] in (b"HTTP/1.1 400", b"")
        body = _POST + b"Content-Length: 100000000\r\n\r\n" + b" " * 2_000_000
        assert bench.send(body)[:12] in (b"HTTP/1.1 413", b"")
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        chunked = _POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 40
        assert bench.send(chunked)[:12] in (b"HTTP/1.1 413", b"")
        assert bench.send(_POST + b"Content-Length: 70000\r\n\r\n" + b" " * 70000)[:12] == b"HTTP/1.1 413"
        assert bench.works()


# proves SUP-18: slow ones too, in asking or in reading the answer
def test_slow_requests(tmp_path: Path) -> None:
    with control_bench(tmp_path, Limits(request_seconds=0.3)) as bench:
        silent, dripping = bench.connect(), bench.connect()
        dripping.sendall(_POST + b"Content-Length: 10\r\n\r\n1")
        assert read_all(silent) == read_all(dripping) == b""
        assert bench.works()
    with control_bench(tmp_path, Limits(total_seconds=0.6)) as bench:
        for number in range(2000):
            bench.service.submit(Submission(config=Path("/a" * 1000), kind="sft", name=f"n{number}"))
        reader = bench.connect()
        reader.sendall(b"GET /v1/entries HTTP/1.1\r\nHost: x\r\n\r\n")
        select.select([reader], [], [], 30)
        bench.wait_until_alone()  # the answer that nobody reads is given up
        whole = read_all(reader)
        assert whole.startswith(b"HTTP/1.1 200") and len(whole) < 4_000_000
        assert bench.works()


# proves SUP-18: no user can keep the others out by connections alone
def test_many_connections(tmp_path: Path) -> None:
    with control_bench(tmp_path, Limits(connections=6, per_peer=4)) as bench:
        held = [bench.connect() for _ in range(4)]
        assert bench.send(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 503")
        for each in held:
            each.close()
        bench.wait_until_alone()
        assert bench.works()


# proves SUP-18: one daemon for a socket; what a dead one left is taken away, what is no socket is not
def test_a_socket_that_is_there(tmp_path: Path) -> None:
    alone = Circle(os.geteuid(), None)
    with control_bench(tmp_path) as bench:
        with pytest.raises(InputError, match="Another daemon answers"):
            listen_unix(bench.socket, alone)
        assert bench.works()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(bench.socket))
    dead.close()
    made = listen_unix(bench.socket, alone)
    assert stat.S_IMODE(bench.socket.stat().st_mode) == 0o600
    bench.socket.unlink()
    bench.socket.write_text("mine")
    made.close()
    assert bench.socket.read_text() == "mine"
    with pytest.raises(InputError, match="no socket"):
        listen_unix(bench.socket, alone)
    with pytest.raises(InputError, match="too long"):
        listen_unix(tmp_path / ("x" * 120), alone)


def http(port: int, target: str, *headers: str, method: str = "GET") -> tuple[int, bytes]:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as made:
        made.sendall("\r\n".join([f"{method} {target} HTTP/1.1", *headers, "", ""]).encode())
        got = read_all(made)
    return int(got.split()[1]), got.partition(b"\r\n\r\n")[2]


# proves SUP-19: a TCP port is for looking only, and a page of somebody else can't look through it (DNS rebinding)
def test_the_port_for_looking(tmp_path: Path) -> None:
    with control_bench(tmp_path, http=TcpAddress("127.0.0.1", 0)) as bench:
        assert submitted(bench, tmp_path)[0] == 201
        port = bench.server.http_port
        assert port is not None
        here = f"Host: localhost:{port}"
        assert http(port, "/v1/entries", here)[0] == 200
        code, page = http(port, "/", here)
        assert code == 200 and b"<html" in page
        code, metrics = http(port, "/metrics", here)
        assert code == 200 and b'mens_sup_queue_entries{state="waiting"} 1' in metrics
        for method, target in (("POST", "/v1/entries/1/cancel"), ("DELETE", "/v1/schedules/1"), ("PUT", "/")):
            assert http(port, target, here, method=method)[0] == 405
        assert bench.service.queue[1].state == "waiting"
        assert http(port, "/v1/entries/1/log", here)[0] == 404
        for host in ("Host: evil.example", f"Host: evil.example:{port}", "Host: localhost.evil.example", "Host:"):
            assert http(port, "/v1/entries", host)[0] in (400, 421)


# proves SUP-19: beyond this machine nobody looks without the token, which is kept in a file of one's own
def test_the_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with control_bench(tmp_path, http=TcpAddress("127.0.0.1", 0), token_file=file) as bench:
        token = file.read_text().strip()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and len(token) >= 32
        port = bench.server.http_port
        assert port is not None
        basic = base64.b64encode(f"me:{token}".encode()).decode()
        for given in (f"Authorization: Bearer {token}", f"Authorization: Basic {basic}"):
            assert http(port, "/v1/health", "Host: box.example", given)[0] == 200
        for given in ("X: y", "Authorization: Bearer wrong", "Authorization: Basic %%%", "Authorization: Bearer"):
            assert http(port, "/v1/health", "Host: localhost", given)[0] == 401
    file.chmod(0o640)
    with pytest.raises(InputError, match="others could read the token"):
        read_token(file)
    with (
        pytest.raises(InputError, match="needs a token"),
        control_bench(tmp_path, http=TcpAddress("0.0.0.0", 0)),
    ):
        pass
    assert not (tmp_path / "control.sock").exists()


def test_addresses() -> None:
    assert parse_address("9100") == TcpAddress("127.0.0.1", 9100)
    assert parse_address("localhost:9100") == TcpAddress("127.0.0.1", 9100)
    assert parse_address("[::1]:80") == TcpAddress("::1", 80)
    assert parse_address("0.0.0.0:1").loopback is False
    for bad in ("", "x", "host.example:80", "127.0.0.1:99999", "127.0.0.1:"):
        with pytest.raises(InputError, match="no address"):
            parse_address(bad)


# proves SUP-19: what a program writes is read piece by piece, no character torn, no link or pipe followed
def test_logs_come_in_pieces(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    paths.attempt(1).root.mkdir(parents=True)
    write_state(paths.state, RunState(id="r", kind="sft", max_attempts=3, attempt=1))
    text = "ä€😀" * (PIECE_BYTES // 8)
    paths.attempt(1).stdout.write_text(text)
    got, offset = "", 0
    while (piece := read_piece(paths.root, "stdout", None, offset)).text:
        got, offset = got + piece.text, piece.end
    assert got == text and piece.size == len(text.encode()) and not piece.over
    assert read_piece(paths.root, "stdout", 1, -4).text == "😀"
    paths.attempt(1).stdout.write_bytes(b"a\xe2\x82")
    assert read_piece(paths.root, "stdout").text == "a"  # the rest of the character may still come
    write_state(paths.state, RunState(id="r", kind="sft", max_attempts=3, attempt=1, outcome=Outcome.STOPPED))
    assert read_piece(paths.root, "stdout").text == "a\ufffd"
    assert read_piece(paths.root, "stderr").text == ""
    os.mkfifo(paths.attempt(1).stderr)
    with pytest.raises(InputError, match="no ordinary file"):
        read_piece(paths.root, "stderr")
    with pytest.raises(InputError, match="no attempt 2"):
        read_piece(paths.root, "stdout", 2)
    paths.attempt(1).stdout.unlink()
    paths.attempt(1).stdout.symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic"):
        read_piece(paths.root, "stdout")


# proves SUP-18: a full disk is no defect: what was asked is undone, and may be asked again
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/state/jobs/1"), "No space left on device"),
        (sqlite3.OperationalError("database or disk is full"), "database or disk is full"),
    ],
)
def test_a_full_disk_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    def full(ended: int) -> None:
        raise error

    with control_bench(tmp_path) as bench:
        monkeypatch.setattr(bench.service, "entries", full)
        code, answer = bench.ask("GET", "/v1/entries")
        assert code == 503 and words in answer["error"] and "ask again" in answer["error"]
        assert bench.works()


# proves SUP-18: a defect of the daemon is an answer, and the next question is answered as well
def test_a_defect_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with control_bench(tmp_path) as bench:
        with monkeypatch.context() as patch:
            patch.setattr(bench.service, "entries", lambda ended: 1 / 0)
            code, answer = bench.ask("GET", "/v1/entries")
        assert code == 500 and "ZeroDivisionError" in answer["error"]
        assert bench.ask("GET", "/v1/entries") == (200, [])


def test_the_document_names_what_is_answered(tmp_path: Path) -> None:
    with control_bench(tmp_path) as bench:
        document = bench.ask("GET", "/openapi.json")[1]
    text = json.dumps(document)
    known = document["components"]["schemas"]
    named = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= set(known) and {"Entry", "Health", "SubmitRequest"} <= named
    assert all(
        {"500", "503"} <= set(route["responses"]) for routes in document["paths"].values() for route in routes.values()
    )
