"""GPU memory that is not there: waited for, named, and never answered by degrading the run. The real pynvml speaks to
the stand-in driver; the processes are real."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_runs import config, document, events, start_supervisor, state, wait_for

sys.path.insert(0, str(Path(__file__).parents[1] / "stand_ins" / "nvml"))

from fake_driver import GIB, FakeDriver

from supervisor.protocol.paths import RunPaths
from supervisor.sensors import observe
from supervisor.sensors.report import read_report
from supervisor.sensors.snapshot import Unknown
from supervisor.state import Outcome
from supervisor.status import read_status, render_status
from supervisor.supervise import RunRequest, gpu_wait, supervise
from supervisor.yaml_source import read_yaml, render_yaml

OOM = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 16.00 GiB of "
    "which 100.00 MiB is free. Including non-PyTorch memory, this process has 14.20 GiB memory in use."
)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = FakeDriver(tmp_path / "driver")
    for name in ("LD_LIBRARY_PATH", "NVML_SCENARIO"):
        monkeypatch.setenv(name, made.environment[name])
    monkeypatch.setattr(observe, "SNAPSHOT_SECONDS", 0.2)
    monkeypatch.setattr(gpu_wait, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(gpu_wait, "TELL_SECONDS", 0.2)
    return made


@pytest.fixture
def firefox(tmp_path: Path) -> Iterator[int]:
    """The pid of a process of that name."""
    program = Path(shutil.copy(shutil.which("sleep") or "/bin/sleep", tmp_path / "firefox"))
    process = subprocess.Popen([program, "600"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def seen(place: Path) -> bool:
    """Have the sensors read the card since the trainer started?"""
    report = read_report(RunPaths(place).sensors)
    return report is not None and not isinstance(report.snapshot.gpus, Unknown)


class Runner:
    """A run whose first attempt runs out of GPU memory in step 5, once the sensors have read the card."""

    def __init__(self, place: Path, driver: FakeDriver, frees: str = "waiting") -> None:
        self.place, self.driver, self.frees = place, driver, frees
        self.go = place.with_suffix(".go")
        self.during: list[str] = []
        self.faults = (
            {"at": 4, "do": "wait_for_file", "file": str(self.go)},
            {"at": 5, "do": "fail", "kind": "cuda_oom", "message": OOM, "attempt": 1},
        )

    def tick(self) -> None:
        if seen(self.place):
            self.go.touch()
        if len(events(self.place, "waiting")) > 1 and not self.during:
            self.during.append(render_status(read_status(self.place)))
            if self.frees == "waiting":
                self.driver.set()

    def run(self, **sections: dict[str, object]) -> Outcome:
        return supervise(RunRequest(config(*self.faults, **sections), self.place), self.tick)


# proves SUP-3, SUP-4: a browser on the card is waited out and named; nothing about the run is changed for it
def test_foreign_memory_is_waited_out(tmp_path: Path, driver: FakeDriver, firefox: int) -> None:
    driver.set(f"process 0 graphics {firefox} {3 * GIB // 2}")
    run = Runner(tmp_path / "r", driver)
    assert run.run() is Outcome.COMPLETED
    found = state(run.place)
    assert [failure.kind for failure in found.failures] == ["cuda_oom_foreign"]
    assert f"firefox (process {firefox} of " in found.failures[0].message
    (taken,) = found.relief
    assert (taken.rung, taken.patches, taken.lossless, taken.in_vain) == ("wait_for_foreign_vram", {}, True, False)
    assert "for GPU memory: firefox (process" in taken.price
    first, still, *_ = events(run.place, "waiting")
    assert first.message.startswith(f"waiting for GPU memory: firefox (process {firefox} of ")
    assert first.message.endswith("holds 1.5 GiB of GPU 0. At most 30 m 00 s, then lossless relief is taken instead")
    assert still.message.startswith("still waiting for GPU memory (") and "firefox" in still.message
    (end,) = events(run.place, "waited")
    assert end.data["freed"] and end.message.startswith("GPU memory is free again after ")
    documents = [read_yaml(RunPaths(run.place).attempt(number).effective)[0] for number in (1, 2)]
    assert documents[0] == documents[1]
    assert "wait_for_foreign_vram before attempt 2" in render_status(read_status(run.place))


# proves SUP-3: when nobody gives it up, the wait ends and lossless relief makes do with the rest; all of it is said
def test_a_wait_in_vain_falls_to_lossless_relief(tmp_path: Path, driver: FakeDriver, firefox: int) -> None:
    driver.set(f"process 0 graphics {firefox} {3 * GIB // 2}")
    run = Runner(tmp_path / "r", driver, frees="never")
    assert run.run(relief={"foreign_wait_minutes": 0.02}) is Outcome.COMPLETED
    found = state(run.place)
    assert [(taken.rung, taken.in_vain) for taken in found.relief] == [
        ("wait_for_foreign_vram", True),
        ("halve_micro_batch", False),
    ]
    (end,) = events(run.place, "waited")
    assert not end.data["freed"]
    assert end.message.startswith("waited 1 s for GPU memory in vain: firefox (process")
    assert [event.data["rung"] for event in events(run.place, "relief")] == ["halve_micro_batch"]


# proves SUP-3: with nothing lossless left the run stops and names who holds the card, rather than train something else
def test_nothing_lossless_left(tmp_path: Path, driver: FakeDriver, firefox: int) -> None:
    driver.set(f"process 0 graphics {firefox} {3 * GIB // 2}")
    run = Runner(tmp_path / "r", driver, frees="never")
    train = {"per_device_train_batch_size": 1}
    assert run.run(relief={"foreign_wait_minutes": 0.01}, train=train) is Outcome.GAVE_UP
    found = state(run.place)
    assert found.attempt == 1
    for words in ("cuda_oom_foreign at step 4", "firefox (process", "in vain", "Close the other programs on the card"):
        assert words in found.explanation


# proves SUP-3: the user's ladder decides; without the rung nobody is waited for
def test_the_wait_can_be_taken_out_of_the_ladder(tmp_path: Path, driver: FakeDriver, firefox: int) -> None:
    driver.set(f"process 0 graphics {firefox} {3 * GIB // 2}")
    run = Runner(tmp_path / "r", driver, frees="never")
    assert run.run(relief={"ladder": ["halve_micro_batch"]}) is Outcome.COMPLETED
    assert not events(run.place, "waiting")
    assert [taken.rung for taken in state(run.place).relief] == ["halve_micro_batch"]


# proves SUP-3, SUP-9: `mens-sup run` itself waits, stops at once when asked to, and the next call goes on
def test_a_stop_request_ends_the_wait(tmp_path: Path, driver: FakeDriver, firefox: int) -> None:
    driver.set(f"process 0 graphics {firefox} {3 * GIB // 2}")
    place = tmp_path / "r"
    run = Runner(place, driver)
    file = tmp_path / "job.yaml"
    file.write_text(render_yaml(document(*run.faults)))
    process = start_supervisor(file, place)
    try:
        wait_for(lambda: place.exists() and seen(place), 60)
        run.go.touch()
        wait_for(lambda: events(place, "waiting"), 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) != 0
    finally:
        process.kill()
        process.wait()
    assert state(place).outcome is Outcome.STOPPED
    assert state(place).relief == []
    assert "waiting for GPU memory: firefox" in place.with_suffix(".log").read_text()
    again = start_supervisor(file, place)
    assert again.wait(60) == 0
    assert state(place).outcome is Outcome.COMPLETED


class OurDead:
    """A run whose trainer is killed while it holds memory, which the driver does not let go of at once."""

    def __init__(self, place: Path, driver: FakeDriver, *, lets_go: bool) -> None:
        self.place, self.driver, self.lets_go = place, driver, lets_go
        self.go = place.with_suffix(".go")
        self.holding = 0

    def tick(self) -> None:
        if not self.holding and self.place.exists() and seen(self.place):
            self.holding = state(self.place).trainer_pid
            self.driver.set(f"process 0 compute {self.holding} {7 * GIB}")
            self.go.touch()
        if self.lets_go and events(self.place, "waiting"):
            self.driver.set()

    def run(self) -> Outcome:
        faults = ({"at": 4, "do": "wait_for_file", "file": str(self.go)}, {"at": 5, "do": "kill9", "attempt": 1})
        return supervise(RunRequest(config(*faults), self.place), self.tick)


# proves SUP-9: the next trainer is not started before the driver has freed what the dead one held
def test_memory_of_our_dead_is_waited_for(tmp_path: Path, driver: FakeDriver) -> None:
    run = OurDead(tmp_path / "r", driver, lets_go=True)
    assert run.run() is Outcome.COMPLETED
    (event,) = events(run.place, "waiting")
    assert event.message == (
        f"waiting for the GPU memory of the ended trainer: process {run.holding} holds 7.0 GiB of GPU 0"
    )
    kinds = [each.kind for each in sorted(
        (each for kind in ("waiting", "waited", "attempt_started") for each in events(run.place, kind)),
        key=lambda each: each.time,
    )]  # fmt: skip
    assert kinds == ["attempt_started", "waiting", "waited", "attempt_started"]


# proves SUP-9: memory that a driver never frees gets a name and the verdict that helps
def test_memory_of_our_dead_that_never_comes_back(
    tmp_path: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_wait, "RELEASE_SECONDS", 0.5)
    run = OurDead(tmp_path / "r", driver, lets_go=False)
    assert run.run() is Outcome.GAVE_UP
    found = state(run.place)
    assert found.attempt == 1
    for words in (f"process {run.holding} holds 7.0 GiB of GPU 0", "Reboot the machine", "newest verified checkpoint"):
        assert words in found.explanation
