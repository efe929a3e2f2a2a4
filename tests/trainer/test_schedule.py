"""proves TRN-7: the learning rate is planned over exactly the steps that run."""

from __future__ import annotations

import math

import pytest

from trainer.schedule import lr_factor, warmup_steps


def factors(total: int, ratio: float, kind: str) -> list[float]:
    warmup = warmup_steps(total, ratio)
    return [lr_factor(step, total, warmup, kind) for step in range(total)]


# proves TRN-7
def test_warm_up_starts_above_zero_and_reaches_the_peak_once_it_is_over() -> None:
    values = factors(100, 0.05, "cosine")
    assert values[:6] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0])
    assert max(values) == 1.0


# proves TRN-7
@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_decay_spans_all_planned_steps_and_ends_at_zero_one_step_later(kind: str) -> None:
    values = factors(40, 0.0, kind)
    assert values[0] == 1.0
    assert values == sorted(values, reverse=True)
    assert 0 < values[-1] < 0.05
    assert lr_factor(40, 40, 0, kind) == 0.0


def test_shapes_are_the_textbook_ones() -> None:
    assert lr_factor(10, 20, 0, "linear") == pytest.approx(0.5)
    assert lr_factor(5, 20, 0, "cosine") == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert factors(7, 0.0, "constant") == [1.0] * 7


def test_no_warm_up_when_the_ratio_is_zero_and_at_least_one_step_otherwise() -> None:
    assert warmup_steps(40, 0.0) == 0
    assert warmup_steps(40, 0.001) == 1


def test_an_unknown_shape_is_an_error() -> None:
    with pytest.raises(ValueError, match="polynomial"):
        lr_factor(5, 10, 0, "polynomial")
