"""When a disk will be full."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.sensors.forecast import (
    EXTRAPOLATION,
    KEPT_SAMPLES,
    FillHistory,
    Forecast,
    Sample,
    forecast,
)

GIB = 1 << 30


def line(free: float, per_second: float, count: int = 30, step: float = 60.0) -> list[Sample]:
    """``count`` samples that end with ``free`` left."""
    return [Sample(step * number, free + per_second * step * (count - 1 - number)) for number in range(count)]


rates = st.floats(1e3, 1e9)
horizons = st.floats(0.0, 10_000.0)


# proves SUP-13: "full in 3 h 10 m" is right for a disk that fills evenly, whatever the order of the samples
@given(rates, horizons, st.integers(8, 40), st.randoms())
def test_an_even_fill_is_foretold_exactly(rate: float, seconds: float, count: int, order: random.Random) -> None:
    samples = line(rate * seconds, rate, count=count, step=120.0)
    order.shuffle(samples)
    found = forecast(samples)
    assert found is not None
    assert found.seconds == pytest.approx(seconds, rel=1e-3, abs=0.1)
    assert found.per_second == pytest.approx(rate, rel=1e-3)


# proves SUP-13: a fifth of the samples may be wildly off (a big temporary file that comes and goes)
@given(st.lists(st.integers(1, 28), min_size=0, max_size=5, unique=True), st.floats(-100 * GIB, 100 * GIB))
def test_outliers_do_not_sway_it(places: list[int], by: float) -> None:
    samples = line(10 * GIB, 1e6)
    for place in places:
        samples[place] = Sample(samples[place].time, samples[place].free + by)
    found = forecast(samples)
    assert found is not None
    assert found.seconds == pytest.approx(10 * GIB / 1e6, rel=0.5)


# proves SUP-13: no forecast for a disk that does not fill up
@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=40))
def test_a_disk_that_empties_or_rests_has_no_forecast(gains: list[float]) -> None:
    free = 1e9
    samples = []
    for number, gain in enumerate(gains):
        free += gain
        samples.append(Sample(60.0 * number, free))
    assert forecast(samples) is None


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e12)), max_size=30), st.floats(0, 1e12))
def test_any_forecast_is_within_reason(points: list[tuple[float, float]], reserved: float) -> None:
    samples = [Sample(*point) for point in points]
    found = forecast(samples, reserved)
    if found is not None:
        span = max(sample.time for sample in samples) - min(sample.time for sample in samples)
        assert found.per_second > 0
        assert 0 <= found.seconds <= EXTRAPOLATION * span


# More that is spoken for never makes the end come later.
@given(rates, st.floats(1.0, 5000.0), st.floats(0, 1), st.floats(0, 1))
def test_reserved_room_brings_it_nearer(rate: float, seconds: float, one: float, other: float) -> None:
    samples = line(rate * seconds, rate)
    nearer, further = (forecast(samples, share * rate * seconds) for share in (max(one, other), min(one, other)))
    assert nearer is not None and further is not None
    assert nearer.seconds <= further.seconds


def test_too_few_or_too_short_is_no_forecast() -> None:
    assert forecast([]) is None
    assert forecast(line(GIB, 1e6, count=7, step=100.0)) is None
    assert forecast(line(1e8, 1e6, count=8, step=5.0)) is None
    assert forecast(line(1e8, 1e6, count=8, step=10.0)) == Forecast(100.0, 1e6)
    assert forecast([Sample(0.0, float(left)) for left in range(9)]) is None


def test_no_far_reaching_claim_from_a_short_look() -> None:
    assert forecast(line(1e6 * 3600, 1e6, count=8, step=10.0)) is None
    assert forecast(line(1e6 * 3600, 1e6, count=16, step=10.0)) is not None


def test_noise_around_a_resting_disk_is_no_forecast() -> None:
    noise = random.Random(7)
    for _ in range(50):
        assert forecast([Sample(60.0 * number, 2e7 + noise.uniform(-1e7, 1e7)) for number in range(40)]) is None


def test_a_full_disk_is_full_now() -> None:
    assert forecast(line(0.0, 1e6)) == Forecast(0.0, 1e6)


# proves SUP-13: checkpoints that retention deletes again, a sawtooth, are not a disk that fills up
def test_a_sawtooth_is_no_forecast() -> None:
    history = FillHistory()
    for number in range(2000):
        history.add(Sample(10.0 * number, 50 * GIB - (number % 30) * GIB / 3))
    found = history.forecast()
    assert found is None or found.seconds > 3600


def test_a_staircase_is_one() -> None:
    """A file of 1 GiB every half hour that nobody deletes."""
    history = FillHistory()
    for number in range(2000):
        history.add(Sample(10.0 * number, 100 * GIB - number // 180 * GIB))
    found = history.forecast()
    assert found is not None
    assert found.seconds == pytest.approx(89 * 1800, rel=0.15)


# A disk that rested for a day and then fills quickly is noticed within minutes.
def test_a_sudden_fill_is_noticed_soon() -> None:
    history = FillHistory()
    for number in range(8640):
        history.add(Sample(10.0 * number, 500 * GIB))
    noticed = None
    for number in range(8640, 8640 + 120):
        free = 500 * GIB - (number - 8639) * 2 * GIB
        history.add(Sample(10.0 * number, free))
        if noticed is None and history.forecast() is not None:
            noticed = number - 8640
    assert noticed is not None and noticed <= 40


# The history stays small however long the run is, and reaches back to its beginning.
def test_the_history_is_bounded() -> None:
    history = FillHistory()
    for number in range(20_000):
        history.add(Sample(10.0 * number, 1e15 - number * 1e7))
    assert len(history._long) <= KEPT_SAMPLES and len(history._recent) <= KEPT_SAMPLES
    assert history._long[0].time == 0.0
    steps = [after.time - before.time for before, after in pairwise(history._long)]
    assert max(steps) <= 4 * min(steps)
