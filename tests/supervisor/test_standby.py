"""A spare trainer takes the next attempt over, and is never in the way."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from scripted_runs import (
    alive,
    config,
    document,
    events,
    final_adapter,
    run,
    start_supervisor,
    state,
    wait_for,
)
from warm_kind import WARM

import supervisor.process.standby
import supervisor.supervise.spare
from supervisor.config import LoadedConfig, load_document
from supervisor.process.leftovers import processes_of
from supervisor.protocol.paths import RunPaths
from supervisor.sensors.snapshot import CgroupReading, GpuProcess, GpuReading, HostReading, Snapshot, Unknown
from supervisor.state import Outcome
from supervisor.supervise import RunRequest, supervise
from supervisor.supervise.spare import free_memory, gpu_memory_of

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor.supervise.spare, "START_AFTER_SECONDS", 0.0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    place = tmp_path_factory.mktemp("undisturbed") / "run"
    assert run(config(), place) is Outcome.COMPLETED
    return final_adapter(place)


def warm(*faults: dict[str, Any], how: str = "", **sections: dict[str, Any]) -> LoadedConfig:
    whole = document(*faults, **{"launch": {"env": {"WARM": how}}, **sections})
    return load_document({**whole, "kind": "warm"}, WARM)


def killed_when(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first attempt waits in step 5 until ``file`` is there, and is killed in step 6."""
    return (
        {"at": 5, "do": "wait_for_file", "file": str(file), "attempt": 1},
        {"at": 6, "do": "kill9", "attempt": 1},
    )


def run_until(
    loaded: LoadedConfig, place: Path, file: Path, kind: str, then: Callable[[int], None] = lambda pid: None
) -> Outcome:
    """Run; when the event ``kind`` is there, call ``then`` with the standby's pid and make ``file``."""

    def tick() -> None:
        if not file.exists() and events(place, kind):
            standbys = processes_of(RunPaths(place).attempt(2).spec)
            then(standbys[0] if standbys else 0)
            file.touch()

    return supervise(RunRequest(loaded, place), tick)


def said(place: Path, attempt: int) -> str:
    return RunPaths(place).attempt(attempt).stdout.read_text()


def kinds(place: Path) -> list[str]:
    lines = RunPaths(place).events.read_text().splitlines()
    return [kind for kind in (json.loads(line)["kind"] for line in lines) if kind.startswith("standby")]


# proves SUP-12: the standby becomes the next attempt's trainer: its pid, logs, environment and priority
def test_a_standby_takes_the_attempt_over(tmp_path: Path, undisturbed: bytes) -> None:
    place, waiting = tmp_path / "r", []
    loaded = warm(*killed_when(tmp_path / "go"))
    assert run_until(loaded, place, tmp_path / "go", "standby_ready", waiting.append) is Outcome.COMPLETED
    assert final_adapter(place) == undisturbed
    assert kinds(place)[:3] == ["standby_started", "standby_ready", "standby_took_over"]
    (taken,) = events(place, "standby_took_over")
    assert taken.attempt == 2
    assert said(place, 2) == f"pid {waiting[0]}, nice {os.getpriority(os.PRIO_PROCESS, 0)}, False\n"
    assert "completed: all planned steps are done" in RunPaths(place).attempt(2).stderr.read_text()
    assert "a standby beside" not in RunPaths(place).attempt(2).stderr.read_text()
    assert state(place).attempt == 2
    assert not (place / ".standby.log").exists()


# proves SUP-12, SUP-9: the exit status of one that took over, and what it left behind, are seen as ever
def test_a_standby_that_took_over_is_a_child_like_any(tmp_path: Path, undisturbed: bytes) -> None:
    place, pid_file = tmp_path / "r", tmp_path / "pid"
    faults = (
        *killed_when(tmp_path / "go"),
        {"at": 8, "do": "double_fork", "pid_file": str(pid_file), "attempt": 2},
        {"at": 9, "do": "segfault", "attempt": 2},
    )
    assert run_until(warm(*faults), place, tmp_path / "go", "standby_ready") is Outcome.COMPLETED
    assert final_adapter(place) == undisturbed
    assert [failure.kind for failure in state(place).failures] == ["killed", "native_crash"]
    assert len(events(place, "leftovers_killed")) == 1
    assert not alive(int(pid_file.read_text()))


# proves SUP-12: a crash while the standby still imports waits for it
def test_one_that_is_not_ready_yet_is_waited_for(tmp_path: Path) -> None:
    place = tmp_path / "r"
    loaded = warm(*killed_when(tmp_path / "go"), how="1")
    assert run_until(loaded, place, tmp_path / "go", "standby_started") is Outcome.COMPLETED
    assert kinds(place)[:2] == ["standby_started", "standby_took_over"]


# proves SUP-12: a standby that cannot be had is announced and done without
def test_a_standby_that_dies_is_done_without(tmp_path: Path, undisturbed: bytes) -> None:
    place = tmp_path / "r"
    loaded = warm(*killed_when(tmp_path / "go"), how="die")
    assert run_until(loaded, place, tmp_path / "go", "standby_lost") is Outcome.COMPLETED
    assert "standby_took_over" not in kinds(place)
    assert "exit code 1; no such library" in events(place, "standby_lost")[0].message
    assert state(place).attempt == 2
    assert final_adapter(place) == undisturbed


# proves SUP-12: one that hangs when the job comes is killed first, so that there are never two trainers
def test_a_standby_that_hangs_is_replaced(tmp_path: Path, undisturbed: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor.process.standby, "TAKE_SECONDS", 0.2)
    place, stopped = tmp_path / "r", []

    def stop(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        stopped.append(pid)

    loaded = warm(*killed_when(tmp_path / "go"))
    assert run_until(loaded, place, tmp_path / "go", "standby_ready", stop) is Outcome.COMPLETED
    assert "it did not answer; starting a new process" in events(place, "standby_lost")[0].message
    assert not Path(f"/proc/{stopped[0]}").exists()
    assert events(place, "leftovers_killed") == []  # it was gone before the new process was started
    assert str(stopped[0]) not in said(place, 2)
    assert final_adapter(place) == undisturbed


# proves SUP-12: with another environment for the attempt than the standby was started with, it is not used
def test_a_changed_environment_means_a_cold_launch(tmp_path: Path) -> None:
    place, file = tmp_path / "r", tmp_path / "go"
    rung = {
        "name": "other_allocator", "set": {"launch.env": {"OTHER": "1"}}, "helps": ["native_crash"],
        "price": "nothing", "lossless": True,
    }  # fmt: skip
    faults = (
        {"at": 5, "do": "wait_for_file", "file": str(file), "attempt": 1},
        {"at": 6, "do": "segfault", "attempt": 1},
    )
    loaded = warm(*faults, relief={"ladder": [rung]})
    assert run_until(loaded, place, file, "standby_ready") is Outcome.COMPLETED
    assert kinds(place)[:3] == ["standby_started", "standby_ready", "standby_discarded"]
    assert "standby_took_over" not in kinds(place)


# proves SUP-12, SUP-10: a standby never outlives its supervisor, whether it waits or still imports
@pytest.mark.parametrize(("how", "kind"), [("", "standby_ready"), ("600", "standby_started")])
def test_the_supervisors_death_ends_the_standby(tmp_path: Path, how: str, kind: str) -> None:
    place, file = tmp_path / "r", tmp_path / "run.json"
    plan = document(killed_when(tmp_path / "never")[0], launch={"env": {"WARM": how}})
    file.write_text(json.dumps({**plan, "kind": "warm"}))
    process = start_supervisor(file, place)
    trainer = 0
    try:
        wait_for(lambda: place.exists() and events(place, kind))
        trainer = state(place).trainer_pid
        (standby,) = processes_of(RunPaths(place).attempt(2).spec)
        wait_for(lambda: "a standby beside attempt 1" in (place / ".standby.log").read_text())
        process.kill()
        process.wait()
        wait_for(lambda: not alive(standby))
        assert alive(trainer)
    finally:
        process.kill()
        if trainer:
            os.kill(trainer, signal.SIGKILL)


# proves SUP-12, SUP-9: stopping ends the standby as well
def test_stopping_ends_the_standby(tmp_path: Path) -> None:
    place, waiting = tmp_path / "r", []

    def stop(pid: int) -> None:
        waiting.append(pid)
        os.kill(os.getpid(), signal.SIGTERM)

    loaded = warm(*killed_when(tmp_path / "go"), train={"step_seconds": 0.5})
    assert run_until(loaded, place, tmp_path / "go", "standby_ready", stop) is Outcome.STOPPED
    assert not Path(f"/proc/{waiting[0]}").exists()


# proves SUP-12: memory decides, and `off` is off
def test_without_memory_or_wish_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    off = warm(train={"step_seconds": 0.1}, launch={"standby": "off"})
    assert run(off, tmp_path / "off") is Outcome.COMPLETED
    assert kinds(tmp_path / "off") == []
    monkeypatch.setattr(supervisor.supervise.spare, "MADE_FOR_BYTES", 1 << 60)
    assert run(warm(train={"step_seconds": 0.1}), tmp_path / "tight") is Outcome.COMPLETED
    assert kinds(tmp_path / "tight") == ["standby_skipped"]
    assert "of memory are free, less than" in events(tmp_path / "tight", "standby_skipped")[0].message


# proves SUP-12: given up for the trainer's sake when memory runs short later
def test_a_waiting_standby_is_given_up_when_memory_runs_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "r"

    def short(pid: int) -> None:
        monkeypatch.setattr(supervisor.supervise.spare, "KEPT_FOR_BYTES", 1 << 60)

    loaded = warm({"at": 5, "do": "wait_for_file", "file": str(tmp_path / "go")}, train={"step_seconds": 0.1})
    assert run_until(loaded, place, tmp_path / "go", "standby_ready", short) is Outcome.COMPLETED
    assert kinds(place)[-1] == "standby_lost"
    assert "of memory are free" in events(place, "standby_lost")[0].message


# proves SUP-12, SUP-5: the tightest of machine and control group counts, and unknown stays unknown
@pytest.mark.parametrize(
    ("available", "limit", "used", "expected"),
    [
        (8 * GIB, None, 2 * GIB, 8 * GIB),
        (8 * GIB, 4 * GIB, 3 * GIB, GIB),
        (8 * GIB, 4 * GIB, 5 * GIB, 0),
        (8 * GIB, 4 * GIB, Unknown("?"), 8 * GIB),
        (Unknown("?"), 4 * GIB, 3 * GIB, Unknown("?")),
    ],
)
def test_free_memory(available: int | Unknown, limit: int | None, used: int | Unknown, expected: int | Unknown) -> None:
    none = Unknown("none")
    host = HostReading(16 * GIB, available, 0, 0, 0.0, none)
    group = CgroupReading(2, "/job", limit, "/job" if limit else None, used, 0)
    assert free_memory(Snapshot(0.0, 0.0, none, (), host, group, none)) == expected


# proves SUP-12: a standby that holds GPU memory is seen
def test_gpu_memory_of_a_process() -> None:
    none = Unknown("none")

    def gpu(index: int, *processes: GpuProcess) -> GpuReading:
        return GpuReading(index, *[none] * 11, processes)

    def at(*gpus: GpuReading) -> Snapshot:
        host = HostReading(none, none, none, none, none, none)
        return Snapshot(0.0, 0.0, gpus, (), host, none, none)

    both = at(gpu(0, GpuProcess(7, 300), GpuProcess(8, 5)), gpu(1, GpuProcess(7, 200)))
    assert gpu_memory_of(7, both) == 500
    assert gpu_memory_of(9, both) is None
    assert gpu_memory_of(7, at(gpu(0, GpuProcess(7, none)))) == 0
    assert gpu_memory_of(7, msgspec.structs.replace(both, gpus=none)) is None


# proves SUP-12: nothing that may know a driver which failed takes over
def test_after_a_lost_gpu_there_is_a_cold_launch(tmp_path: Path) -> None:
    place, file = tmp_path / "r", tmp_path / "go"
    lost = {"at": 6, "do": "exit", "code": 1, "attempt": 1, "stderr": "CUDA error: GPU is lost"}
    loaded = warm({"at": 5, "do": "wait_for_file", "file": str(file), "attempt": 1}, lost)
    assert run_until(loaded, place, file, "standby_ready") is Outcome.COMPLETED
    assert [failure.kind for failure in state(place).failures] == ["gpu_lost"]
    assert "standby_discarded" in kinds(place) and "standby_took_over" not in kinds(place)
