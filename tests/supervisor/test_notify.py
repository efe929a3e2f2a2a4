"""The user's own command is told how a run ended."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from supervisor.notify import notify
from supervisor.redact import HIDDEN, hide_secrets

KEEP = "import sys, json, os; open(sys.argv[1], 'w').write(sys.stdin.read() + '\\n' + json.dumps(dict(os.environ)))"


# proves SUP-19: the command gets the event as JSON, and no secret with it
def test_the_command_gets_json_and_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnop")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789")
    monkeypatch.setenv("PLAIN", "kept")
    payload = {
        "outcome": "gave_up", "path": Path("/x"),
        "explanation": "GET https://u:pw12345678@h/x?sig=abcdefgh123 with hf_abcdefghijklmnop",
    }  # fmt: skip
    assert notify([sys.executable, "-c", KEEP, str(tmp_path / "told")], payload) is None
    event, environment = (json.loads(line) for line in (tmp_path / "told").read_text().splitlines())
    assert event == {
        "outcome": "gave_up", "path": "/x", "explanation": f"GET https://{HIDDEN}@h/x?sig={HIDDEN} with {HIDDEN}"
    }  # fmt: skip
    assert environment["PLAIN"] == "kept"
    assert not {"HF_TOKEN", "WANDB_API_KEY"} & set(environment)


def test_a_failure_is_told_and_not_raised(tmp_path: Path) -> None:
    failing = "import sys; sys.exit('no such room, password=hunter2hunter2')"
    assert notify([sys.executable, "-c", failing], {}) == (
        f"the notification command {sys.executable} failed with exit code 1: no such room, password={HIDDEN}"
    )
    assert "signal 9" in str(notify([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], {}))
    assert "could not be started: No such file" in str(notify([str(tmp_path / "missing")], {}))
    assert notify([], {}) is None
    assert notify(["true"], {"big": "x" * 1_000_000}) is None  # one that doesn't read its input


# proves SUP-2: a notification that hangs costs its limit and leaves nobody behind
def test_a_hanging_command_is_killed_with_its_children(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time; child = subprocess.Popen(['sleep', '600']); "
        "open(sys.argv[1], 'w').write(str(child.pid)); time.sleep(600)"
    )
    pid_file = tmp_path / "pid"
    answer = notify([sys.executable, "-c", program, str(pid_file)], {}, limit_seconds=3)
    assert "took longer than 3 s and was killed" in str(answer)
    stat = Path("/proc") / pid_file.read_text() / "stat"
    deadline = time.monotonic() + 20
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


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
