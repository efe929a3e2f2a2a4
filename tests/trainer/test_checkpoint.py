"""A checkpoint is whole or absent, and everything that a resume needs is in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors import SafetensorError
from tiny_runs import Attempt, Tiny

from supervisor.protocol.attempt import ExitKind
from supervisor.protocol.manifest import MANIFEST_NAME, read_manifest, verify_checkpoint
from supervisor.protocol.paths import RunPaths
from trainer.checkpoint import StepState, library_versions, open_checkpoint, read_sources, read_standing
from trainer.data.plan import Segment
from trainer.early_stop import Standing
from trainer.errors import CheckpointCorruptError, classify
from trainer.sft import SupervisedSFTTrainer
from trainer.step_state import read_optimiser_state

CONTENTS = {"adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors", "optimizer.json",
            "scheduler.pt", "rng_state.pth", "trainer_state.json", "data_plan.json", "run_config.json", "template.json",
            "chat_template.jinja", "evaluations.json", "sources.json", "manifest.json"}  # fmt: skip


# proves TRN-12
def test_everything_is_inside_and_verifies(plain_run: Attempt) -> None:
    assert [path.name for path in sorted(plain_run.paths.checkpoints().iterdir())] == [
        "step-00000002", "step-00000004", "step-00000005",
    ]  # fmt: skip
    for step in (2, 4, 5):
        checkpoint = plain_run.paths.checkpoint(step)
        assert {path.name for path in checkpoint.iterdir()} == CONTENTS
        assert verify_checkpoint(checkpoint) == []


# proves TRN-12, SUP-15: the manifest counts what was done and agrees with the events
def test_the_manifest_says_what_was_done(plain_run: Attempt) -> None:
    manifest, position = open_checkpoint(plain_run.paths.checkpoint(4))
    progress = plain_run.events("progress")[3].data
    assert (manifest.step, manifest.planned_steps, manifest.attempt, manifest.lineage) == (4, 5, 1, 1)
    assert (manifest.tokens_seen, manifest.rows_seen) == (progress["tokens_seen"], progress["rows_seen"])
    assert manifest.epoch == progress["epoch"]
    assert manifest.finite and manifest.versions == library_versions()
    evaluations = {event.step: event.data["eval_loss"] for event in plain_run.events("evaluation")}
    assert manifest.eval_loss == evaluations[4]
    assert (position.segments, position.step) == ((Segment(96, 0),), 4)
    config = json.loads((plain_run.paths.checkpoint(4) / "run_config.json").read_text())
    assert config["train"]["max_steps"] == 5 and config["model"]["base"] == "random:1x64"


# proves TRN-12: what optimiser, scheduler and RNG files hold is this very step
def test_optimiser_scheduler_and_rng_are_those_of_the_step(plain_run: Attempt) -> None:
    checkpoint = plain_run.paths.checkpoint(4)
    optimiser = read_optimiser_state(checkpoint)
    assert {int(state["step"]) for state in optimiser["state"].values()} == {4}
    assert set(optimiser["state"]) == {index for group in optimiser["param_groups"] for index in group["params"]}
    assert torch.load(checkpoint / "scheduler.pt", weights_only=True)["last_epoch"] == 4
    assert set(torch.load(checkpoint / "rng_state.pth", weights_only=False)) >= {"python", "numpy", "cpu"}
    assert json.loads((checkpoint / "trainer_state.json").read_text())["global_step"] == 4


def without(checkpoint: Path, *names: str, identity: tuple[str, ...] = (), **changes: str) -> None:
    """Take files out of a checkpoint and its manifest, as if they had never been written."""
    manifest = read_manifest(checkpoint)
    for name in names:
        (checkpoint / name).unlink()
    kept = {name: value for name, value in manifest.identity.items() if name not in identity} | changes
    files = {name: record for name, record in manifest.files.items() if name not in names}
    manifest = msgspec.structs.replace(manifest, files=files, identity=kept)
    (checkpoint / MANIFEST_NAME).write_bytes(msgspec.json.encode(manifest))


# proves TRN-12: what was trained before is not lost
def test_a_checkpoint_of_an_earlier_version_is_resumed(tiny: Tiny) -> None:
    whole = tiny.run("older", save_steps=2)
    checkpoint = whole.paths.checkpoint(2)
    without(checkpoint, "evaluations.json", "sources.json", identity=("ranks",))
    assert verify_checkpoint(checkpoint) == []
    assert read_standing(checkpoint, read_manifest(checkpoint)) == Standing()
    assert read_sources(checkpoint, read_manifest(checkpoint)) is None
    again = tiny.run("older-again", resume_from=checkpoint, number=2)
    assert all(torch.equal(value, again.adapter(3)[name]) for name, value in whole.adapter(3).items())


# proves TRN-12
@pytest.mark.parametrize("name", ["evaluations.json", "sources.json"])
def test_a_file_that_the_manifest_names_must_be_there(plain_run: Attempt, tmp_path: Path, name: str) -> None:
    checkpoint = Path(shutil.copytree(plain_run.paths.checkpoint(4), tmp_path / "step-00000004"))
    (checkpoint / name).unlink()
    with pytest.raises(CheckpointCorruptError, match=name):
        open_checkpoint(checkpoint)


# proves TRN-12, TRN-19: a rank whose random state is gone must not go on with other masks
def test_the_random_state_of_every_rank_must_be_there(plain_run: Attempt, tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(plain_run.paths.checkpoint(4), tmp_path / "step-00000004"))
    without(checkpoint, ranks="2")
    with pytest.raises(CheckpointCorruptError, match=r"rng_state_1\.pth"):
        open_checkpoint(checkpoint)


class Watched(SupervisedSFTTrainer):
    """Notes what can be seen in the folder of checkpoints in the middle of a save."""

    def _write_trainer_state(self, staged: Path, state: StepState) -> None:
        super()._write_trainer_state(staged, state)
        self.visible = sorted(path.name for path in self.reporter.paths.checkpoints().iterdir())
        self.manifest_before = (staged / "manifest.json").exists()


# proves TRN-12
def test_nothing_is_visible_while_it_is_staged(tiny: Tiny) -> None:
    run = tiny.run("watched", {"train.max_steps": 1}, trainer_class=Watched)
    assert len(run.built.visible) == 1 and run.built.visible[0].startswith(".staging-")
    assert not run.built.manifest_before
    assert [path.name for path in run.paths.checkpoints().iterdir()] == ["step-00000001"]


# --- a full disk ----------------------------------------------------------------------------------

FULL_DISK_ERRORS = (OSError, RuntimeError, SafetensorError)
"""What Python, torch.save and safetensors make of ENOSPC."""


def mounted(folder: Path, kibibytes: int) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k,mode=700", "tmpfs", str(folder)]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def tiny_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A run directory whose checkpoints lie on a file system of so many KiB."""
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    if not mounted(folder, request.param):
        pytest.skip("mounting a small tmpfs needs root and the permission to mount")
    try:
        yield tmp_path / "run"
    finally:
        # Lazily: torch's archive writer leaves its file open when it fails.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


# proves SUP-13, TRN-12: the disk is full at the adapter, at the optimiser and at the last files of the second save
@pytest.mark.parametrize("tiny_disk", [136, 160, 192, 216], indirect=True)
def test_a_full_disk_leaves_the_older_checkpoint_and_nothing_half_written(tiny: Tiny, tiny_disk: Path) -> None:
    seen = Attempt(RunPaths(tiny_disk))
    with pytest.raises(FULL_DISK_ERRORS) as caught:
        tiny.run(str(tiny_disk), seen=seen, save_steps=1)
    assert classify(caught.value) is ExitKind.DISK_FULL
    assert [path.name for path in seen.paths.checkpoints().iterdir()] == ["step-00000001"]
    assert verify_checkpoint(seen.paths.checkpoint(1)) == []
    assert read_manifest(seen.paths.checkpoint(1)).step == 1


class FullAtTheLastMoment(SupervisedSFTTrainer):
    """The disk fills up by itself while the last files of the save are written."""

    def _write_trainer_state(self, staged: Path, state: StepState) -> None:
        super()._write_trainer_state(staged, state)
        free = os.statvfs(staged)
        (staged.parent / ".ballast").write_bytes(b"x" * (free.f_bavail * free.f_frsize))

    def _save_checkpoint(self, *args: Any) -> None:
        try:
            super()._save_checkpoint(*args)
        finally:
            (self.reporter.paths.checkpoints() / ".ballast").unlink(missing_ok=True)


# proves SUP-13: full just before the manifest
@pytest.mark.parametrize("tiny_disk", [4096], indirect=True)
def test_a_disk_that_fills_up_before_the_manifest_leaves_nothing(tiny: Tiny, tiny_disk: Path) -> None:
    seen = Attempt(RunPaths(tiny_disk))
    with pytest.raises(FULL_DISK_ERRORS) as caught:
        tiny.run(str(tiny_disk), trainer_class=FullAtTheLastMoment, seen=seen, save_steps=1)
    assert classify(caught.value) is ExitKind.DISK_FULL
    assert not list(seen.paths.checkpoints().iterdir())
