"""Predictions are remembered, compared with what was measured, and corrected by it. proves TRN-16."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import Tiny

from trainer.collate import PAD_MULTIPLE
from trainer.config import SftSections
from trainer.peak_memory import Comparison, PeakMeter, Reached, _missed
from trainer.planner import predict, trace
from trainer.planner.calibration import (
    ALLOCATOR_SHARE,
    KEPT,
    SMALLEST_BYTES,
    Measured,
    calibration_file,
    ratio_for,
    read_measured,
    remember,
)
from trainer.planner.predict import forecast_memory, padded, predicted, question_key, sequence_tokens
from trainer.planner.shapes import find_shape
from trainer.sft import SupervisedSFTTrainer

BIG = 4 * SMALLEST_BYTES


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, but for the tiny model that is in the user's."""
    from trainer.base_model import locate
    from trainer.cache import cache_root

    locate("random:1x64", None)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "models").symlink_to(cache_root() / "models")
    monkeypatch.setenv("MENS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entry(ratio: float, base: str = "a", device: str = "cuda", predicted: int = BIG) -> Measured:
    return Measured(device, "card", base, "key", predicted, round(predicted * ratio), 0.0)


def test_the_ratio_is_the_median_of_runs_alike() -> None:
    assert ratio_for([], "cuda", "a").value == ALLOCATOR_SHARE
    assert ratio_for([], "cpu", "a").value == 1.0
    known = [entry(1.1), entry(1.3), entry(1.2), entry(2.0, base="b"), entry(5.0, device="cpu")]
    assert ratio_for(known, "cuda", "a").value == pytest.approx(1.2)
    assert "3 runs of a" in ratio_for(known, "cuda", "a").source
    assert ratio_for(known, "cuda", "c").value == pytest.approx(1.25)
    assert ratio_for([entry(9.0, predicted=SMALLEST_BYTES - 1)], "cuda", "a").value == ALLOCATOR_SHARE


def test_measurements_are_kept_and_bounded() -> None:
    assert read_measured() == []
    for number in range(KEPT + 3):
        remember(entry(1.0, base=str(number)))
    kept = read_measured()
    assert len(kept) == KEPT and kept[-1].base == str(KEPT + 2)
    calibration_file().write_text("not json")
    assert read_measured() == []


def test_the_stored_ratio_corrects_the_forecast(tiny: Tiny) -> None:
    settings = tiny.sections()
    plain = forecast_memory(settings, "cpu")
    assert plain.allocator_bytes == 0 and "built-in share" in plain.calibration
    remember(entry(1.5, base="random:1x64", device="cpu"))
    corrected = forecast_memory(settings, "cpu")
    assert corrected.tensor_bytes == plain.tensor_bytes
    assert corrected.peak_bytes - plain.peak_bytes == pytest.approx(0.5 * plain.tensor_bytes, abs=2)
    assert "1.500 in 1 run of random:1x64" in corrected.calibration


def test_a_shape_is_traced_once(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny.sections()
    first = predicted(find_shape(settings.model.base), settings, "cpu", settings.train.max_length)

    def again(*_: Any) -> Any:
        raise AssertionError("traced a second time")

    monkeypatch.setattr(trace, "trace", again)
    assert predicted(find_shape(settings.model.base), settings, "cpu", settings.train.max_length) == first
    with pytest.raises(AssertionError, match="second time"):
        predicted(find_shape(settings.model.base), settings, "cpu", 64)


@pytest.mark.parametrize(
    "changes",
    [
        {"train.max_length": 64}, {"train.per_device_train_batch_size": 1}, {"train.gradient_checkpointing": True},
        {"train.optim": "adamw_8bit"}, {"model.lora": {"r": 5}}, {"model.dtype": "bfloat16"},
        {"model.quantization": "nf4"}, {"eval.per_device_eval_batch_size": 2}, {"model.base": "random:1x128"},
        {"train.gradient_accumulation_steps": 1},
    ],
)  # fmt: skip
def test_what_changes_the_memory_changes_the_question(tiny: Tiny, changes: dict[str, Any]) -> None:
    assert key(tiny.sections(changes)) != key(tiny.sections())
    assert key(tiny.sections({"train.learning_rate": 1e-5, "train.max_steps": 9})) == key(tiny.sections())


def key(settings: SftSections, device: str = "cpu") -> str:
    return question_key(find_shape(settings.model.base), settings, device, settings.train.max_length)


def test_our_own_code_is_part_of_the_question(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(tiny.sections())
    monkeypatch.setattr(predict, "_code_digest", lambda: "other code")
    assert key(tiny.sections()) != before


FULL = {"train.max_length": 32}
"""So short that every batch is full."""


def test_a_run_tells_measured_beside_predicted(tiny: Tiny) -> None:
    settings = tiny.sections(FULL)
    expected = predicted(find_shape(settings.model.base), settings, "cpu", settings.train.max_length).tensor_bytes
    said = tiny.run("measured", FULL).data_of("memory")
    assert said["measured_bytes"] > 0
    assert said["predicted_tensor_bytes"] == expected
    assert said["ratio"] == pytest.approx(said["measured_bytes"] / expected, abs=1e-3)
    assert read_measured() == []  # so small a model calibrates nothing


def test_a_measurement_of_a_large_enough_model_calibrates(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny.sections(FULL)
    expected = predicted(find_shape(settings.model.base), settings, "cpu", settings.train.max_length).tensor_bytes
    monkeypatch.setattr("trainer.peak_memory.SMALLEST_BYTES", 0)
    said = tiny.run("calibrated", FULL).data_of("memory")
    (kept,) = read_measured()
    assert (kept.device, kept.base, kept.predicted_bytes) == ("cpu", "random:1x64", expected)
    assert kept.measured_bytes == said["measured_bytes"]


class StoppedAfterOneStep(SupervisedSFTTrainer):
    """Asked to stop in the first step, before any of the longest sequences."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return super().training_step(*args, **kwargs)


def test_an_attempt_that_never_reached_its_peak_calibrates_nothing(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bin is as long as the window, the others are short: only a whole run is sure to have had it."""
    changes = {"train.packing": False, "train.max_steps": 5, "train.per_device_train_batch_size": 1}
    settings = tiny.sections(changes)
    monkeypatch.setattr("trainer.peak_memory.SMALLEST_BYTES", 0)
    for length in range(8, settings.train.max_length + 8, 8):
        predict.remember(
            question_key(find_shape(settings.model.base), settings, "cpu", length),
            predict.Prediction("forward", {"weights": 1 << 30}, 1),
        )
    (event,) = tiny.run("cut-short", changes, trainer_class=StoppedAfterOneStep).events("memory")
    assert "the largest micro-batch of this attempt had" in event.message and "ratio" not in event.data
    assert read_measured() == []


@pytest.mark.parametrize(
    ("reached", "when", "said"),
    [
        (Reached(0, evaluated=True), "forward", "had 0 tokens"),
        (Reached(186, evaluated=True), "forward", "had 186 tokens, and what was predicted is 192"),
        (Reached(187, evaluated=False), "forward", ""),
        (Reached(192, evaluated=False), "evaluation", "made none"),
        (Reached(192, evaluated=True), "evaluation", ""),
    ],
)
def test_what_an_attempt_must_have_done_to_be_compared(tiny: Tiny, reached: Reached, when: str, said: str) -> None:
    found = _missed(Comparison(1, "key", when=when), tiny.sections(), 96, reached)
    assert (said in found) if said else not found


def test_without_a_prediction_a_run_says_so(tiny: Tiny) -> None:
    (event,) = tiny.run("unpredicted", FULL).events("memory")
    assert event.data["predicted_tensor_bytes"] is None and "none was made" in event.message


def test_short_sequences_are_not_held_against_a_prediction_for_long_ones(tiny: Tiny) -> None:
    changes = {"train.max_length": 4096, "train.packing": False}
    settings = tiny.sections(changes)
    predict.remember(key(settings), predict.Prediction("forward", {"weights": 1}, 1))
    (event,) = tiny.run("short", changes).events("memory")
    assert "the longest sequence had" in event.message


def test_the_longest_sequence_counts_where_it_is_known(tiny: Tiny) -> None:
    settings = tiny.sections({"train.max_length": 1000})
    assert sequence_tokens(settings, None) == 1000
    assert sequence_tokens(settings, 970) == 1000
    assert sequence_tokens(settings, 961) == 968
    assert sequence_tokens(settings, 5000) == 1000
    assert padded(1) == PAD_MULTIPLE and padded(9) == 2 * PAD_MULTIPLE
    most, less = (forecast_memory(settings, "cpu", tokens) for tokens in (None, 100))
    assert less.tensor_bytes < most.tensor_bytes and "x 104 tokens" in less.conditions


def test_the_meter_sees_memory_come_and_go() -> None:
    meter = PeakMeter(torch.device("cpu"))
    held = torch.ones(64 << 20, dtype=torch.uint8)
    del held
    measured = meter.measured()
    assert measured is not None and 60 << 20 < measured < 300 << 20
    assert meter.allocated() is None


def test_the_size_of_a_checkpoint_is_foreseen(tiny: Tiny) -> None:
    changes = {"model.lora": {"r": 64}}
    attempt = tiny.run("checkpoint", changes)
    real = sum(file.stat().st_size for file in attempt.paths.checkpoint(3).iterdir())
    assert forecast_memory(tiny.sections(changes), "cpu").checkpoint_bytes == pytest.approx(real, rel=0.1)
