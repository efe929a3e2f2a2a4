"""`mens-sup status` and `mens-sup checkpoints` on run directories as they lie."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from supervisor.checkpoint_report import list_report, render_report, verify_report
from supervisor.problems import InputError
from supervisor.protocol.atomic import replace_symlink, staged_directory
from supervisor.protocol.events import EventLog
from supervisor.protocol.heartbeat import HeartbeatWriter, Phase
from supervisor.protocol.lock import FileLock
from supervisor.protocol.manifest import FORMAT_VERSION, Manifest, digest_tree, write_manifest
from supervisor.protocol.paths import RunPaths, checkpoint_name
from supervisor.state import Failure, Outcome, ReliefTaken, RunState, write_state
from supervisor.status import newest_run, read_status, render_status

FAILURE = Failure(1, "cuda_oom", 7, "CUDA out of\x1b[31m memory", "abc", 1.0)
RELIEF = ReliefTaken(2, "halve_micro_batch", "cuda_oom", "slower", True, {"train.x": 1})


def make_run(root: Path, **changes: object) -> RunPaths:
    paths = RunPaths(root)
    paths.attempts.mkdir(parents=True)
    paths.checkpoints().mkdir()
    paths.run_yaml.write_text("name: x\n")
    state = RunState(id=root.name, kind="sft", max_attempts=5, updated=time.time())
    for name, value in changes.items():
        setattr(state, name, value)
    write_state(paths.state, state)
    return paths


def make_checkpoint(paths: RunPaths, step: int, lineage: int = 1, eval_loss: float | None = None) -> Path:
    final = paths.checkpoint(step, lineage)
    with staged_directory(final) as staged:
        (staged / "optimiser.bin").write_bytes(b"o" * 1000)
        (staged / "rng.json").write_text("{}")
        files = digest_tree(staged)
        manifest = Manifest(
            FORMAT_VERSION, step, 40, step * 100, step, 0.5, 1, lineage, 1.0, True, files, {}, {}, eval_loss
        )
        write_manifest(staged, manifest)
    return final


# proves SUP-19: everything that the contract of `status --json` names, for a run that has ended
def test_status_of_a_run_that_ended(tmp_path: Path) -> None:
    make_run(
        tmp_path / "r", outcome=Outcome.GAVE_UP, attempt=7, attempts_before=5, step=12, planned_steps=40,
        tokens_seen=1200, last_checkpoint="checkpoints/step-00000010", best_checkpoint="checkpoints/step-00000005",
        relief=[RELIEF], failures=[FAILURE], explanation="Out of memory. Buy a card.",
    )  # fmt: skip
    status = read_status(tmp_path / "r")
    expected = {
        "id": "r", "outcome": "gave_up", "attempt": 7, "max_attempts": 5, "step": 12, "planned_steps": 40,
        "tokens_seen": 1200, "last_checkpoint": "checkpoints/step-00000010",
        "explanation": "Out of memory. Buy a card.",
        "best_checkpoint": "checkpoints/step-00000005",
    }  # fmt: skip
    assert expected.items() <= status.items()
    assert [taken["rung"] for taken in status["relief"]] == ["halve_micro_batch"]
    assert status["last_failure"]["kind"] == "cuda_oom"
    assert "supervisor_alive" not in status
    json.dumps(status)
    text = render_status(status)
    assert "outcome      gave up\n" in text
    assert "attempt      2 of 5, 5 before that\n" in text
    assert "last failure cuda_oom (attempt 1, step 7): CUDA out of memory\n" in text
    assert "\x1b" not in text


# proves SUP-19: a running run is told by its heartbeat and newest events, ahead of state.json
def test_status_of_a_running_run(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "r", attempt=1, step=10, trainer_pid=os.getpid())
    paths.attempt(1).root.mkdir()
    HeartbeatWriter(paths.attempt(1).heartbeat).beat(Phase.EVALUATING, 13, 40)
    EventLog(paths.events, "trainer", 1).append("progress", step=13, loss=1.5, tokens_seen=1300, eta_seconds=None)
    with FileLock(paths.supervisor_lock):
        status = read_status(paths.root)
        assert status["supervisor_alive"] is True
        assert "running, evaluating" in render_status(status)
    assert (status["step"], status["planned_steps"], status["tokens_seen"]) == (13, 40, 1300)
    assert status["phase"] == "evaluating"
    assert (status["loss"], status["eta_seconds"], status["last_failure"]) == (1.5, None, None)


# proves SUP-10: a run whose supervisor died is not called running without a word
def test_a_dead_supervisor_is_told(tmp_path: Path) -> None:
    make_run(tmp_path / "r", supervisor_pid=1)
    status = read_status(tmp_path / "r")
    assert status["outcome"] == "running" and status["supervisor_alive"] is False
    assert status["planned_steps"] is None
    text = render_status(status)
    assert "no supervisor is alive" in text and f"mens-sup run --run-dir {tmp_path / 'r'}" in text
    assert "step         0 of ?\n" in text


def test_no_readable_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        read_status(tmp_path / "no")
    with pytest.raises(InputError, match=r"no state\.json"):
        read_status(tmp_path)
    (tmp_path / "state.json").write_bytes(b'{"id": "x"')
    with pytest.raises(InputError, match="damaged"):
        read_status(tmp_path)


def test_newest_run(tmp_path: Path) -> None:
    assert newest_run(tmp_path / "none") is None
    for name, age in (("a", 30), ("b", 10), ("c", 20)):
        state = make_run(tmp_path / name).state
        os.utime(state, (time.time() - age, time.time() - age))
    assert newest_run(tmp_path) == tmp_path / "b"


# proves SUP-14: bad checkpoints are named with file and fault, those moved aside are listed as such
def test_checkpoints_of_all_lineages_and_their_faults(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "r")
    for step in (10, 20, 30, 40):
        make_checkpoint(paths, step, eval_loss=2.0 - step / 100)
    make_checkpoint(paths, 5, lineage=2)
    aside = paths.quarantine() / f"{checkpoint_name(20)}.2"
    aside.parent.mkdir()
    paths.checkpoint(20).rename(aside)
    (aside / "manifest.json").write_text("{torn")
    flipped = paths.checkpoint(30) / "optimiser.bin"
    flipped.write_bytes(b"x" + flipped.read_bytes()[1:])
    (paths.checkpoint(40) / "rng.json").unlink()
    replace_symlink(paths.best, "checkpoints/step-00000010")

    listed = {entry.name: entry.verdict for entry in list_report(paths.root)}
    assert listed == {
        "checkpoints/step-00000010": "not verified",
        "checkpoints/step-00000030": "not verified",
        "checkpoints/step-00000040": "not verified",
        "checkpoints/quarantine/step-00000020.2": "quarantined",
        "checkpoints-2/step-00000005": "not verified",
    }
    entries = verify_report(paths.root)
    assert {entry.name: entry.verdict for entry in entries} == {
        "checkpoints/step-00000010": "good",
        "checkpoints/step-00000030": "bad",
        "checkpoints/step-00000040": "bad",
        "checkpoints/quarantine/step-00000020.2": "quarantined",
        "checkpoints-2/step-00000005": "good",
    }
    plain = {entry.name: entry.plain() for entry in entries}
    assert plain["checkpoints/step-00000030"]["faults"][0]["file"] == "optimiser.bin"
    assert plain["checkpoints/step-00000040"]["faults"] == [{"file": "rng.json", "problem": "missing"}]
    assert plain["checkpoints/step-00000010"]["best"] and plain["checkpoints/step-00000010"]["eval_loss"] == 1.9
    assert [entry["step"] for entry in plain.values()] == [10, 30, 40, 20, 5]
    text = render_report(entries)
    assert "    rng.json: missing\n" in text and "flipped bits" in text and "torn" in text
    json.dumps(plain)


def test_no_checkpoints(tmp_path: Path) -> None:
    make_run(tmp_path / "r")
    assert render_report(list_report(tmp_path / "r")) == "no checkpoints"
    with pytest.raises(InputError, match="holds no run"):
        verify_report(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        list_report(tmp_path / "no")
