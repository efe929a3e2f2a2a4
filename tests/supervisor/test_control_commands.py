"""`mens-sup submit`, `queue`, `schedule`, `logs`, `report`, ... as they are typed, with a daemon and without one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from control_bench import Bench, control_bench
from scripted_runs import document, wait_for

from supervisor.cli import main
from supervisor.daemon.control.client import DaemonClient
from supervisor.daemon.control.errors import NoDaemonError
from supervisor.daemon.control.which import Found
from supervisor.daemon.service import EntryState
from supervisor.protocol.events import EventLog
from supervisor.protocol.lock import lock_holder
from supervisor.protocol.paths import RunPaths
from supervisor.state import Outcome, RunState, write_state


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A daemon that answers, in a folder without runs."""
    monkeypatch.chdir(tmp_path)
    with control_bench(tmp_path / "daemon") as made:
        monkeypatch.setenv("MENS_SUP_SOCKET", str(made.socket))
        yield made


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No daemon; the path where none answers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MENS_SUP_SOCKET", str(tmp_path / "none.sock"))
    return tmp_path / "none.sock"


def write_config(folder: Path, name: str = "job.yaml", **sections: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps(document(**sections)))
    return path


def make_run(directory: Path, **changes: Any) -> RunPaths:
    paths = RunPaths(directory)
    paths.attempts.mkdir(parents=True)
    paths.checkpoints().mkdir()
    paths.run_yaml.write_text("kind: scripted\n")
    state = RunState(id=directory.name, kind="scripted", max_attempts=5, updated=time.time(), started=time.time())
    for name, value in changes.items():
        setattr(state, name, value)
    write_state(paths.state, state)
    return paths


def set_entry(bench: Bench, number: int, **changes: Any) -> None:
    bench.service.queue[number] = msgspec.structs.replace(bench.service.queue[number], **changes)


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What the command says, with the exit code ``code``; complaints when it is not 0."""
    assert main(arguments) == code
    out, errors = capsys.readouterr()
    return errors if code else out


# proves SUP-18: a job goes into the queue, is listed, held back, let go on and taken out again
def test_the_queue(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path)
    assert said(capsys, "queue") == "The queue is empty.\n"
    assert "queued as 1 (job)" in said(capsys, "submit", "job.yaml", "--priority", "5")
    more = ("--name", "b", "--after", "job", "--set=limits.max_attempts=2", "--json")
    second = json.loads(said(capsys, "submit", "job.yaml", *more))
    assert (second["id"], second["after"], second["config"]) == (2, [1], str(config))
    assert second["arguments"] == ["--set=limits.max_attempts=2"]
    set_entry(bench, 2, explanation="an \x1b[31mevil\x1b[0m name")
    table = said(capsys, "queue").splitlines()
    assert table[0].split() == ["id", "state", "priority", "kind", "name", "for"]
    assert table[1].split()[:5] == ["1", "waiting", "5", "scripted", "job"]
    assert "after 1; an evil name" in table[2]
    assert "1 (job) is paused." in said(capsys, "pause", "1")
    assert "1 (job) is waiting." in said(capsys, "resume", "job")
    assert "1 (job) is cancelled." in said(capsys, "cancel", str(tmp_path / "daemon" / "runs" / "job-1"))
    assert "has ended" in said(capsys, "cancel", "1", code=2)
    assert "knows no run x" in said(capsys, "pause", "x", code=2)
    assert [each["id"] for each in json.loads(said(capsys, "queue", "--json"))] == [1, 2]


# proves SUP-18 and TRN-9: what is wrong is said at once, with line and key, and nothing is queued
def test_what_cannot_be_queued(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench.service.looks_through = True
    (tmp_path / "bad.yaml").write_text("kind: scripted\nlimits:\n  max_atempts: 2\n")
    complaint = said(capsys, "submit", "bad.yaml", code=2)
    assert "bad.yaml:3" in complaint and "max_attempts" in complaint
    write_config(tmp_path)
    assert "knows no run other" in said(capsys, "submit", "job.yaml", "--after", "other", code=2)
    assert "no such file" in said(capsys, "submit", "none.yaml", code=2)
    assert not bench.service.queue


# proves SUP-18: schedules are made, listed and removed
def test_schedules(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(tmp_path)
    assert said(capsys, "schedule", "list") == "There are no schedules.\n"
    assert said(capsys, "schedule", "add", "job.yaml", "--cron", "0 2 * * *").startswith("schedule 1: ")
    for wrong in ("when I like", "daily"):
        assert "no schedule" in said(capsys, "schedule", "add", "job.yaml", "--cron", wrong, code=2)
    assert "0 2 * * *" in said(capsys, "schedule", "list")
    assert "removed" in said(capsys, "schedule", "remove", "1")
    assert "There is no schedule 1" in said(capsys, "schedule", "remove", "1", code=2)


# proves SUP-18: without a daemon one paragraph says so, and how to start it
@pytest.mark.parametrize(
    "arguments",
    [("queue",), ("submit", "job.yaml"), ("cancel", "1"), ("schedule", "list"), ("status", "1"), ("status",)],
)
def test_no_daemon(
    arguments: tuple[str, ...], nobody: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path)
    complaint = said(capsys, *arguments, code=2)
    assert f"No daemon answers at {nobody}; start it by: systemctl start mens-supervisor" in complaint
    assert complaint.count("\n") == 1


# proves SUP-19: status of a run by its folder, and by its id or name in the queue
def test_status(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(tmp_path)
    said(capsys, "submit", "job.yaml")
    waiting = json.loads(said(capsys, "status", "job", "--json"))
    assert (waiting["outcome"], waiting["entry"]["state"]) == (None, "waiting")
    assert said(capsys, "status", "1").startswith("queue        1, waiting")
    directory = bench.service.queue[1].run_dir
    make_run(directory, outcome=Outcome.STOPPED, explanation="asked to")
    set_entry(bench, 1, state=EntryState.PAUSED, started_at=1.0, outcome="stopped")
    for name in ("1", "job", "job-1"):
        status = json.loads(said(capsys, "status", name, "--json"))
        assert (status["id"], status["outcome"], status["entry"]["state"]) == ("job-1", "stopped", "paused")
    assert "outcome      stopped" in said(capsys, "status")
    assert json.loads(said(capsys, "status", str(directory), "--json"))["entry"] is None


# proves SUP-19: whoever may ask the daemon but not read the run's files is told the same by the daemon
def test_through_the_daemon(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path)
    said(capsys, "submit", "job.yaml")
    paths = make_run(bench.service.queue[1].run_dir, outcome=Outcome.GAVE_UP, attempt=2)
    for number in (1, 2):
        paths.attempt(number).root.mkdir()
        paths.attempt(number).stdout.write_text("".join(f"line {line} of {number}\n" for line in range(40_000)))
    set_entry(bench, 1, state=EntryState.FAILED, started_at=1.0)
    asked = (("status", "1", "--json"), ("logs", "1"), ("logs", "1", "--attempt", "1"))
    seen = [said(capsys, *arguments) for arguments in asked]
    assert seen[1].endswith("line 39999 of 2\n") and len(seen[1].splitlines()) == 40_000
    monkeypatch.setattr(Found, "readable", False)
    here = json.loads(seen[0])
    there = json.loads(said(capsys, "status", "1", "--json"))
    assert there.pop("disk_free_bytes") and here.pop("disk_free_bytes") and there == here
    assert said(capsys, "logs", "1") == seen[1] and said(capsys, "logs", "1", "--attempt", "1") == seen[2]
    assert "no attempt 3" in said(capsys, "logs", "1", "--attempt", "3", code=2)
    assert main(["watch", "1"]) == 1
    assert "gave up" in capsys.readouterr().out


# proves SUP-19: the page of a run, beside its files or where it is wanted
def test_report(
    bench: Bench, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path)
    assert main(["submit", "job.yaml"]) == 0
    paths = make_run(bench.service.queue[1].run_dir, outcome=Outcome.COMPLETED, explanation="<script>bad</script>")
    EventLog(paths.events, "supervisor").append("run_started")
    set_entry(bench, 1, state=EntryState.COMPLETED, started_at=1.0)
    assert main(["report", "1"]) == 0
    assert capfd.readouterr().out.endswith(f"{paths.root / 'report.html'}\n")
    page = (paths.root / "report.html").read_text()
    assert "job-1" in page and "<script>bad" not in page
    code, fetched = bench.ask_raw("GET", "/runs/1")
    assert "200" in code.splitlines()[0] and b"job-1" in fetched and "frame-ancestors" in code
    monkeypatch.setattr(Found, "readable", False)
    assert main(["report", "1", "--out", "there.html"]) == 0
    assert b"job-1" in (tmp_path / "there.html").read_bytes()


# proves SUP-19: following goes on with the next attempt, and ends with the run
def test_logs_are_followed(nobody: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    paths = make_run(tmp_path / "r", attempt=1)
    first, second = paths.attempt(1), paths.attempt(2)
    first.root.mkdir()
    first.stdout.write_text("old\none\n")

    def goes_on() -> None:
        wait_for(lambda: "one" in shown())
        with open(first.stdout, "a") as log:
            log.write("two ä\n")
        first.stderr.write_text("oops\n")
        second.root.mkdir()
        write_state(paths.state, RunState(id="r", kind="scripted", max_attempts=5, attempt=2))
        wait_for(lambda: "two" in shown())
        second.stdout.write_text("three\n")
        state = RunState(id="r", kind="scripted", max_attempts=5, attempt=2, outcome=Outcome.COMPLETED)
        write_state(paths.state, state)

    so_far: list[str] = []

    def shown() -> str:
        so_far.append(capfd.readouterr().out)
        return "".join(so_far)

    command = [sys.executable, "-m", "supervisor.cli", "logs", "r", "-f", "-n", "1", "--only", "stdout"]
    with subprocess.Popen(command) as process:
        goes_on()
        assert process.wait(30) == 0
    assert shown() == "one\ntwo ä\nthree\n"
    assert main(["logs", "r", "--attempt", "1", "-n", "2"]) == 0
    assert capfd.readouterr().out == "one\ntwo ä\noops\n"
    make_run(tmp_path / "fresh")
    assert main(["logs", "fresh"]) == 2
    assert "no attempt has begun" in capfd.readouterr().err


_SUPERVISOR = """
import signal, sys
from pathlib import Path
from supervisor.protocol.lock import FileLock
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with FileLock(Path(sys.argv[1])):
    signal.pause()
"""


# proves SUP-18: a run outside of any queue is asked by its folder to stop; nobody else's process is signalled
def test_stopping_by_the_folder(nobody: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = make_run(tmp_path / "r")
    assert "nobody supervises this run" in said(capsys, "pause", "r", code=2)
    with subprocess.Popen([sys.executable, "-c", _SUPERVISOR, str(paths.supervisor_lock)]) as process:
        wait_for(lambda: lock_holder(paths.supervisor_lock) == process.pid)
        assert "save a checkpoint and end" in said(capsys, "pause", "r")
        assert process.wait(30) == 0
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    paths.supervisor_lock.write_text(f"{bystander.pid}\n")
    assert "nobody supervises" in said(capsys, "cancel", "r", code=2)
    assert bystander.poll() is None
    bystander.send_signal(signal.SIGKILL)
    bystander.wait()
    assert "go on with: mens-sup run --run-dir r" in said(capsys, "resume", "r", code=2)


# proves SUP-19: a long history costs `status` nothing: of a thousand runs it reads the one it shows
def test_status_with_a_long_history(
    nobody: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1000):
        folder = tmp_path / "runs" / f"r{number}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text("{ damaged")
        os.utime(folder / "state.json", (number, number))
    make_run(tmp_path / "runs" / "newest", outcome=Outcome.COMPLETED)
    assert json.loads(said(capsys, "status", "--json"))["id"] == "newest"


# proves SUP-18: a daemon that was not restarted after an upgrade is said in a sentence as well
def test_a_daemon_of_another_version(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(DaemonClient, "_ask", lambda *_: b'[{"id": "one"}]')
        assert "probably of another version" in said(capsys, "queue", code=2)
    write_config(tmp_path)
    said(capsys, "submit", "job.yaml")
    monkeypatch.setattr(DaemonClient, "status", lambda *_: {"outcome": "running", "id": "x"})
    assert "probably of another version" in said(capsys, "status", "1", code=2)


# proves SUP-18: a daemon that hangs, or something else at the socket, is said in a sentence
def test_a_daemon_that_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        with pytest.raises(NoDaemonError, match=r"did not answer within 0\.2 s"):
            DaemonClient(path, 0.2).health()

        def answers_rubbish() -> None:
            connection, _ = silent.accept()
            connection.recv(1000)
            connection.sendall(b"SSH-2.0-OpenSSH\r\n")
            connection.close()

        silent.accept()[0].close()
        thread = threading.Thread(target=answers_rubbish)
        thread.start()
        with pytest.raises(NoDaemonError, match="No daemon answers"):
            DaemonClient(path, 10).health()
        thread.join()

# proves SUP-19: a damaged state.json is told in a sentence by whatever reads the run
@pytest.mark.parametrize("command", ["watch", "logs", "report", "status"])
def test_damaged_state_is_a_sentence(
    nobody: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    paths = make_run(tmp_path / "r")
    paths.state.write_text('{"id" x')
    assert main([command, str(paths.root)]) == 2
    said = capsys.readouterr().err
    assert "state.json" in said
    assert "JSON is malformed" in said


def test_logs_of_a_folder_that_is_no_run(nobody: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ([], ["--follow"]):
        assert main(["logs", str(tmp_path), *option]) == 2
        assert "holds no run" in capsys.readouterr().err


def test_page_that_cannot_be_written_is_named(
    nobody: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = make_run(tmp_path / "r")
    target = tmp_path / "none" / "page.html"
    assert main(["report", str(paths.root), "--out", str(target)]) == 2
    assert f"{target} cannot be written" in capsys.readouterr().err
