import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.checkpoints import (
    CheckpointInfo,
    best_checkpoint,
    checkpoint_folders,
    delete_checkpoint,
    ever_saved,
    inspect_checkpoint,
    inspect_lineage,
    link_checkpoint,
    linked_checkpoint,
    quarantine_checkpoint,
    to_delete,
)
from supervisor.protocol.atomic import staged_directory
from supervisor.protocol.manifest import FORMAT_VERSION, Fault, Manifest, digest_tree, write_manifest
from supervisor.protocol.paths import RunPaths

FILES = ("adapter.safetensors", "optimizer.bin", "rng/state.bin")


def manifest(step: int, eval_loss: float | None = None) -> Manifest:
    return Manifest(
        format_version=FORMAT_VERSION,
        step=step,
        planned_steps=40,
        tokens_seen=step * 10,
        rows_seen=step,
        epoch=0.5,
        attempt=1,
        lineage=1,
        created=0.0,
        finite=True,
        files={},
        identity={},
        versions={},
        eval_loss=eval_loss,
    )


def save(paths: RunPaths, step: int, eval_loss: float | None = None) -> Path:
    final = paths.checkpoint(step)
    with staged_directory(final) as folder:
        header = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
        (folder / FILES[0]).write_bytes(len(header).to_bytes(8, "little") + header + bytes(range(16)))
        (folder / FILES[1]).write_bytes(b"moments" * 50)
        (folder / "rng").mkdir()
        (folder / FILES[2]).write_bytes(b"rng")
        write_manifest(folder, msgspec.structs.replace(manifest(step, eval_loss), files=digest_tree(folder)))
    return final


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


# proves SUP-14: one flipped bit, one missing byte or one missing file in whichever file is found and named
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [flip_bit, truncate, Path.unlink])
def test_every_damage_to_every_file_is_found(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    path = save(RunPaths(tmp_path), 10)
    assert inspect_checkpoint(path).good
    damage(path / name)
    info = inspect_checkpoint(path)
    assert [fault.file for fault in info.faults] == [name]


# proves SUP-14
def test_torn_missing_foreign_and_lying_manifests_are_found(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    torn, missing, moved = save(paths, 1), save(paths, 2), save(paths, 3)
    truncate(torn / "manifest.json")
    truncate(torn / "manifest.json")
    (missing / "manifest.json").unlink()
    moved = moved.rename(paths.checkpoint(30))
    assert "torn" in str(inspect_checkpoint(torn).faults[0])
    assert "missing" in str(inspect_checkpoint(missing).faults[0])
    assert "is of step 3" in str(inspect_checkpoint(moved).faults[0])
    extra = save(paths, 4)
    (extra / "stranger").write_bytes(b"")
    assert [str(fault) for fault in inspect_checkpoint(extra).faults] == ["stranger: not listed in the manifest"]


def info(step: int, eval_loss: float | None = None, good: bool = True, interim: bool = False) -> CheckpointInfo:
    faults = () if good else (Fault("adapter.bin", "missing"),)
    described = msgspec.structs.replace(manifest(step, eval_loss), interim=interim)
    return CheckpointInfo(Path(f"step-{step:08d}"), step, 100, described, faults)


def interim(step: int) -> CheckpointInfo:
    """One that was a snapshot between two due saves."""
    return info(step, interim=True)


# proves TRN-8: the lowest evaluation loss; of equal ones the earlier, which has been trained on less
def test_the_best_has_the_lowest_loss_and_is_the_earlier_on_a_tie(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    losses = {5: 2.0, 10: 1.5, 15: 1.5, 20: 1.75, 25: None}
    infos = [inspect_checkpoint(save(paths, step, loss)) for step, loss in losses.items()]
    best = best_checkpoint(infos)
    assert best is not None and best.step == 10
    assert best_checkpoint(infos[-1:]) is None


# proves SUP-13: retention keeps the newest, the best and the protected ones
@pytest.mark.parametrize(
    ("infos", "keep", "best", "protected", "deleted"),
    [
        ([info(1), info(2), info(3), info(4)], 3, None, (), [1]),
        ([info(1), info(2), info(3), info(4)], 1, None, (), [1, 2, 3]),
        ([info(1), info(2), info(3), info(4)], 1, 1, (), [2, 3]),
        ([info(1), info(2), info(3), info(4)], 1, 1, (2,), [3]),
        ([info(1), info(2), info(3, good=False)], 1, None, (), [1]),
        ([info(1), info(2, good=False), info(3, good=False)], 1, None, (), []),
        ([info(1)], 1, None, (), []),
        ([info(1), info(2)], 0, None, (), [1]),
        ([], 3, None, (), []),
        ([info(1), interim(2), interim(3), interim(4)], 3, None, (), [2, 3]),
        ([info(1), info(2), interim(3)], 2, None, (), [1]),
        ([info(1), info(2), interim(3)], 1, 1, (), [2]),
        ([info(1), interim(2), info(3)], 3, None, (), [2]),
        ([info(1), interim(2), info(3)], 3, 2, (), []),
        ([interim(1), interim(2)], 3, None, (), [1]),
    ],
)
def test_retention(
    infos: list[CheckpointInfo], keep: int, best: int | None, protected: tuple[int, ...], deleted: list[int]
) -> None:
    best_path = info(best).path if best else None
    chosen = to_delete(infos, keep, best_path, [info(step).path for step in protected])
    assert [entry.step for entry in chosen] == deleted


# proves SUP-13, SUP-14: whatever there is, the newest good one and the best one stay
@given(
    st.dictionaries(st.integers(1, 30), st.tuples(st.booleans(), st.none() | st.floats(0, 5)), max_size=12),
    st.integers(0, 5),
)
def test_retention_never_takes_the_newest_good_or_the_best(
    given_: dict[int, tuple[bool, float | None]], keep: int
) -> None:
    infos = [info(step, loss, good) for step, (good, loss) in given_.items()]
    best = best_checkpoint(infos)
    deleted = to_delete(infos, keep, best.path if best else None)
    good = [entry for entry in infos if entry.good]
    assert all(entry.good for entry in deleted)
    if good:
        assert max(good, key=lambda entry: entry.step) not in deleted
    assert best is None or best not in deleted
    assert len(good) - len(deleted) >= min(len(good), keep)


# proves SUP-14: nothing is deleted by quarantine, also when the name is taken
def test_quarantine_keeps_everything(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    places = [quarantine_checkpoint(save(paths, 10), paths.quarantine()) for _ in range(3)]
    assert [place.name for place in places] == ["step-00000010", "step-00000010.2", "step-00000010.3"]
    assert all((place / "optimizer.bin").is_file() for place in places)
    assert checkpoint_folders(paths.checkpoints()) == []
    assert ever_saved(paths, 1)
    assert not ever_saved(paths, 2)


def test_folders_are_in_order_and_staging_is_no_checkpoint(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    for step in (20, 100, 3):
        save(paths, step)
    (paths.checkpoints() / ".staging-step-00000200-1").mkdir()
    (paths.checkpoints() / "notes").mkdir()
    assert [path.name for path in checkpoint_folders(paths.checkpoints())] == [
        "step-00000003",
        "step-00000020",
        "step-00000100",
    ]


def test_delete_and_links(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    first, second = save(paths, 1), save(paths, 2)
    assert linked_checkpoint(paths.best) is None
    assert link_checkpoint(paths.best, first)
    assert not link_checkpoint(paths.best, first)
    assert link_checkpoint(paths.best, second)
    assert linked_checkpoint(paths.best) == second
    delete_checkpoint(first)
    assert sorted(entry.name for entry in paths.checkpoints().iterdir()) == ["step-00000002"]


# proves SUP-14: what cannot be brought to the disk is no checkpoint, whichever of the files it is
@pytest.mark.parametrize("position", [0, 7, 30])
def test_a_file_that_cannot_be_synced_leaves_nothing(tmp_path: Path, position: int) -> None:
    def save_one_that_cannot() -> None:
        with staged_directory(tmp_path / "step-00000001") as staged:
            for number in range(31):
                (staged / f"{number}").write_bytes(b"x")
            (staged / f"{position}").unlink()
            (staged / f"{position}").symlink_to("nowhere")

    with pytest.raises(FileNotFoundError):
        save_one_that_cannot()
    assert list(tmp_path.iterdir()) == []


# proves SUP-14: verified by several readers, every fault is found and the order stays
def test_a_lineage_is_verified_in_order(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    for step in range(9, 0, -1):
        save(paths, step)
    for step in (2, 7):
        flip_bit(paths.checkpoint(step) / FILES[1])
    infos = inspect_lineage(paths.checkpoints())
    assert [info.step for info in infos] == list(range(1, 10))
    assert [info.step for info in infos if not info.good] == [2, 7]
