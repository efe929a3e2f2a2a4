"""The GPU sensor: the real pynvml on a compiled stand-in of the driver's library."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "stand_ins" / "nvml"))

from fake_driver import FACTS, GIB, FakeDriver
from scripted_runs import alive, wait_for

from supervisor.sensors.gpu import GpuSensor
from supervisor.sensors.holders import Holder, foreign_memory, holders_text, strangers
from supervisor.sensors.nvml_probe import decode_reasons
from supervisor.sensors.snapshot import GpuProcess, GpuReading, HostReading, ProcessMemory, Snapshot, Unknown


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    return FakeDriver(tmp_path / "driver")


@pytest.fixture
def sensor_of() -> Iterator[Callable[..., GpuSensor]]:
    """Makes sensors that are closed after the test."""
    made: list[GpuSensor] = []

    def make(driver: FakeDriver, **options: float) -> GpuSensor:
        made.append(GpuSensor(driver.environment, **options))
        return made[-1]

    yield make
    for sensor in made:
        sensor.close()


SensorOf = Callable[..., GpuSensor]


def only(gpus: tuple[GpuReading, ...] | Unknown) -> GpuReading:
    assert not isinstance(gpus, Unknown), gpus.reason
    (gpu,) = gpus
    return gpu


# proves SUP-5: memory, utilisation, temperature, throttling, ECC and compute mode by NVML
def test_a_healthy_card(driver: FakeDriver, sensor_of: SensorOf) -> None:
    gpu = only(sensor_of(driver).read())
    assert (gpu.index, gpu.name, gpu.uuid) == (0, FACTS["name"], "GPU-8f3a")
    assert (gpu.total_bytes, gpu.used_bytes, gpu.free_bytes) == (16 * GIB, 2 * GIB, 14 * GIB)
    assert (gpu.utilisation_percent, gpu.temperature_celsius, gpu.ecc_uncorrected) == (97, 71, 0)
    assert gpu.throttling == ("software power cap",)
    assert gpu.compute_mode == "default"
    assert (gpu.xids, gpu.processes) == ((), ())


# proves SUP-5: one probe answers several readings, and memory that rises is seen to rise
def test_memory_rises_over_readings(driver: FakeDriver, sensor_of: SensorOf) -> None:
    driver.set(gpus=[{**FACTS, "grow": GIB}])
    sensor = sensor_of(driver)
    used = []
    pids = set()
    for _ in range(4):
        used.append(only(sensor.read()).used_bytes)
        pids.add(sensor.probe_pid)
    assert used == [2 * GIB, 3 * GIB, 4 * GIB, 5 * GIB]
    assert len(pids) == 1


# proves SUP-5: which process holds the memory, by owner and name; a share that is not told is unknown
def test_processes_have_names(driver: FakeDriver, sensor_of: SensorOf) -> None:
    me = os.getpid()
    child = subprocess.Popen(["sleep", "60"])
    try:
        driver.set(
            f"process 0 compute {me} {5 * GIB}",
            f"process 0 graphics {child.pid} unknown",
            f"process 0 graphics {me} {GIB}",
            "process 0 compute 4194305 1000",
        )
        processes = only(sensor_of(driver).read()).processes
    finally:
        child.kill()
        child.wait()
    assert not isinstance(processes, Unknown)
    found = {process.pid: process for process in processes}
    assert found[me].used_bytes == 5 * GIB
    assert found[me].name == psutil.Process().name()
    assert found[me].owner == psutil.Process().username()
    assert found[child.pid].name == "sleep"
    assert isinstance(found[child.pid].used_bytes, Unknown)
    assert isinstance(found[4194305].name, Unknown)
    assert found[4194305].used_bytes == 1000


# proves SUP-5: Xids are delivered by the driver once and stay known
def test_xids(driver: FakeDriver, sensor_of: SensorOf) -> None:
    sensor = sensor_of(driver)
    assert only(sensor.read()).xids == ()
    driver.set("xid 0 31", "xid 0 79", gpus=[{**FACTS, "ecc": 3}])
    gpu = only(sensor.read())
    assert (gpu.xids, gpu.ecc_uncorrected) == ((31, 79), 3)
    assert only(sensor.read()).xids == (31, 79)


# proves SUP-5: unknown is reported with its reason, never as zero
def test_what_a_card_does_not_support_is_unknown(driver: FakeDriver, sensor_of: SensorOf) -> None:
    driver.set("fail nvmlDeviceRegisterEvents 3", gpus=[{"name": "GB10"}])
    gpu = only(sensor_of(driver).read())
    for field in GpuReading.__struct_fields__:
        value = getattr(gpu, field)
        if field not in ("index", "name", "processes"):
            assert isinstance(value, Unknown), field
            assert value.reason in ("NVML: Not Supported",), field
    assert gpu.processes == ()


# proves SUP-5: old drivers lack functions; their older forms answer
def test_a_driver_without_the_newer_functions(tmp_path: Path, sensor_of: SensorOf) -> None:
    old = FakeDriver(
        tmp_path / "old",
        without=[
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetTemperatureV",
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetGraphicsRunningProcesses_v3",
            "nvmlDeviceGetTotalEccErrors",
        ],
    )
    old.set(f"process 0 compute {os.getpid()} 77")
    gpu = only(sensor_of(old).read())
    assert (gpu.used_bytes, gpu.temperature_celsius) == (2 * GIB, 71)
    assert gpu.throttling == ("software power cap",)
    assert not isinstance(gpu.processes, Unknown)
    assert [process.used_bytes for process in gpu.processes] == [77]
    assert gpu.ecc_uncorrected == Unknown("NVML: Function Not Found")


# proves SUP-5: one lost card of two does not hide the other
def test_one_card_of_two_is_lost(driver: FakeDriver, sensor_of: SensorOf) -> None:
    driver.set(gpus=[FACTS, {**FACTS, "uuid": "GPU-2"}])
    sensor = sensor_of(driver)
    found = sensor.read()
    assert not isinstance(found, Unknown)
    assert [gpu.uuid for gpu in found] == ["GPU-8f3a", "GPU-2"]
    driver.set("fail nvmlDeviceGetUUID 15", gpus=[FACTS, FACTS])
    assert only_uuids(sensor) == [Unknown("NVML: GPU is lost")] * 2


def only_uuids(sensor: GpuSensor) -> list[str | Unknown]:
    found = sensor.read()
    assert not isinstance(found, Unknown)
    return [gpu.uuid for gpu in found]


@pytest.mark.parametrize(("code", "reason"), [(9, "NVML: Driver Not Loaded"), (18, "version mismatch")])
def test_no_driver_is_unknown_with_its_reason(driver: FakeDriver, sensor_of: SensorOf, code: int, reason: str) -> None:
    driver.set(f"driver {code}")
    sensor = sensor_of(driver)
    found = sensor.read()
    assert isinstance(found, Unknown)
    assert reason in found.reason
    assert not sensor.present
    # It is not asked again at once.
    driver.set()
    assert sensor.read() == found


def test_no_library_is_unknown(driver: FakeDriver, sensor_of: SensorOf) -> None:
    driver.environment["LD_LIBRARY_PATH"] = "/nowhere"
    found = sensor_of(driver).read()
    if not isinstance(found, Unknown):
        pytest.skip("this machine has a real NVIDIA driver")
    assert found.reason in ("NVML: NVML Shared Library Not Found", "NVML: Driver Not Loaded")


# proves SUP-5: a driver that never answers costs no more than the deadline and leaves no process behind
@pytest.mark.parametrize(
    ("line", "readings"),
    [("hang nvmlInitWithFlags 1", 0), ("hang nvmlDeviceGetMemoryInfo_v2 3", 2), ("hang nvmlEventSetWait_v2 2", 1)],
)
def test_a_hanging_driver(driver: FakeDriver, sensor_of: SensorOf, line: str, readings: int) -> None:
    driver.set(line)
    sensor = sensor_of(driver, first_deadline=3.0 if readings == 0 else 30.0, deadline=1.0, hang_retry=0.0)
    for _ in range(readings):
        only(sensor.read())
    sensor.request()
    pid = sensor.probe_pid
    assert pid is not None
    began = time.monotonic()
    assert sensor.poll() is None
    assert time.monotonic() - began < 0.5  # looking does not wait
    found = sensor.read()
    assert isinstance(found, Unknown)
    assert "the NVIDIA driver hangs: no answer within" in found.reason
    wait_for(lambda: not alive(pid))
    sensor.close()
    assert not psutil.pid_exists(pid)  # not even a zombie
    # A driver that has come to itself is read again, by another probe.
    driver.set()
    sensor = sensor if readings == 0 else sensor_of(driver)
    wait_for(lambda: not isinstance(sensor.read(), Unknown))
    assert sensor.probe_pid != pid


# proves SUP-5: a probe that the kernel won't kill is let be; no second one is started beside it
def test_a_probe_that_cannot_be_killed(driver: FakeDriver, sensor_of: SensorOf) -> None:
    freezer = Path("/sys/fs/cgroup/freezer") / f"mens-test-{os.getpid()}"
    try:
        freezer.mkdir()
    except OSError as error:
        pytest.skip(f"no version 1 freezer here, whose frozen processes survive SIGKILL: {error.strerror}")
    sensor = sensor_of(driver, deadline=0.5, hang_retry=0.0)
    only(sensor.read())
    pid = sensor.probe_pid
    try:
        (freezer / "cgroup.procs").write_text(str(pid))
        (freezer / "freezer.state").write_text("FROZEN")
        found = sensor.read()
        assert isinstance(found, Unknown)
        assert "no answer within" in found.reason

        def verdict() -> bool:
            began = time.monotonic()
            said = sensor.read()
            assert time.monotonic() - began < 0.5
            assert sensor.probe_pid == pid
            return isinstance(said, Unknown) and "cannot even be killed" in said.reason

        wait_for(verdict)
    finally:
        (freezer / "freezer.state").write_text("THAWED")
        wait_for(lambda: sensor.probe_pid is None)
        wait_for(lambda: not (freezer / "cgroup.procs").read_text())
        freezer.rmdir()
    wait_for(lambda: not isinstance(sensor.read(), Unknown))


def test_a_probe_that_crashes_in_the_driver(driver: FakeDriver, sensor_of: SensorOf) -> None:
    driver.set("crash nvmlDeviceGetName 2")
    sensor = sensor_of(driver, hang_retry=0.0)
    only(sensor.read())
    assert sensor.read() == Unknown("the probe of the NVIDIA driver ended by SIGSEGV")
    driver.set()
    wait_for(lambda: not isinstance(sensor.read(), Unknown))


def test_a_probe_killed_while_idle_is_replaced(driver: FakeDriver, sensor_of: SensorOf) -> None:
    sensor = sensor_of(driver)
    only(sensor.read())
    pid = sensor.probe_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid))
    only(sensor.read())
    assert sensor.probe_pid not in (pid, None)


# proves SUP-10: a probe in the middle of a hang does not outlive a supervisor that was killed
def test_the_probe_dies_with_its_parent(driver: FakeDriver) -> None:
    driver.set("hang nvmlDeviceGetCount_v2 1")
    code = (
        "import time; from supervisor.sensors.gpu import GpuSensor; s = GpuSensor(); s.request(); "
        "time.sleep(1.5); print(s.probe_pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], env=driver.environment, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not alive(pid))


def test_the_probe_by_hand_prints_one_line(driver: FakeDriver) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "supervisor.sensors.nvml_probe"],
        env=driver.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.count("\n") == 1
    assert '"used_bytes": 2147483648' in done.stdout


def test_throttle_reasons_in_words() -> None:
    assert decode_reasons(0) == decode_reasons(1) == []
    assert decode_reasons(0x41) == ["hardware thermal slowdown"]
    assert decode_reasons(0x88) == ["hardware slowdown", "hardware power brake"]
    assert decode_reasons(0x8000) == ["0x8000"]


def gpu(index: int, processes: tuple[GpuProcess, ...] | Unknown) -> GpuReading:
    no = Unknown("not asked")
    return GpuReading(index, no, no, no, no, no, no, no, no, no, no, no, processes)


FIREFOX = GpuProcess(4711, 1503238553, "firefox", "anna")
OURS = GpuProcess(10, 9 * GIB, "python", "anna")
HIDDEN = GpuProcess(999, Unknown("not told"), Unknown("not here"), Unknown("not here"))


# proves SUP-5: "firefox holds 1.4 GiB"
def test_who_else_holds_the_memory() -> None:
    found = foreign_memory([gpu(0, (OURS, HIDDEN, FIREFOX)), gpu(1, (OURS,))], {10})
    assert not isinstance(found, Unknown)
    assert [holder.pid for holder in found] == [4711, 999]
    assert [holder.certain for holder in found] == [True, False]
    assert holders_text(found) == (
        "firefox (process 4711 of anna) holds 1.4 GiB of GPU 0; "
        "process 999, which cannot be seen from here, holds an unknown amount of GPU 0"
    )


def test_unknown_holders_are_not_nobody() -> None:
    lost = Unknown("GPU is lost")
    assert foreign_memory(lost, ()) == lost
    assert foreign_memory([gpu(0, ()), gpu(1, lost)], ()) == lost
    found = foreign_memory([gpu(0, (FIREFOX,)), gpu(1, lost)], ())
    assert found == (Holder(0, 4711, "firefox", "anna", 1503238553),)
    assert foreign_memory([gpu(0, ())], ()) == ()


# A dead trainer's memory may still be on the card; it is not somebody else's.
def test_strangers_after_the_trainers_death() -> None:
    no = Unknown("not asked")

    def snapshot(trainer: tuple[ProcessMemory, ...] | Unknown, *processes: GpuProcess) -> Snapshot:
        return Snapshot(0.0, 0.0, (gpu(0, processes),), (), HostReading(no, no, no, no, no, trainer), no, no)

    before = snapshot((ProcessMemory(10, "python", 1),), OURS)
    after = snapshot(Unknown("no trainer is running"), OURS, FIREFOX)
    found = strangers([before, after])
    assert not isinstance(found, Unknown)
    assert [holder.name for holder in found] == ["firefox"]
