"""People who aren't watching are told, and nothing waits for it."""

from __future__ import annotations

import http.server
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_runs import config, events, run

from supervisor.config_sections import NotifySettings
from supervisor.notify import MOST_AT_ONCE, Teller, words
from supervisor.redact import HIDDEN, hide_secrets
from supervisor.secret_file import read_addresses, without
from supervisor.state import Outcome

KEEP = "import sys, json, os; open(sys.argv[1], 'w').write(sys.stdin.read() + '\\n' + json.dumps(dict(os.environ)))"
SECRET = "s3cr3t-path-of-a-hook"


class Told:
    """A teller, and what it could not do."""

    def __init__(self, **limits: float) -> None:
        self.problems: list[str] = []
        self.teller = Teller(self.problems.append, **limits)

    def tell(self, payload: dict[str, Any], what: str = "gave_up", **settings: Any) -> list[str]:
        self.teller.tell(NotifySettings(**settings), what, payload)
        self.teller.finish()
        return self.problems


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """A service on this machine: its address, and (path, JSON) of what it was sent. /broken answers with 500."""
    got: list[tuple[str, dict[str, Any]]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            got.append((self.path, json.loads(body or b"{}")))
            self.send_response(500 if self.path.startswith("/broken") else 200)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{httpd.server_address[1]}", got
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def secret_file(path: Path, *lines: str) -> str:
    path.write_text("# who is told\n\n" + "".join(f"{line}\n" for line in lines))
    path.chmod(0o600)
    return str(path)


# proves SUP-19: the command gets the event as JSON, and no secret with it
def test_the_command_gets_json_and_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnop")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789")
    monkeypatch.setenv("PLAIN", "kept")
    payload = {
        "outcome": "gave_up", "path": Path("/x"),
        "explanation": "GET https://u:pw12345678@h/x?sig=abcdefgh123 with hf_abcdefghijklmnop",
    }  # fmt: skip
    assert Told().tell(payload, command=(sys.executable, "-c", KEEP, str(tmp_path / "told"))) == []
    event, environment = (json.loads(line) for line in (tmp_path / "told").read_text().splitlines())
    assert event == {
        "outcome": "gave_up", "path": "/x", "explanation": f"GET https://{HIDDEN}@h/x?sig={HIDDEN} with {HIDDEN}"
    }  # fmt: skip
    assert environment["PLAIN"] == "kept"
    assert not {"HF_TOKEN", "WANDB_API_KEY"} & set(environment)


def test_a_failure_is_told_and_not_raised(tmp_path: Path) -> None:
    failing = "import sys; sys.exit('no such room, password=hunter2hunter2')"
    assert Told().tell({}, command=(sys.executable, "-c", failing)) == [
        f"the notification command {sys.executable} failed with exit code 1: no such room, password={HIDDEN}"
    ]
    assert "signal 9" in Told().tell({}, command=(sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"))[0]
    assert "could not be started: No such file" in Told().tell({}, command=(str(tmp_path / "missing"),))[0]
    assert Told().tell({}) == []
    assert Told().tell({"big": "x" * 1_000_000}, command=("true",)) == []  # one that doesn't read its input
    assert Told().tell({}, "degraded", command=("false",), on=("completed",)) == []


# proves SUP-2: nothing waits for a message; one that hangs costs its limit and leaves nobody behind
def test_a_hanging_command_holds_nothing_up_and_is_killed_with_its_children(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time; child = subprocess.Popen(['sleep', '600']); "
        "open(sys.argv[1], 'w').write(str(child.pid)); time.sleep(600)"
    )
    pid_file = tmp_path / "pid"
    told = Told(limit_seconds=3)
    settings = NotifySettings(command=(sys.executable, "-c", program, str(pid_file)))
    told.teller.tell(settings, "stopped", {})
    told.teller.look()
    assert told.problems == []  # under way, and we are here already
    told.teller.finish()
    assert "took longer than 3 s and was killed" in told.problems[0]
    stat = Path("/proc") / pid_file.read_text() / "stat"
    deadline = time.monotonic() + 20
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_flood_of_messages_is_bounded() -> None:
    told = Told(limit_seconds=0.5)
    for _ in range(MOST_AT_ONCE + 2):
        told.teller.tell(NotifySettings(command=("sleep", "600")), "degraded", {})
    assert sum("are under way already" in text for text in told.problems) == 2
    told.teller.finish()


# proves SUP-19: notifications go through apprise to services; their addresses are never shown
def test_services_are_told_and_addresses_stay_secret(
    tmp_path: Path, server: tuple[str, list[tuple[str, dict[str, Any]]]]
) -> None:
    address, got = server
    file = secret_file(tmp_path / "urls", f"json://{address}/{SECRET}", f"json://{address}/broken/{SECRET}", "nonsense")
    payload = {"run": "r-1", "message": "it failed, password=hunter2hunter2", "attempt": 2, "step": 7, "run_dir": "/r"}
    problems = Told().tell(payload, urls_file=file)
    sent = dict(got)[f"/{SECRET}"]
    assert sent["title"] == "r-1: gave up" and sent["type"] == "failure"
    assert sent["message"].startswith(f"it failed, password={HIDDEN}\nattempt 2, step 7 of ?")
    assert problems == [
        "the notification services failed with exit code 1: address 2 (json) did not take it; "
        "address 3 (?) is none that apprise knows"
    ]


# proves SUP-19: a dead man's switch hears from a supervisor at work
def test_the_dead_mans_switch(tmp_path: Path, server: tuple[str, list[tuple[str, dict[str, Any]]]]) -> None:
    address, got = server
    told = Told()
    told.teller.ping(NotifySettings(ping_file=secret_file(tmp_path / "ping", f"http://{address}/{SECRET}")))
    told.teller.finish()
    assert [path for path, _ in got] == [f"/{SECRET}"] and told.problems == []
    bad = (f"http://{address}/broken/{SECRET}", f"http://127.0.0.1:9/{SECRET}", f"file:///etc/{SECRET}")
    told.teller.ping(NotifySettings(ping_file=secret_file(tmp_path / "ping", *bad)))
    told.teller.finish()
    assert "address 1: HTTP status 500; address 2: no connection (ConnectionRefusedError)" in told.problems[0]
    assert "address 3: it is no http(s) address" in told.problems[0] and SECRET not in told.problems[0]


# proves SUP-19: what cannot be told is recorded, and the run goes on as it would have
def test_a_run_tells_how_it_ended_and_survives_not_being_heard(
    tmp_path: Path, server: tuple[str, list[tuple[str, dict[str, Any]]]]
) -> None:
    address, got = server
    good = secret_file(tmp_path / "ping", f"http://{address}/{SECRET}")
    bad = secret_file(tmp_path / "urls", f"json://127.0.0.1:9/{SECRET}")
    told = tmp_path / "told"
    notify = {"urls_file": bad, "ping_file": good, "command": [sys.executable, "-c", KEEP, str(told)]}
    assert run(config(notify=notify), tmp_path / "r") is Outcome.COMPLETED
    assert json.loads(told.read_text().splitlines()[0])["event"] == "completed"
    assert (f"/{SECRET}", {}) in got
    warnings = [event.message for event in events(tmp_path / "r", "warning")]
    assert [text for text in warnings if "address 1 (json) did not take it" in text]
    for path in (tmp_path / "r").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_addresses_of_a_secret_file(tmp_path: Path) -> None:
    file = Path(secret_file(tmp_path / "urls", "mailto://a", "  slack://b  "))
    assert read_addresses(file) == ["mailto://a", "slack://b"]
    file.chmod(0o644)
    assert "can be read by everybody" in read_addresses(file)
    assert "No such file" in read_addresses(tmp_path / "none")
    assert "holds no address" in read_addresses(Path(secret_file(tmp_path / "empty")))
    url = "slack://tokenA/tokenBBB/tokenCCC?x=1"
    assert without(f"POST {url} failed; tokenBBB is bad", [url]) == f"POST {HIDDEN} failed; {HIDDEN} is bad"


def test_words_for_people() -> None:
    title, body = words("time_wall", {"run": "r", "message": "m" * 9000, "attempt": 1, "step": 2, "planned_steps": 3})
    assert title == "r: time wall" and len(body) == 4000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Authorization: Bearer abc.def-ghi_jkl", f"Authorization: Bearer {HIDDEN}"),
        ("https://s3/x?X-Amz-Signature=0123456789abcdef&y=1", f"https://s3/x?X-Amz-Signature={HIDDEN}&y=1"),
        ("HF_TOKEN=hf_0123456789abc", f"HF_TOKEN={HIDDEN}"),
        ("api_key: 'abcdefghijkl'", f"api_key: '{HIDDEN}'"),
        ('{"secret": "abcdefghijkl"}', f'{{"secret": "{HIDDEN}"}}'),
        ("planned tokens: 1234567890, tokens_seen=123456789", "planned tokens: 1234567890, tokens_seen=123456789"),
        ("seq 2048 -> 1536 cuts 7.1 % of rows", "seq 2048 -> 1536 cuts 7.1 % of rows"),
    ],
)
def test_secrets_are_hidden_and_figures_are_not(text: str, expected: str) -> None:
    assert hide_secrets(text) == expected


def test_secrets_by_the_name_of_their_key() -> None:
    assert hide_secrets({"hub_token": "x", "tokens_seen": 5, "list": [("a", "sk-0123456789")]}) == {
        "hub_token": HIDDEN,
        "tokens_seen": 5,
        "list": [["a", HIDDEN]],
    }
