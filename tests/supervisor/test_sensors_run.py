"""The sensors in a supervised run: real processes, the stand-in driver under the real pynvml."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from scripted_runs import config, events, run, wait_for

sys.path.insert(0, str(Path(__file__).parents[1] / "stand_ins" / "nvml"))

from fake_driver import GIB, FakeDriver

from supervisor.diagnosis.diagnose import diagnose
from supervisor.diagnosis.values import Diagnosis, Evidence
from supervisor.protocol.paths import RunPaths
from supervisor.sensors import forecast, observe
from supervisor.sensors.gpu import GpuSensor
from supervisor.sensors.history import kernel_lines
from supervisor.sensors.report import read_report
from supervisor.sensors.snapshot import Unknown
from supervisor.state import Outcome
from supervisor.status import read_status, render_status
from supervisor.supervise import RunRequest, supervise


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "SNAPSHOT_SECONDS", 0.2)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = FakeDriver(tmp_path / "driver")
    for name in ("LD_LIBRARY_PATH", "NVML_SCENARIO"):
        monkeypatch.setenv(name, made.environment[name])
    return made


# proves SUP-5: a run on a card that somebody else uses too says who it is, once, and status shows the machine
def test_a_run_sees_who_else_holds_the_card(tmp_path: Path, driver: FakeDriver, quick: None) -> None:
    place = tmp_path / "r"
    stranger = psutil.Process().ppid()
    driver.set(f"process 0 graphics {stranger} {3 * GIB // 2}")
    seen: list[str] = []
    done = tmp_path / "done"

    def on_tick() -> None:
        if not seen and events(place, "alarm"):
            seen.append(render_status(read_status(place)))
            seen.append(json.dumps(read_status(place)))
            done.touch()

    loaded = config({"at": 3, "do": "wait_for_file", "file": str(done)})
    assert supervise(RunRequest(loaded, place), on_tick) is Outcome.COMPLETED
    (alarm,) = events(place, "alarm")
    assert alarm.message.endswith("holds 1.5 GiB of GPU 0")
    assert alarm.data["pid"] == stranger
    assert psutil.Process(stranger).name() in alarm.message
    assert "GPU 0 2.0 GiB of 16.0 GiB 71 C, RAM free" in seen[0]
    assert json.loads(seen[1])["sensors"]["snapshot"]["gpus"][0]["used_bytes"] == 2 * GIB
    # The last look is after the trainer's end; nothing of the probe is left.
    report = read_report(RunPaths(place).sensors)
    assert report is not None
    assert report.snapshot.host.trainer == Unknown("no trainer is running")
    assert not living_probes()


# proves SUP-5: a driver that hangs delays no step and no stop of the run, and is named
def test_a_run_beside_a_hanging_driver(
    tmp_path: Path, driver: FakeDriver, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "r"
    driver.set("hang nvmlDeviceGetMemoryInfo_v2 2")
    monkeypatch.setattr("supervisor.supervise.sensing.GpuSensor", lambda: GpuSensor(deadline=0.5))
    done = tmp_path / "done"

    def on_tick() -> None:
        if events(place, "alarm"):
            done.touch()

    loaded = config({"at": 3, "do": "wait_for_file", "file": str(done)})
    assert supervise(RunRequest(loaded, place), on_tick) is Outcome.COMPLETED
    (alarm,) = events(place, "alarm")
    assert alarm.message.startswith("the GPUs cannot be read any more: the NVIDIA driver hangs: no answer within")
    assert not living_probes()


# proves SUP-5: without a driver the run goes on, and its status says why the GPUs are unknown
def test_a_run_without_a_driver(tmp_path: Path, driver: FakeDriver) -> None:
    driver.set("driver 9")
    place = tmp_path / "r"
    first: list[str] = []

    def on_tick() -> None:
        report = read_report(RunPaths(place).sensors)
        if not first and report is not None and isinstance(report.snapshot.gpus, Unknown):
            first.append(report.snapshot.gpus.reason)

    assert supervise(RunRequest(config(), place), on_tick) is Outcome.COMPLETED
    assert first
    report = read_report(RunPaths(place).sensors)
    assert report is not None
    assert isinstance(report.snapshot.gpus, Unknown)
    assert not events(place, "alarm")


# The snapshots of an attempt begin with one from its start: counters are only worth something as differences.
def test_snapshots_of_an_attempt(tmp_path: Path, quick: None) -> None:
    sensors = observe.Sensors({"run directory": tmp_path}, GpuSensor())
    try:
        sensors.expect()
        first = sensors.begin(psutil.Process().pid)
        assert psutil.Process().pid in first.trainer_pids
        for _ in range(20):
            wait_for(lambda: sensors.tick() is not None)
        last = sensors.end()
        found = sensors.snapshots
        assert len(found) == observe.KEPT_SNAPSHOTS
        assert (found[0], found[-1]) == (first, last)
        assert all(before.monotonic < after.monotonic for before, after in pairwise(found))
        again = sensors.begin(psutil.Process().pid)
        assert sensors.snapshots == (again,)
    finally:
        sensors.close()


# proves SUP-5: a trainer that died before anybody looked still has its kernel line
def test_a_death_before_the_first_look(tmp_path: Path) -> None:
    sensors = observe.Sensors({"run directory": tmp_path}, GpuSensor())
    try:
        sensors.expect()
        trainer = subprocess.Popen([sys.executable, "-c", "import ctypes; ctypes.string_at(0)"])
        os.waitid(os.P_PID, trainer.pid, os.WEXITED | os.WNOWAIT)
        sensors.begin(trainer.pid)
        last = sensors.end()
        trainer.wait()
        words = kernel_lines((*sensors.snapshots, last))
        if words is None:
            pytest.skip("the kernel log cannot be read here")
        assert "segfault at 0" in words
    finally:
        sensors.close()


def living_probes() -> list[psutil.Process]:
    children = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in children if "nvml_probe" in " ".join(child.cmdline())]


def test_damaged_or_missing_sensor_files_are_unknown(tmp_path: Path) -> None:
    place = tmp_path / "r"
    assert run(config(), place) is Outcome.COMPLETED
    RunPaths(place).sensors.write_bytes(b'{"snapshot": {"ti')
    assert read_status(place)["sensors"] is None
    RunPaths(place).sensors.unlink()
    assert read_status(place)["sensors"] is None


# proves SUP-6: a real crash in native code leaves its kernel line with the attempt's evidence
def test_the_evidence_of_an_attempt_has_its_snapshots(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Evidence] = []

    def look(evidence: Evidence) -> Diagnosis:
        found.append(evidence)
        return diagnose(evidence)

    monkeypatch.setattr("supervisor.supervise.loop.diagnose", look)
    assert run(config({"at": 4, "do": "segfault", "attempt": 1}), tmp_path / "r") is Outcome.COMPLETED
    first, last = found
    assert first.signal == 11
    assert len(first.snapshots) >= 2
    assert first.snapshots[0].trainer_pids
    if first.kernel_log is None:
        pytest.skip("the kernel log cannot be read here")
    assert "segfault at 0" in first.kernel_log
    # The second attempt starts with a clean sheet.
    assert last.kernel_log == ""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real tmpfs of 16 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m,mode=0777", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


# proves SUP-13: a disk that somebody fills up while the run trains is foretold, once, before it is full
def test_a_disk_that_fills_up_is_foretold(small_disk: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "MIN_SPAN_SECONDS", 1.0)
    place, done, stranger = small_disk / "r", small_disk / "done", small_disk / "somebody-elses"
    shown: list[str] = []

    def on_tick() -> None:
        with open(stranger, "ab") as file:
            file.write(bytes(64 << 10))
        if events(place, "disk_forecast") and not done.exists():
            shown.append(render_status(read_status(place)))
            done.touch()

    loaded = config({"at": 2, "do": "wait_for_file", "file": str(done)})
    assert supervise(RunRequest(loaded, place), on_tick) is Outcome.COMPLETED
    (event,) = [event for event in events(place, "disk_forecast") if event.data["mount"] == str(small_disk)]
    assert event.message.startswith(f"{small_disk} (run directory) will be full in ")
    assert 10 < event.data["seconds"] < 600
    assert f"{small_disk} full in " in shown[0]
