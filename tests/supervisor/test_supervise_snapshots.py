"""proves SUP-11 on the supervisor's side: what a dead trainer left in shared memory is saved, or nothing is changed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from scripted_runs import events
from snapshotting import checkpoints, mounted, snapshotting

from supervisor.checkpoints import CheckpointInfo, inspect_checkpoint
from supervisor.protocol.manifest import FORMAT_VERSION, Manifest, read_manifest, write_manifest
from supervisor.protocol.snapshot import SEAL_NAME, Seal, seal, sealed_file
from supervisor.sensors.disk import disk_space
from supervisor.supervise import RunRequest
from supervisor.supervise.attempt import prepare_attempt
from supervisor.supervise.follow import Follower
from supervisor.supervise.opening import Run, open_run
from supervisor.supervise.sensing import Sensing
from supervisor.supervise.snapshots import (
    STALE_SECONDS,
    drop_snapshots,
    end_snapshots,
    flush_snapshot,
    fresh_home,
    remove_stale,
    rescue,
    snapshot_home,
    with_snapshot,
)

MIB = 1 << 20


@pytest.fixture
def opened(tmp_path: Path, memory: Path) -> Iterator[Run]:
    """A run in its first attempt, with an empty home for snapshots."""
    with open_run(RunRequest(snapshotting(memory), tmp_path / "r")) as found:
        attempt_1(found)
        yield found


def attempt_1(run: Run) -> None:
    run.state.attempt = 1
    prepare_attempt(run, None)


def put(run: Run, slot: str, step: int, content: bytes = b"weights" * 100, **changes: Any) -> Path:
    """A whole snapshot, as a trainer leaves it."""
    home = snapshot_home(run)
    assert home is not None
    folder = home / slot
    folder.mkdir()
    files = {"adapter.bin": content, "optimizer.bin": b"moments"}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    manifest = Manifest(
        format_version=FORMAT_VERSION, step=step, planned_steps=12, tokens_seen=100 * step, rows_seen=step, epoch=0.5,
        attempt=1, lineage=1, created=0.0, finite=True, files={}, identity={}, versions={}, interim=True,
    )  # fmt: skip
    records = {name: sealed_file(data) for name, data in files.items()}
    seal(folder, Seal(msgspec.structs.replace(manifest, **changes), records))
    return folder


def warnings(run: Run) -> list[str]:
    return [event.message for event in events(run.paths.root, "warning")]


# --- saving one -----------------------------------------------------------------------------------


def test_the_newest_is_saved_and_verifies(opened: Run) -> None:
    put(opened, "a", 6)
    put(opened, "b", 7, b"newer")
    saved = flush_snapshot(opened, [])
    assert saved == opened.paths.checkpoint(7)
    info = inspect_checkpoint(saved)
    assert info.faults == () and info.interim
    assert (saved / "adapter.bin").read_bytes() == b"newer"
    assert not (saved / SEAL_NAME).exists()
    (event,) = events(opened.paths.root, "snapshot_saved")
    assert (event.step, event.data["steps_kept"]) == (7, 7)
    assert flush_snapshot(opened, [info]) is None, "it is not newer than itself"


# proves SUP-11: an evaluation that was owed is entered later, and may make it the best one
def test_a_rating_that_comes_later_counts(opened: Run) -> None:
    put(opened, "a", 6)
    follower = Follower(opened, [], Sensing(opened.paths, opened.journal, {}))
    rescue(opened, follower)
    saved = opened.paths.checkpoint(6)
    assert [event.step for event in events(opened.paths.root, "checkpoint_verified")] == [6]
    assert not opened.paths.best.exists()
    write_manifest(saved, msgspec.structs.replace(read_manifest(saved), eval_loss=0.5))
    follower.take_in()
    assert opened.paths.best.resolve() == saved
    assert [info.eval_loss for info in follower.good] == [0.5]
    assert len(events(opened.paths.root, "checkpoint_verified")) == 1


def flip_a_bit(slot: Path) -> None:
    file = slot / "adapter.bin"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def cut_short(slot: Path) -> None:
    os.truncate(slot / "adapter.bin", 10)


def lose_a_file(slot: Path) -> None:
    (slot / "optimizer.bin").unlink()


def break_the_seal(slot: Path) -> None:
    (slot / SEAL_NAME).write_bytes(b'{"manifest"')


DAMAGES = {
    flip_a_bit: "adapter.bin differs from what was sealed",
    cut_short: "adapter.bin differs from what was sealed",
    lose_a_file: "optimizer.bin is missing",
    break_the_seal: "its seal is none",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_one_is_passed_over_and_said(opened: Run, damage: Any) -> None:
    put(opened, "a", 6)
    damage(put(opened, "b", 7))
    assert flush_snapshot(opened, []) == opened.paths.checkpoint(6)
    assert checkpoints(opened.paths.root) == ["step-00000006"]
    (warning,) = warnings(opened)
    assert DAMAGES[damage] in warning


# it is said once, and does not stay as something that could be saved
def test_a_damaged_one_is_given_up(opened: Run) -> None:
    slot = put(opened, "a", 6)
    flip_a_bit(slot)
    rescue(opened, Follower(opened, [], Sensing(opened.paths, opened.journal, {})))
    assert with_snapshot(opened, ()) == ()
    end_snapshots(opened, completed=False)
    assert len(warnings(opened)) == 1 and not slot.parent.exists()


def test_what_nobody_tried_to_save_is_not_blamed_on_the_disk(opened: Run) -> None:
    put(opened, "a", 6)
    end_snapshots(opened, completed=False)
    (warning,) = warnings(opened)
    assert "it was not saved." in warning and "room" not in warning


def test_a_torn_one_is_passed_over(opened: Run) -> None:
    put(opened, "a", 6)
    (put(opened, "b", 7) / SEAL_NAME).unlink()
    assert flush_snapshot(opened, []) == opened.paths.checkpoint(6)
    assert warnings(opened) == []


def test_a_name_that_leaves_the_folder_is_refused(opened: Run, tmp_path: Path) -> None:
    slot = put(opened, "a", 6)
    (slot / "../../escaped").write_bytes(b"x")
    sealed = msgspec.json.decode((slot / SEAL_NAME).read_bytes(), type=Seal)
    seal(slot, msgspec.structs.replace(sealed, files={**sealed.files, "../../escaped": sealed_file(b"x")}))
    assert flush_snapshot(opened, []) is None
    assert checkpoints(opened.paths.root) == []
    assert "is no file name" in warnings(opened)[0]


@pytest.mark.parametrize("changes", [{"lineage": 2}, {"attempt": 2}, {"step": 5}], ids=str)
def test_another_lineage_a_later_attempt_and_an_older_step_are_none_of_it(opened: Run, changes: Any) -> None:
    saved = opened.paths.checkpoint(5)
    newest = CheckpointInfo(saved, 5, 10, None, ())
    put(opened, "a", **{"step": 6, **changes})
    assert flush_snapshot(opened, [newest]) is None
    assert checkpoints(opened.paths.root) == []


def test_a_folder_that_others_may_enter_is_not_trusted(opened: Run) -> None:
    put(opened, "a", 6)
    home = snapshot_home(opened)
    assert home is not None and home.stat().st_mode & 0o777 == 0o700
    home.chmod(0o770)
    assert flush_snapshot(opened, []) is None
    home.chmod(0o700)
    assert flush_snapshot(opened, []) == opened.paths.checkpoint(6)


def test_weights_that_are_not_finite_are_quarantined(opened: Run) -> None:
    put(opened, "a", 6, finite=False)
    assert with_snapshot(opened, ()) == ()
    assert [path.name for path in opened.paths.quarantine().iterdir()] == ["step-00000006"]


# --- a full disk ----------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk") as place:
        yield place


def fill(place: Path, leave: int) -> Path:
    stranger = place / "somebody-elses"
    with open(stranger, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk_space(place).free_bytes - leave)
    return stranger


@pytest.fixture
def on_a_small_disk(small_disk: Path, memory: Path) -> Iterator[Run]:
    with open_run(RunRequest(snapshotting(memory), small_disk / "r")) as found:
        attempt_1(found)
        yield found


# proves SUP-13: neither the room of the next checkpoint nor anything else is touched
def test_without_room_nothing_changes_and_with_room_it_is_saved(on_a_small_disk: Run, small_disk: Path) -> None:
    run = on_a_small_disk
    slot = put(run, "a", 6, bytes(2 * MIB))
    stranger = fill(small_disk, 4 * MIB)  # enough for this one, but not for the next checkpoint beside it
    assert flush_snapshot(run, []) is None
    assert checkpoints(run.paths.root) == []
    assert "the snapshot of step 6 cannot be saved" in warnings(run)[0]
    end_snapshots(run, completed=False)
    assert (slot / SEAL_NAME).exists(), "it stays for whoever makes room"
    assert "is only in shared memory" in warnings(run)[1] and "has 4.0 MiB free" in warnings(run)[1]
    stranger.unlink()
    assert flush_snapshot(run, []) == run.paths.checkpoint(6)


# proves SUP-13: the disk is full in the middle of the copy, because somebody else was faster
def test_no_space_in_the_middle_of_the_copy_leaves_nothing(on_a_small_disk: Run, small_disk: Path) -> None:
    run = on_a_small_disk
    slot = put(run, "a", 6, bytes(5 * MIB))
    sealed = msgspec.json.decode((slot / SEAL_NAME).read_bytes(), type=Seal)
    smaller = msgspec.structs.replace(sealed.files["adapter.bin"], size=1000)  # what the check of the room goes by
    seal(slot, msgspec.structs.replace(sealed, files={**sealed.files, "adapter.bin": smaller}))
    fill(small_disk, 4 * MIB)
    assert flush_snapshot(run, []) is None
    assert checkpoints(run.paths.root) == []
    assert "No space left on device" in warnings(run)[0]
    assert (slot / SEAL_NAME).exists()


# --- whose folder it is ---------------------------------------------------------------------------


def test_a_new_attempt_begins_with_empty_slots(opened: Run) -> None:
    put(opened, "a", 6)
    home = fresh_home(opened)
    assert home is not None and not (Path(home) / "a").exists()


def test_a_new_run_in_the_same_place_has_another_folder(opened: Run, memory: Path) -> None:
    before = snapshot_home(opened)
    opened.state.started += 1
    assert snapshot_home(opened) != before
    drop_snapshots(opened)
    assert before is not None and before.exists()


def test_folders_of_dead_runs_are_removed(opened: Run, tmp_path: Path, memory: Path) -> None:
    place, home = tmp_path / "other", snapshot_home(opened)
    assert home is not None
    with open_run(RunRequest(snapshotting(memory), place)) as other:
        attempt_1(other)
        slot = put(other, "a", 3)
        age(slot)
        remove_stale(opened, memory)
        assert slot.exists(), "somebody supervises it"
    os.utime(slot / SEAL_NAME)
    remove_stale(opened, memory)
    assert slot.exists(), "somebody may go on with it"
    place.rename(tmp_path / "unmounted")
    remove_stale(opened, memory)
    assert slot.exists(), "its disk may come back"
    age(slot)
    remove_stale(opened, memory)
    assert not slot.parent.exists() and home.exists()
    (event,) = events(opened.paths.root, "snapshots_removed")
    assert str(place) in event.message
    opened.paths.run_yaml.unlink()
    remove_stale(opened, memory)
    assert home.exists(), "its lock is held"


def age(slot: Path) -> None:
    old = time.time() - STALE_SECONDS - 60
    os.utime(slot / SEAL_NAME, (old, old))


# what cannot be removed is said and costs this run nothing
def test_another_runs_folder_that_cannot_be_removed(opened: Run, tmp_path: Path, memory: Path) -> None:
    with open_run(RunRequest(snapshotting(memory), tmp_path / "other")) as other:
        attempt_1(other)
        slot = put(other, "a", 3)
    age(slot)
    with mounted(slot / "busy"):
        assert fresh_home(opened) is not None
    assert "cannot be removed" in warnings(opened)[0]


# checkpoint.snapshot may change while nothing is at work: what the last attempt left is where it was told to put it
@pytest.mark.parametrize("chosen", ["another", "off"])
def test_another_place_for_snapshots(tmp_path: Path, memory: Path, opened: Run, chosen: str) -> None:
    slot = put(opened, "a", 6)
    another = tmp_path / "another"
    another.mkdir()
    opened.state.overrides["checkpoint.snapshot"] = "off" if chosen == "off" else str(another)
    assert [info.step for info in with_snapshot(opened, ())] == [6]
    opened.state.attempt = 2
    prepare_attempt(opened, None)
    assert not slot.parent.exists()
    assert len(list(another.iterdir())) == (chosen == "another")
