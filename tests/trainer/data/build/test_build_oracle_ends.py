# proves DAT-5: an oracle ends with the build, sees nothing of it, and only its own judgement is kept
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from mixes import Place, pairs

from supervisor.problems import InputError
from trainer.data.build.mix import OracleSection, load_mix
from trainer.data.build.oracle import Oracle, OracleMachineError

PATIENCE_SECONDS = 120.0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    (tmp_path / "cache").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("MENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return Place(tmp_path)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def judge(place: Place, *command: str, answer: str = "a", seconds: float = 60.0) -> tuple[str, int]:
    section = OracleSection(command=list(command), timeout_seconds=seconds)
    with Oracle(section, place.root / "verdicts", place.root) as oracle:
        (verdict,) = oracle.judge([answer])
        return verdict.value, oracle.from_cache


def script(place: Place, name: str, text: str) -> Path:
    path = place.root / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "command", [["./check.sh", "{file}"], ["sh", "./check.sh", "{file}"], ["sh", "{abs}", "{file}"]]
)
def test_paths_are_relative_to_the_mix_and_an_edited_script_is_asked_anew(place: Place, command: list[str]) -> None:
    path = script(place, "check.sh", "exit 0 ")
    command = [part.replace("{abs}", str(path)) for part in command]
    assert [judge(place, *command), judge(place, *command)] == [("pass", 0), ("pass", 1)]
    state = path.stat()
    script(place, "check.sh", "exit 33")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert judge(place, *command) == ("fail", 0)


@pytest.mark.parametrize(("rest", "verdict"), [("exit 0", "pass"), ("exit 1", "fail"), ("sleep 600", "timeout")])
def test_what_left_the_session_is_ended_with_the_command(place: Place, rest: str, verdict: str) -> None:
    pids = place.root / "pids"
    text = f"setsid sh -c 'setsid sleep 600 & echo $! $$ > {pids}; sleep 600' & while ! test -s {pids}; do :; done; "
    assert judge(place, "sh", "-c", f"{text}{rest}; : {{file}}", seconds=5.0)[0] == verdict
    assert [alive(int(pid)) for pid in pids.read_text().split()] == [False, False]
    assert list((place.root / "tmp").iterdir()) == []


def test_the_command_sees_no_environment_of_its_parents(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_MARK", "secret")
    parent = "! tr '\\0' '\\n' < /proc/$PPID/environ | grep -q MENS_MARK"
    assert judge(place, "sh", "-c", f": {{file}}; {parent}") == ("pass", 0)
    build = f"! cat /proc/{os.getpid()}/environ && ! cat /proc/{os.getpid()}/maps"
    assert judge(place, "sh", "-c", f": {{file}}; {build}") == ("pass", 0)
    assert Path("/proc/self/environ").read_bytes(), "afterwards it is as it was"


@pytest.mark.parametrize("text", ["kill -9 $$", "exit 137", "kill -TERM $$"])
def test_a_command_that_was_killed_from_outside_stops_the_build_and_is_no_verdict(place: Place, text: str) -> None:
    script(place, "check.sh", text)
    place.rows("a.jsonl", pairs(2))
    mix = place.mix({"name": "a", "path": "a.jsonl", "oracle": {"command": ["./check.sh", "{file}"]}})
    with pytest.raises(OracleMachineError, match=r"\./check\.sh was killed from outside"):
        place.build(mix)
    assert not (place.root / "out").exists()


@pytest.mark.parametrize(
    ("text", "verdict", "words"),
    [("sleep 60", "timeout", "took longer than 0.5 s"), ("kill -SEGV $$", "crash", "died of a signal")],
)
def test_what_came_to_no_verdict_is_said_loudly_and_asked_again(
    place: Place, text: str, verdict: str, words: str
) -> None:
    from trainer.data.build.build import build

    script(place, "check.sh", text)
    place.rows("a.jsonl", pairs(1))
    oracle = {"command": ["./check.sh", "{file}"], "timeout_seconds": 0.5, "on_fail": "keep"}
    mix = load_mix(place.mix({"name": "a", "path": "a.jsonl", "oracle": oracle}))
    for out in ("one", "two"):
        said: list[str] = []
        built = build(mix, place.root / out, said.append)
        assert any(line.startswith("WARNING: a: 1 of 1 answers have no verdict") and words in line for line in said)
        assert "a: 0 of 1 verdicts were known from before" in said
        assert place.corpus(out)[0]["oracle"] == verdict and "1 UNDECIDED" in built.report
        assert built.manifest.measured.undecided == 1


def test_a_damaged_cache_and_an_impossible_command_are_a_paragraph(place: Place) -> None:
    place.rows("a.jsonl", pairs(1))
    source = {"name": "a", "path": "a.jsonl"}
    (place.root / "cache" / "oracle").mkdir()
    (place.root / "cache" / "oracle" / "oracle.sqlite").write_bytes(b"garbage" * 1000)
    with pytest.raises(InputError, match=r"oracle\.sqlite cannot be used: file is not a database\. Remove the file"):
        place.build(place.mix({**source, "oracle": {"command": ["true", "{file}"]}}))
    with pytest.raises(InputError, match="has a NUL character"):
        load_mix(place.mix({**source, "oracle": {"command": ["sh", "-c", "a\0b", "{file}"]}}))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_build_that_is_ended_takes_its_oracles_with_it(place: Place, number: signal.Signals) -> None:
    pids = place.root / "pids"
    script(place, "check.sh", f"setsid sleep 600 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; sleep 600")
    place.rows("a.jsonl", pairs(1))
    mix = place.mix({"name": "a", "path": "a.jsonl", "oracle": {"command": ["./check.sh", "{file}"]}})
    arguments = ["data", "build", str(mix), "--out", str(place.root / "out")]
    program = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); " \
        f"from supervisor.cli import main; raise SystemExit(main({arguments!r}))"  # fmt: skip
    build = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)
    try:
        wait_for(lambda: pids.exists() or build.poll() is not None)
        started = [int(pid) for pid in pids.read_text().split()]
        build.send_signal(number)
        code = build.wait(PATIENCE_SECONDS)
    finally:
        build.kill()
        said = build.communicate()[1]
    assert code == {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -9}[number], said
    wait_for(lambda: not any(map(alive, started)) and not list((place.root / "tmp").iterdir()))
    staged = [path.name for path in place.root.iterdir() if path.name.startswith(".staging-")]
    assert staged == ([f".staging-out-{build.pid}"] if number == signal.SIGKILL else [])
    assert not (place.root / "out").exists()


def test_the_folders_of_dead_builds_are_removed_and_those_of_living_ones_are_not(place: Place) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    names = [f".staging-out-{ended.pid}", f".staging-out-{os.getppid()}", f".staging-other-{ended.pid}", ".staging-out"]
    for name in names:
        place.rows(f"{name}/dropped.jsonl", [])
    place.rows("a.jsonl", pairs(2))
    place.build(place.mix({"name": "a", "path": "a.jsonl"}))
    left = sorted(path.name for path in place.root.iterdir() if path.name.startswith(".staging"))
    assert left == sorted(names[1:])
    assert json.loads((place.root / "out" / "manifest.json").read_text())["name"] == "m"
