"""What a person hears about, and how often."""

from typing import Any

import msgspec
import pytest

from supervisor.sensors.forecast import Forecast
from supervisor.sensors.history import kernel_lines, oom_kills, own_pids
from supervisor.sensors.report import MountForecast, SensorReport
from supervisor.sensors.snapshot import (
    CgroupReading,
    GpuProcess,
    GpuReading,
    HostReading,
    KernelEvent,
    MountReading,
    ProcessMemory,
    Snapshot,
    Unknown,
)
from supervisor.supervise.alarms import REPEAT_SECONDS, Alarm, AlarmBook, alarms
from supervisor.view.resources import gpu_problem, resource_parts

GIB = 1 << 30
NO = Unknown("not asked")
HOST = HostReading(32 * GIB, 20 * GIB, 0, 0, 1.0, (ProcessMemory(10, "python", 4 * GIB),))
GROUP = CgroupReading(2, "/cg/run", 16 * GIB, "/cg", 8 * GIB, 0)
DISK = MountReading("/data", ("run directory", "model cache"), 100 * GIB, 2 * GIB, 5000)
OURS = GpuProcess(10, 9 * GIB, "python", "anna")
FIREFOX = GpuProcess(4711, 1503238553, "firefox", "anna")
GPU = GpuReading(0, "GPU-1", "RTX", 16 * GIB, 11 * GIB, 5 * GIB, 90, 71, (), 0, "default", (), (OURS,))


def snapshot(**changes: Any) -> Snapshot:
    calm = Snapshot(1000.0, 50.0, (GPU,), (DISK,), HOST, GROUP, ())
    return msgspec.structs.replace(calm, **changes)


def gpu(**changes: Any) -> tuple[GpuReading, ...]:
    return (msgspec.structs.replace(GPU, **changes),)


def messages(before: Snapshot | None, now: Snapshot, *forecasts: MountForecast) -> list[str]:
    return [alarm.message for alarm in alarms(before, now, forecasts)]


def test_a_calm_machine_raises_no_alarm() -> None:
    assert messages(snapshot(), snapshot()) == []
    assert messages(None, snapshot(), MountForecast("/data", None, None)) == []
    # Unknown is no alarm either where it has been unknown all along.
    nothing = snapshot(gpus=NO, cgroup=NO, kernel=NO, host=HostReading(NO, NO, NO, NO, NO, NO))
    assert messages(nothing, nothing) == []


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ({}, {"gpus": gpu(xids=(79,))}, "GPU 0 reports the critical error Xid 79"),
        ({}, {"gpus": gpu(ecc_uncorrected=2)}, "GPU 0 had 2 memory error(s) that ECC could not correct"),
        (
            {},
            {"gpus": gpu(throttling=("hardware thermal slowdown",), temperature_celsius=93)},
            "GPU 0 is slowed down at 93 C: hardware thermal slowdown",
        ),
        (
            {"gpus": gpu(processes=(OURS, FIREFOX))},
            {"gpus": gpu(processes=(OURS, FIREFOX))},
            "firefox (process 4711 of anna) holds 1.4 GiB of GPU 0",
        ),
        ({}, {"gpus": Unknown("NVML: GPU is lost")}, "the GPUs cannot be read any more: NVML: GPU is lost"),
        (
            {"gpus": NO},
            {"gpus": Unknown("the NVIDIA driver hangs: no answer within 5 s")},
            "the GPUs cannot be read any more: the NVIDIA driver hangs: no answer within 5 s",
        ),
        (
            {},
            {"host": msgspec.structs.replace(HOST, ram_available=GIB)},
            "memory is nearly used up: 1.0 GiB of 32.0 GiB available, no swap; the trainer holds 4.0 GiB",
        ),
        (
            {},
            {"cgroup": msgspec.structs.replace(GROUP, used_bytes=31 * GIB // 2 + GIB // 4)},
            "the control group /cg holds 15.8 GiB of its limit of 16.0 GiB",
        ),
        (
            {},
            {"cgroup": msgspec.structs.replace(GROUP, oom_kills=1)},
            "the kernel ended 1 process(es) in /cg/run for want of memory",
        ),
        (
            {},
            {"kernel": (KernelEvent("oom_kill", "Out of memory: Killed process 10 (python)", 1.0, 10),)},
            "the kernel says: Out of memory: Killed process 10 (python)",
        ),
    ],
)
# proves SUP-5: what goes wrong on the machine is said when it begins
def test_one_alarm_each(before: dict[str, Any], now: dict[str, Any], message: str) -> None:
    assert messages(snapshot(**before), snapshot(**now)) == [message]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"gpus": gpu(xids=(79,))}, {"gpus": gpu(xids=(79,))}),
        ({"gpus": gpu(ecc_uncorrected=2)}, {"gpus": gpu(ecc_uncorrected=2)}),
        ({}, {"gpus": gpu(ecc_uncorrected=NO)}),
        ({"gpus": gpu(ecc_uncorrected=NO)}, {"gpus": gpu(ecc_uncorrected=7)}),
        ({}, {"gpus": gpu(throttling=("software power cap",))}),
        # a child of the trainer that was started after the process tree was read looks like a stranger once
        ({}, {"gpus": gpu(processes=(OURS, FIREFOX))}),
        # without a trainer nobody can be told apart from it
        (
            {"gpus": gpu(processes=(FIREFOX,)), "host": msgspec.structs.replace(HOST, trainer=NO)},
            {"gpus": gpu(processes=(FIREFOX,)), "host": msgspec.structs.replace(HOST, trainer=NO)},
        ),
        # in a container our own trainer has a pid that cannot be seen
        (
            {"gpus": gpu(processes=(GpuProcess(999, 9 * GIB),))},
            {"gpus": gpu(processes=(GpuProcess(999, 9 * GIB, NO, NO),))},
        ),
        ({}, {"host": msgspec.structs.replace(HOST, ram_available=GIB, swap_total=8 * GIB, swap_free=7 * GIB)}),
        ({}, {"cgroup": msgspec.structs.replace(GROUP, path="/cg/other", oom_kills=4)}),
        ({}, {"cgroup": msgspec.structs.replace(GROUP, limit_bytes=None, used_bytes=31 * GIB)}),
        ({}, {"kernel": (KernelEvent("crash", "firefox[4711]: segfault at 0", 1.0, 4711),)}),
    ],
)
def test_no_false_alarm(before: dict[str, Any], now: dict[str, Any]) -> None:
    assert messages(snapshot(**before), snapshot(**now)) == []


def test_a_crash_of_our_own_process_is_told() -> None:
    event = KernelEvent("crash", "python[10]: segfault at 0", 1.0, 10)
    ended = msgspec.structs.replace(HOST, trainer=NO)
    assert len(messages(snapshot(), snapshot(kernel=(event,), host=ended))) == 1


def full_in(seconds: float) -> MountForecast:
    return MountForecast("/data", Forecast(seconds, 2 * GIB / seconds), None)


# proves SUP-13: "full in 3 h 10 m" is said early, again under an hour, and not at every tick
def test_the_disk_forecast_is_said_at_six_hours_and_at_one() -> None:
    book = AlarmBook()
    said: list[str] = []
    for tick in range(4000):
        left = 11 * 3600.0 - 10.0 * tick
        if left <= 0:
            break
        found = alarms(snapshot(), snapshot(), [full_in(left)])
        said += [alarm.message for alarm in book.new(found, 10.0 * tick)]
    assert said == [
        "/data (run directory, model cache) will be full in 5 h 59 m: 2.0 GiB free, 5.7 MiB less each minute",
        "/data (run directory, model cache) will be full in 59 m 50 s: 2.0 GiB free, 34.2 MiB less each minute",
    ]
    (alarm,) = alarms(None, snapshot(), [full_in(11400.0)])
    assert (alarm.kind, alarm.data) == ("disk_forecast", {"mount": "/data", "seconds": 11400})
    assert "full in 3 h 10 m" in alarm.message


def test_inodes_run_out_too() -> None:
    found = MountForecast("/data", Forecast(20_000.0, 1.0), Forecast(1800.0, 2.0))
    assert messages(None, snapshot(), found) == [
        "/data (run directory, model cache) will have no inodes left in 30 m 00 s: 5 000 free, 120 less each minute"
    ]


def test_the_same_news_comes_again_only_after_hours() -> None:
    book = AlarmBook()
    alarm = Alarm("a", "alarm", "text")
    assert book.new([alarm, alarm], 0.0) == (alarm,)
    assert book.new([alarm], REPEAT_SECONDS - 1) == ()
    assert book.new([alarm, Alarm("b", "alarm", "text")], REPEAT_SECONDS - 1) == (Alarm("b", "alarm", "text"),)
    assert book.new([alarm], REPEAT_SECONDS) == (alarm,)


def test_a_flood_of_io_errors_is_one_piece_of_news() -> None:
    flood = tuple(KernelEvent("io_error", f"I/O error, dev sda, sector {number}", 1.0) for number in range(50))
    assert len(AlarmBook().new(alarms(None, snapshot(kernel=flood), []), 0.0)) == 1


# proves SUP-5: GPU memory, RAM and the forecast in the view; what is unknown shows as such
def test_resources_in_words() -> None:
    report = SensorReport(snapshot(), (full_in(11400.0), MountForecast("/tmp", None, None)))
    assert list(resource_parts(report)) == [
        "GPU 0 11.0 GiB of 16.0 GiB 71 C",
        "RAM free 20.0 GiB of 32.0 GiB",
        "/data full in 3 h 10 m",
    ]
    assert gpu_problem(report) is None
    blind = SensorReport(snapshot(gpus=gpu(used_bytes=NO, temperature_celsius=NO)), ())
    assert next(resource_parts(blind)) == "GPU 0 ? of 16.0 GiB"
    without = SensorReport(snapshot(gpus=Unknown("NVML: Driver Not Loaded")), ())
    assert list(resource_parts(without)) == ["RAM free 20.0 GiB of 32.0 GiB"]
    assert gpu_problem(without) == "NVML: Driver Not Loaded"
    assert msgspec.json.decode(msgspec.json.encode(report), type=SensorReport) == report


# proves SUP-6: what the sensors saw over an attempt reaches the diagnosis, without other people's accidents
def test_what_an_attempt_adds_up_to() -> None:
    kernel = (
        KernelEvent("oom_kill", "Killed process 10 (python)", 1.0, 10),
        KernelEvent("oom_kill", "Killed process 4711 (firefox)", 2.0, 4711),
        KernelEvent("crash", "python[5000]: segfault at 0", 3.0, 5000),
        KernelEvent("xid", "NVRM: Xid (PCI:1): 79, pid=4711", 4.0, 4711, 79),
        KernelEvent("io_error", "I/O error, dev sda", 5.0),
    )
    ended = msgspec.structs.replace(HOST, trainer=NO)
    last = snapshot(kernel=kernel, host=ended, cgroup=msgspec.structs.replace(GROUP, oom_kills=2))
    attempt = (snapshot(), last)
    assert own_pids(attempt) == {10}
    assert kernel_lines(attempt) == "Killed process 10 (python)\nNVRM: Xid (PCI:1): 79, pid=4711\nI/O error, dev sda"
    assert oom_kills(attempt) == 2
    # Unknown is not "nothing happened".
    assert kernel_lines((snapshot(kernel=NO),)) is None
    assert kernel_lines(()) is None
    assert kernel_lines((snapshot(),)) == ""
    assert oom_kills((snapshot(),)) is None
    assert oom_kills((snapshot(cgroup=NO), last)) is None
    assert oom_kills((snapshot(cgroup=msgspec.structs.replace(GROUP, oom_kills=NO)), last)) is None
    assert oom_kills((snapshot(), snapshot())) == 0
