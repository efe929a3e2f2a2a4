"""Steering a run that is watched."""

from __future__ import annotations

from pathlib import Path

import pytest
from control_bench import control_bench
from toy_service import ToyService

from supervisor.daemon.control import steer as steering
from supervisor.daemon.control.client import DaemonClient
from supervisor.daemon.control.steer import Steer
from supervisor.daemon.control.which import Found
from supervisor.daemon.service import EntryState, Submission
from supervisor.problems import InputError
from supervisor.protocol.lock import FileLock
from supervisor.protocol.paths import RunPaths
from supervisor.view.controls import Action

STOP, PAUSE, RESUME = Action.STOP, Action.PAUSE, Action.RESUME


# proves SUP-18, SUP-19: keys of a view act through the daemon on a run of its queue
def test_a_run_of_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "ASK_SECONDS", 0.0)
    with control_bench(tmp_path / "daemon") as bench:
        service: ToyService = bench.service
        number = service.submit(Submission(config=tmp_path / "x.yaml", kind="sft")).id
        client = DaemonClient(bench.socket)
        steer = Steer(Found(tmp_path, client.entry(number), client))
        assert steer.offers == {STOP, PAUSE} and steer.may_go_on
        assert steer.pause().startswith("pausing")
        assert service.entry(number).state is EntryState.PAUSED
        assert steer.offers == {STOP, RESUME} and steer.may_go_on
        assert steer.resume().startswith("in the queue again")
        assert service.entry(number).state is not EntryState.PAUSED
        assert steer.stop().startswith("cancelled")
        assert service.entry(number).state is EntryState.CANCELLED
        assert steer.offers == frozenset() and not steer.may_go_on
        with pytest.raises(InputError):
            steer.pause()  # it has ended


def test_a_daemon_that_is_gone_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "ASK_SECONDS", 0.0)
    with control_bench(tmp_path / "daemon") as bench:
        number = bench.service.submit(Submission(config=tmp_path / "x.yaml", kind="sft")).id
        client = DaemonClient(bench.socket)
        steer = Steer(Found(tmp_path, client.entry(number), client))
    assert steer.offers == {STOP, PAUSE}
    with pytest.raises(InputError):
        steer.pause()


# proves SUP-19: without a daemon a run can be stopped by its folder, and only while somebody supervises it
def test_a_run_of_its_own(tmp_path: Path) -> None:
    steer = Steer(Found(tmp_path))
    assert steer.offers == frozenset() and not steer.may_go_on
    assert steer.stop() == "nobody supervises it just now"
    with FileLock(RunPaths(tmp_path).supervisor_lock):
        assert steer.offers == {STOP}
    with pytest.raises(InputError, match="in no queue"):
        steer.pause()
