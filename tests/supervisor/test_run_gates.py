"""The gates of a run: read with its configuration, judged at its end, shown and told. # proves EVL-6"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import supervisor.gates
from supervisor.config import ConfigError, load_config
from supervisor.config_sections import NotifySettings
from supervisor.gates import run_gates
from supervisor.protocol.events import EventLog, read_events
from supervisor.protocol.paths import RunPaths
from supervisor.state import Outcome, RunState, write_state
from supervisor.status import read_status, render_status

ROOT = Path(__file__).parents[2]


def config(place: Path, **changed: object) -> Path:
    path = place / "run.yaml"
    document = {
        "model": {"base": "random:2x64"},
        "data": {"sources": [{"type": "python_declarations", "path": "stdlib", "max_rows": 50}]},
        **changed,
    }
    path.write_text(json.dumps(document, indent=1))
    return path


def test_gates_are_files_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "gate.yaml").write_text("name: g\n")
    loaded = load_config(config(tmp_path, gates=["gate.yaml"]))
    assert loaded.own.gates == (str(tmp_path / "gate.yaml"),) and loaded.document["gates"] == [*loaded.own.gates]
    with pytest.raises(ConfigError, match=r"run.yaml:\d+: gates: .*nowhere.yaml does not exist"):
        load_config(config(tmp_path, gates=["gate.yaml", "nowhere.yaml"]))
    other = tmp_path / "other.yaml"
    other.write_text(json.dumps({"kind": "command", "command": ["true"], "gates": ["gate.yaml"]}))
    with pytest.raises(ConfigError, match="a run of kind command trains none"):
        load_config(other)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "r"
    folder.mkdir()
    write_state(RunPaths(folder).state, RunState(id="r", kind="sft", outcome=Outcome.COMPLETED, max_attempts=1))
    return folder


def judged_as(
    monkeypatch: pytest.MonkeyPatch, run_dir: Path, verdict: str | None, code: int
) -> list[Sequence[str]]:
    """What the command that judges would leave; the commands that were run."""
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> int:
        commands.append(command)
        if verdict is not None:
            log = EventLog(RunPaths(run_dir).events, "supervisor")
            said = {"gate": "small", "verdict": verdict, "result": "eval/small/gate.json"}
            log.append("gate", f"small: {verdict}; because", **said)
        return code

    monkeypatch.setattr(supervisor.gates, "run_forwarding", run)
    return commands


def test_the_verdict_is_told_and_shown(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    EventLog(RunPaths(run_dir).events, "supervisor").append("gate", "of an earlier call", gate="old", verdict="pass")
    commands = judged_as(monkeypatch, run_dir, "fail", 1)
    heard = tmp_path / "heard"
    program = f"import sys; open({str(heard)!r}, 'a').write(sys.stdin.read() + chr(10))"
    assert run_gates(run_dir, ["/g/small.yaml"], NotifySettings(command=(sys.executable, "-c", program)))
    assert commands[0][-4:] == ["eval", "gates", str(run_dir), "/g/small.yaml"]
    (message,) = [json.loads(line) for line in heard.read_text().splitlines()]
    assert message["event"] == "gate" and message["verdict"] == "fail" and "because" in message["message"]
    status = read_status(run_dir)
    assert status["gates"]["small"] == {
        "verdict": "fail", "message": "small: fail; because", "result": "eval/small/gate.json"
    }  # fmt: skip
    assert "small: fail; because" in render_status(status)


def test_a_judge_that_fails_leaves_unjudged_and_a_stop_leaves_nothing(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged_as(monkeypatch, run_dir, None, 4)
    assert not run_gates(run_dir, ["/g/small.yaml"], NotifySettings())
    assert not list(read_events(RunPaths(run_dir).events))
    judged_as(monkeypatch, run_dir, None, 2)
    assert run_gates(run_dir, ["/g/small.yaml"], NotifySettings())
    (event,) = read_events(RunPaths(run_dir).events)
    assert event.kind == "gate" and event.data["verdict"] == "unjudged"


def test_each_gate_is_judged_and_none_is_skipped(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = ["/g/small.yaml", "/g/broken.yaml"]

    def run(command: Sequence[str]) -> int:
        if command[-1] == both[1]:
            return codes
        EventLog(RunPaths(run_dir).events, "supervisor").append("gate", "small: pass", gate="small", verdict="pass")
        return 0

    monkeypatch.setattr(supervisor.gates, "run_forwarding", run)
    codes = 2
    assert run_gates(run_dir, both, NotifySettings())
    assert [event.data["verdict"] for event in read_events(RunPaths(run_dir).events)] == ["pass", "unjudged"]
    codes = 4
    assert not run_gates(run_dir, both, NotifySettings()), "the second gate is still to be judged"
    judged_as(monkeypatch, run_dir, None, 3)
    assert run_gates(run_dir, both, NotifySettings()), "inconclusive since an earlier call, and no stop"
