"""proves SUP-11 on the trainer's side: every step is in shared memory, changes nothing, and is a checkpoint."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_resume import HARD, RESUMED_AT, assert_same_checkpoint
from tiny_runs import Attempt, Tiny

from supervisor.protocol.attempt import ExitKind
from supervisor.protocol.manifest import verify_checkpoint
from supervisor.protocol.paths import RunPaths
from supervisor.protocol.snapshot import SEAL_NAME, SLOTS, Seal, read_seal
from supervisor.supervise.snapshots import save_snapshot
from trainer import snapshots
from trainer.sft import SupervisedSFTTrainer
from trainer.tensor_file import lay_out, write_tensors


class FailsInTheNextStep(SupervisedSFTTrainer):
    """In the first micro-batch after ``RESUMED_AT`` finished steps."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == RESUMED_AT:
            raise RuntimeError("scripted")
        return super().training_step(*args, **kwargs)


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    place = tmp_path / "memory"
    place.mkdir(mode=0o700)
    return place


@pytest.fixture(scope="module")
def hard(tiny: Tiny) -> Attempt:
    """Undisturbed and without snapshots, every step saved."""
    return tiny.run("snapshots-reference", HARD, save_steps=1)


def sealed_slots(memory: Path) -> list[tuple[Seal, Path]]:
    """The whole snapshots, newest first."""
    found = [(sealed, memory / name) for name in SLOTS if (sealed := read_seal(memory / name)) is not None]
    return sorted(found, key=lambda entry: entry[0].manifest.step, reverse=True)


# proves SUP-11, TRN-12: dropout, accumulation, packing, NF4; snapshots change no bit, and going on from one is exact
def test_a_run_goes_on_exactly_from_its_last_snapshot(tiny: Tiny, hard: Attempt, memory: Path) -> None:
    seen = Attempt(RunPaths(tiny.root / "crashed"))
    with pytest.raises(RuntimeError, match="scripted"):
        tiny.run("crashed", HARD, trainer_class=FailsInTheNextStep, seen=seen, snapshots=memory)
    assert not seen.paths.checkpoint(RESUMED_AT).exists()
    assert seen.data_of("snapshots")["taken"] == RESUMED_AT and seen.data_of("snapshots")["skipped"] == 0
    (sealed, slot), (before, _) = sealed_slots(memory)
    assert (sealed.manifest.step, before.manifest.step) == (RESUMED_AT, RESUMED_AT - 1)
    assert sealed.manifest.interim and before.manifest.interim
    checkpoint = seen.paths.checkpoint(RESUMED_AT)
    save_snapshot(slot, sealed, checkpoint)
    assert verify_checkpoint(checkpoint) == []
    assert_same_checkpoint(checkpoint, hard.paths.checkpoint(RESUMED_AT))
    resumed = tiny.run("crashed", HARD, resume_from=checkpoint, number=2, save_steps=1)
    for step in (6, 7):
        assert_same_checkpoint(hard.paths.checkpoint(step), resumed.paths.checkpoint(step))


# proves SUP-11: a step at which an evaluation was due is not interim, and the evaluation is made up for
def test_an_evaluated_step_is_as_if_it_had_been_saved(tiny: Tiny, hard: Attempt, memory: Path) -> None:
    class FailsInTheEvaluation(SupervisedSFTTrainer):
        def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step == 3:
                raise RuntimeError("scripted")
            return super().evaluate(*args, **kwargs)

    seen = Attempt(RunPaths(tiny.root / "no-evaluation"))
    with pytest.raises(RuntimeError, match="scripted"):
        tiny.run("no-evaluation", HARD, trainer_class=FailsInTheEvaluation, seen=seen, snapshots=memory)
    sealed, slot = sealed_slots(memory)[0]
    assert (sealed.manifest.step, sealed.manifest.interim, sealed.manifest.eval_loss) == (3, False, None)
    checkpoint = seen.paths.checkpoint(3)
    save_snapshot(slot, sealed, checkpoint)
    resumed = tiny.run("no-evaluation", HARD, resume_from=checkpoint, number=2)
    assert_same_checkpoint(hard.paths.checkpoint(3), checkpoint)
    assert_same_checkpoint(hard.paths.checkpoint(7), resumed.paths.checkpoint(7))


# --- what goes wrong ------------------------------------------------------------------------------

PLAIN: dict[str, Any] = {"train.max_steps": 4}


def warnings(attempt: Attempt) -> list[str]:
    return [event.message for event in attempt.events("warning")]


@pytest.fixture
def small_memory(tmp_path: Path) -> Iterator[Path]:
    """A real tmpfs, as small as that of many containers is."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small tmpfs needs root and the permission to mount")
    (place / "home").mkdir()
    yield place / "home"
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_too_little_shared_memory_is_said_once(tiny: Tiny, small_memory: Path) -> None:
    run = tiny.run("small-memory", PLAIN, snapshots=small_memory)
    assert run.report is not None and run.report.kind is ExitKind.COMPLETED
    (warning,) = warnings(run)
    assert "4 MiB of shared memory free" in warning and "A crash costs up to 1000 steps" in warning
    assert sealed_slots(small_memory) == [] and not run.events("snapshots")


def test_a_full_shared_memory_is_no_bus_error(tiny: Tiny, small_memory: Path, monkeypatch: Any) -> None:
    """Somebody took what was free between the look and the writing."""
    monkeypatch.setattr(snapshots, "_check_room", lambda folder, needed, beside: None)
    free = os.statvfs(small_memory)
    with open(small_memory / "stranger", "wb") as stranger:
        os.posix_fallocate(stranger.fileno(), 0, free.f_bavail * free.f_frsize - 3 * os.sysconf("SC_PAGE_SIZE"))
    run = tiny.run("full-memory", PLAIN, snapshots=small_memory)
    assert run.report is not None and run.report.kind is ExitKind.COMPLETED
    (warning,) = warnings(run)
    assert "No space left on device" in warning


class LosesItsSlots(SupervisedSFTTrainer):
    """Somebody cleans up /dev/shm after the second step."""

    memory: Path

    def take_snapshot(self, *, interim: bool) -> None:
        if self.state.global_step == 3:
            for name in SLOTS:
                shutil.rmtree(self.memory / name)
        super().take_snapshot(interim=interim)


def test_a_writer_that_fails_is_said_once_and_trained_on(tiny: Tiny, memory: Path) -> None:
    LosesItsSlots.memory = memory
    run = tiny.run("lost-slots", PLAIN, trainer_class=LosesItsSlots, snapshots=memory)
    assert run.report is not None and run.report.kind is ExitKind.COMPLETED
    (warning,) = warnings(run)
    assert "could not be written" in warning
    assert run.data_of("snapshots")["taken"] == 2


# proves SUP-11: the training waits a little and no longer, and the last whole snapshot is left alone
def test_a_slow_writer_is_skipped_not_waited_for(tiny: Tiny, memory: Path, monkeypatch: Any) -> None:
    gate = threading.Event()
    steps: list[int] = []
    finish = snapshots._Slot.finish

    def slow(self: Any, state: Any, *args: Any) -> None:
        steps.append(state.progress.step)
        if state.progress.step == 3:
            assert gate.wait(60)
        finish(self, state, *args)

    class Opens(SupervisedSFTTrainer):
        whole: list[int]

        def take_snapshot(self, *, interim: bool) -> None:
            super().take_snapshot(interim=interim)
            if self.state.global_step == 5:
                self.whole = [sealed.manifest.step for sealed, _ in sealed_slots(memory)]
                gate.set()

    monkeypatch.setattr(snapshots, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(snapshots._Slot, "finish", slow)
    run = tiny.run("slow-writer", {"train.max_steps": 7}, trainer_class=Opens, snapshots=memory)
    assert run.built.whole == [2], "the slot of step 1, which is being rewritten, is torn"
    assert run.data_of("snapshots")["skipped"] >= 2
    assert steps[:3] == [1, 2, 3] and steps[3] > 5
    assert sealed_slots(memory)[0][0].manifest.step == steps[-1]


# proves SUP-11: the optimiser waits for the copy, however long that takes; what is saved is the step's own state
def test_no_tensor_changes_while_it_is_copied(tiny: Tiny, hard: Attempt, memory: Path, monkeypatch: Any) -> None:
    fill, wait_for_copy = snapshots._Slot.fill, snapshots.Snapshots.wait_for_copy
    asked = threading.Event()

    def late(self: Any, *args: Any, **options: Any) -> Any:
        asked.wait(1.0)  # the last one is never waited for
        asked.clear()
        return fill(self, *args, **options)

    def ask(self: Any) -> None:
        asked.set()
        wait_for_copy(self)

    monkeypatch.setattr(snapshots._Slot, "fill", late)
    monkeypatch.setattr(snapshots.Snapshots, "wait_for_copy", ask)
    seen = Attempt(RunPaths(tiny.root / "late-copy"))
    with pytest.raises(RuntimeError, match="scripted"):
        tiny.run("late-copy", HARD, trainer_class=FailsInTheNextStep, seen=seen, snapshots=memory)
    for sealed, slot in sealed_slots(memory):
        checkpoint = seen.paths.checkpoint(sealed.manifest.step)
        save_snapshot(slot, sealed, checkpoint)
        assert_same_checkpoint(checkpoint, hard.paths.checkpoint(sealed.manifest.step))
    assert len(sealed_slots(memory)) == 2


# proves SUP-14: what is not finite is never sealed
def test_weights_that_are_not_finite_are_not_sealed(tiny: Tiny, memory: Path) -> None:
    run = tiny.run("not-finite", PLAIN, snapshots=memory)
    trainer = run.built
    taker = snapshots.Snapshots(memory, trainer.reporter)
    weight = next(parameter for name, parameter in trainer.model.named_parameters() if "lora_B" in name)
    weight.data.view(-1)[3] = float("inf")
    taker.take(trainer.step_state, trainer.provenance, True)
    taker.close()
    assert not (memory / SLOTS[0] / SEAL_NAME).exists()
    assert warnings(run) == [], "the next step's gradients will say it"


def test_a_tensor_file_is_read_by_safetensors(tmp_path: Path) -> None:
    tensors = {
        "b": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "a": torch.tensor(3.0),
        "codes": torch.arange(5, dtype=torch.uint8),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "turned": torch.arange(6, dtype=torch.float32).reshape(2, 3).T,
        "empty": torch.empty(0),
    }
    write_tensors(tmp_path / "x.safetensors", tensors)
    loaded = load_file(str(tmp_path / "x.safetensors"))
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor), name
    layout = lay_out(tensors)
    assert (tmp_path / "x.safetensors").stat().st_size == layout.size
    memory = torch.frombuffer(bytearray((tmp_path / "x.safetensors").read_bytes()), dtype=torch.uint8)
    views = dict(zip((place.name for place in layout.places), layout.views(memory), strict=True))
    assert all(torch.equal(views[name], tensor) for name, tensor in tensors.items())
