"""Out of GPU memory: whose fault it is, from the figures of the message and from what the sensors saw."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.diagnose import diagnose
from supervisor.diagnosis.foreign_gpu import blamed, pressing, still_held, trainer_cards
from supervisor.diagnosis.kinds import FailureKind
from supervisor.diagnosis.values import Evidence
from supervisor.protocol.attempt import ExitKind, ExitReport
from supervisor.sensors.snapshot import GpuProcess, GpuReading, HostReading, ProcessMemory, Snapshot, Unknown

GIB, MIB = 1 << 30, 1 << 20
OURS, CHILD = 100, 101
UNSEEN = Unknown("another PID namespace")


def process(pid: int, size: int | Unknown, name: str | Unknown = "firefox") -> GpuProcess:
    return GpuProcess(pid, size, name, "anna" if isinstance(name, str) else name)


def gpu(*held: GpuProcess, index: int = 0, total: int = 16 * GIB, listed: bool = True) -> GpuReading:
    no = Unknown("not asked")
    used = sum(each.used_bytes for each in held if isinstance(each.used_bytes, int))
    processes: tuple[GpuProcess, ...] | Unknown = held if listed else Unknown("the driver does not say")
    return GpuReading(index, no, no, total, used, total - used, no, no, no, no, no, no, processes)


def snapshot(*gpus: GpuReading, alive: bool = True, readable: bool = True) -> Snapshot:
    no = Unknown("not asked")
    trainer = (ProcessMemory(OURS, "python", 1), ProcessMemory(CHILD, "python", 1))
    host = HostReading(no, no, no, no, no, trainer if alive else Unknown("no trainer is running"))
    return Snapshot(0.0, 0.0, gpus if readable else Unknown("the driver hangs"), (), host, no, no)


def message(asked: str = "512.00 MiB", free: str = "100.00 MiB", own: str = "14.20 GiB", card: int = 0) -> str:
    return (
        f"OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU {card} has a total capacity of 16.00 "
        f"GiB of which {free} is free. Including non-PyTorch memory, this process has {own} memory in use. Of the "
        "allocated memory 1.00 GiB is allocated by PyTorch."
    )


FIREFOX = process(7, 1400 * MIB)
TRAINER = process(OURS, 14 * GIB, "python")


def verdict(text: str, *seen: Snapshot, phase: str = "training", kind: ExitKind = ExitKind.CUDA_OOM) -> FailureKind:
    report = ExitReport(kind, text, step=5, phase=phase)
    return diagnose(Evidence(report, 71, None, "", None, snapshots=seen)).kind


# proves SUP-6, SUP-3: memory of our own making, of somebody else's, and while loading
@pytest.mark.parametrize(
    ("text", "seen", "phase", "expected"),
    [
        (message(), (), "training", "cuda_oom"),
        (message(own="1.00 GiB"), (), "training", "cuda_oom_foreign"),
        (message(own="1.00 GiB"), (), "loading", "cuda_oom_foreign"),
        (message(), (), "loading", "oom_at_load"),
        (message(), (snapshot(gpu(TRAINER)),), "training", "cuda_oom"),
        (message(), (snapshot(gpu(TRAINER, FIREFOX)), snapshot(gpu(FIREFOX), alive=False)), "training", "foreign"),
        (message(), (snapshot(gpu(TRAINER, FIREFOX)), snapshot(gpu(FIREFOX), alive=False)), "loading", "foreign"),
        # it was there until the very end, and has just gone
        (message(), (snapshot(gpu(TRAINER, FIREFOX)), snapshot(gpu(), alive=False)), "training", "foreign"),
        # without it, 2 GiB would not have fitted either
        (message(asked="2.00 GiB"), (snapshot(gpu(TRAINER, FIREFOX)),), "training", "cuda_oom"),
        # a desktop's own share
        (message(), (snapshot(gpu(TRAINER, process(8, 500 * MIB, "Xorg"))),), "training", "cuda_oom"),
        ("CUDA out of memory", (snapshot(gpu(TRAINER, FIREFOX)),), "training", "foreign"),
        # the trainer's child, somebody on another card, somebody who may be ourselves
        (message(), (snapshot(gpu(TRAINER, process(CHILD, 2 * GIB, "python"))),), "training", "cuda_oom"),
        (message(), (snapshot(gpu(TRAINER), gpu(FIREFOX, index=1)),), "training", "cuda_oom"),
        (message(), (snapshot(gpu(process(9, 2 * GIB, UNSEEN))),), "training", "cuda_oom"),
        (message(), (snapshot(readable=False),), "training", "cuda_oom"),
        (message(), (snapshot(gpu(TRAINER, FIREFOX, listed=False)),), "training", "cuda_oom"),
        # before the trainer held anything: the message says on which of two cards it was
        (message(card=1), (snapshot(gpu(), gpu(FIREFOX, index=1)),), "loading", "foreign"),
        (message(card=0), (snapshot(gpu(), gpu(FIREFOX, index=1)),), "loading", "oom_at_load"),
        ("out of memory", (snapshot(gpu(), gpu(FIREFOX, index=1)),), "training", "cuda_oom"),
    ],
)
def test_whose_memory_it_was(text: str, seen: tuple[Snapshot, ...], phase: str, expected: str) -> None:
    wanted = "cuda_oom_foreign" if expected == "foreign" else expected
    assert verdict(text, *seen, phase=phase) == wanted


# proves SUP-6: the holder is named, with pid, owner and size; the other reading of it stays in `also`
def test_the_holder_is_named() -> None:
    seen = (snapshot(gpu(TRAINER, FIREFOX)), snapshot(gpu(FIREFOX), alive=False))
    report = ExitReport(ExitKind.CUDA_OOM, message(), step=5, phase="training")
    found = diagnose(Evidence(report, 71, None, "", None, snapshots=seen))
    assert found.explanation.startswith("firefox (process 7 of anna) holds 1.4 GiB of GPU 0, which the trainer lacked.")
    assert "Tried to allocate 512.00 MiB" in found.explanation
    assert found.also == (FailureKind.CUDA_OOM,)
    assert found.retryable and found.helps == ("wait_for_foreign_vram",)
    other = snapshot(gpu(process(8, 2 * GIB)), alive=False)
    again = diagnose(Evidence(report, 71, None, "", None, snapshots=(seen[0], other)))
    assert again.fingerprint == found.fingerprint, "the same program under another pid is the same cause"


# proves SUP-6: the same from a log alone, with the sensors beside it
def test_from_a_log() -> None:
    log = f"Traceback (most recent call last):\n  File 'x.py', line 3, in training_step\ntorch.{message()}\n"
    seen = (snapshot(gpu(TRAINER, FIREFOX)), snapshot(gpu(FIREFOX), alive=False))
    assert diagnose(Evidence(None, 1, None, log, None)).kind is FailureKind.CUDA_OOM
    found = diagnose(Evidence(None, 1, None, log, None, snapshots=seen))
    assert found.kind is FailureKind.CUDA_OOM_FOREIGN
    assert "firefox (process 7 of anna)" in found.explanation


def test_other_failures_blame_nobody() -> None:
    assert verdict("no space", snapshot(gpu(TRAINER, FIREFOX)), kind=ExitKind.DISK_FULL) is FailureKind.DISK_FULL
    assert verdict("killed", snapshot(gpu(TRAINER, FIREFOX)), kind=ExitKind.HOST_OOM) is FailureKind.HOST_OOM


def test_sizes_that_the_driver_does_not_tell() -> None:
    dark = process(7, Unknown("WDDM"))
    card = gpu(dark)
    assert blamed(message(), (snapshot(card),)) == ()
    full = GpuReading(*[getattr(card, name) for name in GpuReading.__struct_fields__[:4]], 9 * GIB,
                      *[getattr(card, name) for name in GpuReading.__struct_fields__[5:]])  # fmt: skip
    assert [holder.pid for holder in blamed(message(), (snapshot(full),))] == [7]


def test_pressure_and_what_the_dead_hold() -> None:
    both = (gpu(TRAINER, FIREFOX), gpu(process(8, 3 * GIB, "game"), index=1))
    found = pressing(both, {OURS}, {0, 1})
    assert not isinstance(found, Unknown)
    assert {holder.name for holder in found} == {"game", "firefox"}
    assert pressing(Unknown("gone"), {OURS}, {0}) == Unknown("gone")
    assert [holder.pid for holder in still_held(both, {OURS, CHILD})] == [OURS]
    assert still_held(Unknown("gone"), {OURS}) == ()
    assert trainer_cards((snapshot(*both),)) == {0}
    assert trainer_cards(()) == frozenset()
