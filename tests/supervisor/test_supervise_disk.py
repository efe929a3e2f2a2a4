import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_runs import config, events, run, state

from supervisor.protocol.manifest import verify_checkpoint
from supervisor.sensors.disk import disk_space, human_bytes, mount_point, tree_bytes
from supervisor.state import Outcome
from supervisor.supervise import RunRefused

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real tmpfs of 8 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0777", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path, leave: int) -> Path:
    """A file by somebody else that leaves ``leave`` bytes free."""
    stranger = place / "somebody-elses"
    with open(stranger, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk_space(place).free_bytes - leave)
    return stranger


# a start that finds no room leaves nothing behind that a second one would stumble over
def test_a_first_start_without_room_can_be_repeated(small_disk: Path) -> None:
    place = small_disk / "runs" / "r"
    stranger = fill(small_disk, leave=os.sysconf("SC_PAGE_SIZE"))  # enough for the lock alone
    with pytest.raises(RunRefused, match="No space left on device"):
        run(config(), place)
    assert not (place / "run.yaml").exists()
    stranger.unlink()
    assert run(config(), place) is Outcome.COMPLETED


# proves SUP-13: a disk that fills up while saving -> older checkpoints are trimmed, the run completes
def test_a_disk_too_small_for_the_retention_is_trimmed(small_disk: Path) -> None:
    train = {"adapter_bytes": 3 * MIB // 2}
    loaded = config(train=train, checkpoint={"keep": 9, "save_steps": 2}, limits={"max_attempts": 5})
    assert run(loaded, small_disk / "r") is Outcome.COMPLETED
    found = state(small_disk / "r")
    assert "trim_retention" in [entry.rung for entry in found.relief]
    assert events(small_disk / "r", "relief")[0].data["lossless"]
    assert (small_disk / "r" / "final" / "adapter.bin").stat().st_size == 3 * MIB // 2
    assert (small_disk / "r" / "best").resolve().name == "step-00000006"


# proves SUP-13: nothing left to trim -> stop and say how much is missing where; with room again the run goes on
def test_a_disk_filled_by_somebody_else(small_disk: Path) -> None:
    place = small_disk / "r"
    train = {"adapter_bytes": MIB}
    fault = {"at": 8, "do": "fail", "kind": "data_error", "attempt": 1}
    loaded = config(fault, train=train, checkpoint={"keep": 1, "save_steps": 6})
    assert run(loaded, place) is Outcome.GAVE_UP
    stranger = fill(small_disk, MIB)
    assert run(loaded, place) is Outcome.GAVE_UP
    found = state(place)
    assert found.attempt == 1
    assert str(small_disk) in found.explanation
    assert "needs 2.0 MiB" in found.explanation
    stranger.unlink()
    assert run(loaded, place) is Outcome.COMPLETED


# proves SUP-13: ENOSPC in the middle of a save destroys nothing
def test_no_room_in_a_save(tmp_path: Path) -> None:
    loaded = config({"at": 6, "do": "save_enospc"})
    assert run(loaded, tmp_path / "r") is Outcome.GAVE_UP
    assert [path.name for path in (tmp_path / "r" / "checkpoints").glob("*")] == ["step-00000003"]
    assert "disk_full at step 6 while saving" in state(tmp_path / "r").explanation


# proves SUP-13: when not one byte is left during training, the supervisor keeps its records until there is room again
def test_the_supervisors_records_survive_a_full_disk(small_disk: Path) -> None:
    place = small_disk / "r"
    strangers: list[Path] = []

    def on_tick() -> None:
        if events(place, "checkpoint") and not strangers:
            strangers.append(fill(small_disk, 0))

    from supervisor.supervise import RunRequest, supervise

    loaded = config(train={"adapter_bytes": MIB, "step_seconds": 0.2}, checkpoint={"keep": 1, "save_steps": 3})
    assert supervise(RunRequest(loaded, place), on_tick) is Outcome.GAVE_UP
    assert state(place).outcome is Outcome.GAVE_UP
    assert "disk_full" in state(place).explanation
    assert events(place, "outcome")
    assert list((place / "checkpoints").glob("step-*/manifest.json"))


def test_a_full_or_read_only_place_is_refused_at_the_start(small_disk: Path) -> None:
    fill(small_disk, 0)
    with pytest.raises(RunRefused, match=r"No space left on device.*of 8\.0 MiB.*--run-dir"):
        run(config(), small_disk / "r")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(RunRefused, match=r"Read-only file system.*--run-dir"):
        run(config(), small_disk / "other")


def test_disk_figures(tmp_path: Path, small_disk: Path) -> None:
    space = disk_space(small_disk)
    assert (space.mount, space.total_bytes) == (small_disk, 8 * MIB)
    assert 0 < space.free_bytes <= 8 * MIB
    assert mount_point(small_disk / "r" / "absent") == small_disk
    (tmp_path / "a").write_bytes(bytes(1536))
    assert tree_bytes(tmp_path / "a") == 0
    (small_disk / "b").write_bytes(bytes(1536))
    assert tree_bytes(small_disk) == 1536
    assert [human_bytes(n) for n in (5, 1536, 3 * MIB, 5 << 30, 5 << 40)] == [
        "5 bytes",
        "1.5 KiB",
        "3.0 MiB",
        "5.0 GiB",
        "5.0 TiB",
    ]


ADAPTER = 3 * MIB // 2
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def larger_disk(tmp_path: Path) -> Iterator[Path]:
    """A real tmpfs of 16 MiB."""
    place = tmp_path / "larger"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m,mode=0777", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def filled_in_a_save(larger_disk: Path, leave: int, keep: int, save_steps: int) -> tuple[Path, Outcome]:
    """A run whose disk somebody fills up to ``leave`` bytes as the save of step 6 begins."""
    place = larger_disk / "r"
    fault = {"at": 6, "do": "save_fill", "file": str(larger_disk / "stranger"), "leave": leave, "attempt": 1}
    settings: dict[str, Any] = {"save_steps": save_steps, "keep": keep, "snapshot": "off"}
    return place, run(config(fault, train={"adapter_bytes": ADAPTER}, checkpoint=settings), place)


# proves SUP-13: the disk fills up at byte k of a save, whatever k: the last good checkpoint stays good, older ones are
# trimmed, the run completes
@pytest.mark.parametrize(
    "leave",
    [
        0,
        ADAPTER + PAGE,
        *(pytest.param(share * ADAPTER // 4, marks=pytest.mark.slow) for share in (1, 2, 3)),
        *(pytest.param(ADAPTER + pages * PAGE, marks=pytest.mark.slow) for pages in (-1, 0, 2, 3)),
    ],
)
def test_a_disk_that_fills_up_at_byte_k_of_a_save(larger_disk: Path, leave: int) -> None:
    place, outcome = filled_in_a_save(larger_disk, leave, keep=9, save_steps=1)
    found = state(place)
    assert outcome is Outcome.COMPLETED, found.explanation
    # A trainer that saves every few milliseconds may be ahead of retention, and then meet a full disk once more.
    assert {failure.kind for failure in found.failures} <= {"disk_full"}
    if leave <= ADAPTER + PAGE:
        assert [entry.rung for entry in found.relief] == ["trim_retention"]
        assert events(place, "attempt_started")[1].step == 5, "the one before the save that failed was good"
        assert not events(place, "checkpoint_quarantined")
    assert (place / "final").resolve().name == "step-00000012"
    for checkpoint in (place / "checkpoints").glob("step-*"):
        assert verify_checkpoint(checkpoint) == []


# proves SUP-13, SUP-2: with nothing left to trim it stops and says how much is needed where; nothing good is lost
@pytest.mark.parametrize("leave", [0, pytest.param(ADAPTER // 2, marks=pytest.mark.slow)])
def test_nothing_left_to_trim(larger_disk: Path, leave: int) -> None:
    place, outcome = filled_in_a_save(larger_disk, leave, keep=1, save_steps=3)
    assert outcome is Outcome.GAVE_UP
    found = state(place)
    assert "disk_full" in found.explanation
    assert f"{larger_disk} has " in found.explanation
    assert "the next checkpoint needs 2.5 MiB there, beside the present ones" in found.explanation
    assert "Trimming checkpoint retention would free nothing more" in found.explanation
    assert verify_checkpoint(place / "checkpoints" / "step-00000003") == []
    (larger_disk / "stranger").unlink()
    assert run(None, place) is Outcome.COMPLETED
