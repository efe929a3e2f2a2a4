"""A sequence length that is lowered on the way: the rest is planned anew and nothing is lost or repeated."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tiny_runs import Attempt, Tiny

from supervisor.protocol.attempt import ExitKind
from trainer.checkpoint import DataPosition
from trainer.data.plan import Segment

EPOCH = {"train.max_steps": -1, "train.num_train_epochs": 1.0, "train.per_device_train_batch_size": 1,
         "train.max_length": 128}  # fmt: skip
SHORTER = {**EPOCH, "train.max_length": 64}
CUT = 3


@pytest.fixture(scope="module")
def long_run(tiny: Tiny) -> Attempt:
    return tiny.run("long", EPOCH, save_steps=CUT)


@pytest.fixture(scope="module")
def shortened(tiny: Tiny, long_run: Attempt) -> Attempt:
    return tiny.run(
        "shortened", SHORTER, resume_from=long_run.paths.checkpoint(CUT), number=2, accepted=("max_length",),
        save_steps=2,
    )  # fmt: skip


# proves SUP-3 (drop one rung), SUP-15
def test_planned_is_done(shortened: Attempt, long_run: Attempt) -> None:
    report = shortened.report
    assert report is not None and report.kind is ExitKind.COMPLETED
    assert report.planned == report.done
    assert report.done["rows"] == 24
    assert long_run.report is not None
    assert report.done["steps"] > long_run.report.done["steps"], "shorter bins, more steps"
    (event,) = shortened.events("accepted_change")
    assert event.message == "max_length: checkpoint 128, now 64"


# proves TRN-7: every row of the epoch once, those before the cut where they were
def test_every_row_is_used_once(shortened: Attempt, long_run: Attempt) -> None:
    before, after = long_run.built.plan, shortened.built.plan
    head = before.bins_before_step(CUT)
    for index in range(head):
        assert np.array_equal(before.bin(index), after.bin(index))
        assert after.max_length_of_bin(index) == 128
    assert all(after.max_length_of_bin(index) == 64 for index in range(head, after.total_bins))
    used = np.concatenate([after.bin(index) for index in range(after.total_bins)])
    assert sorted(used.tolist()) == list(range(24))


# proves TRN-12: the segments are in the checkpoint, and resuming from it needs no acceptance any more
def test_the_segments_are_recorded_and_resumed_from(tiny: Tiny, shortened: Attempt) -> None:
    middle = shortened.paths.checkpoint(CUT + 1)
    position = msgspec.json.decode((middle / "data_plan.json").read_bytes(), type=DataPosition)
    assert position.segments == (Segment(128, 0), Segment(64, CUT))
    resumed = tiny.run("shortened-resumed", SHORTER, resume_from=middle, number=3)
    assert not resumed.events("accepted_change")
    assert resumed.report == shortened.report
    steps = (shortened.report and shortened.report.step) or 0
    left, right = (run.paths.checkpoint(steps) / "adapter_model.safetensors" for run in (shortened, resumed))
    assert left.read_bytes() == right.read_bytes()


# proves TRN-12: the moments of the optimiser survive the change
def test_the_optimiser_goes_on(shortened: Attempt) -> None:
    states = shortened.built.optimizer.state_dict()["state"]
    assert {int(state["step"]) for state in states.values()} == {shortened.built.plan.total_steps}
