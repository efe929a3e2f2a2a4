"""Advantages against the formulas of the papers, computed by other means."""

from __future__ import annotations

import statistics

import pytest

from rft.advantages import EPSILON, advantages, has_signal

MIXED = [1.0, 0.0, 0.0, 1.0, 0.25]


# proves RFT-8
def test_group_std_is_the_distance_from_the_mean_in_standard_deviations() -> None:
    mean, spread = statistics.mean(MIXED), statistics.stdev(MIXED)
    assert advantages(MIXED, "group_std") == pytest.approx([(r - mean) / (spread + EPSILON) for r in MIXED], abs=1e-12)
    two = advantages([0.0, 1.0], "group_std")
    assert two == pytest.approx([-0.5 / (0.5**0.5 + EPSILON), 0.5 / (0.5**0.5 + EPSILON)], abs=1e-12)


# proves RFT-8
def test_mean_only_does_not_divide_by_a_spread() -> None:
    assert advantages(MIXED, "mean_only") == pytest.approx([r - 0.45 for r in MIXED], abs=1e-12)
    # one right in eight moves as far as seven in eight, and neither is blown up
    rare = advantages([1.0] + [0.0] * 7, "mean_only")
    assert rare[0] == pytest.approx(0.875) and rare[1] == pytest.approx(-0.125)


# proves RFT-8
def test_leave_one_out_compares_with_the_others_alone() -> None:
    expected = [r - statistics.mean(MIXED[:i] + MIXED[i + 1 :]) for i, r in enumerate(MIXED)]
    assert advantages(MIXED, "leave_one_out") == pytest.approx(expected, abs=1e-12)


# proves RFT-8
@pytest.mark.parametrize("how", ["group_std", "mean_only", "leave_one_out"])
def test_an_unscored_rollout_is_no_zero(how: str) -> None:
    rewards = [1.0, None, 0.0, None, 1.0]
    found = advantages(rewards, how)  # type: ignore[arg-type]
    assert found[1] is None and found[3] is None
    assert [found[0], found[2], found[4]] == advantages([1.0, 0.0, 1.0], how)  # type: ignore[arg-type]
    assert found[0] != advantages([1.0, 0.0, 0.0, 0.0, 1.0], how)[0]  # type: ignore[arg-type]
    assert sum(each for each in found if each is not None) == pytest.approx(0.0, abs=1e-9)


# proves RFT-8
@pytest.mark.parametrize("how", ["group_std", "mean_only", "leave_one_out"])
@pytest.mark.parametrize(
    "rewards",
    [[1.0, 1.0, 1.0], [0.0, 0.0], [0.1 + 0.2, 0.3, 0.3], [1.0], [None, 0.5, None], [None, None], [1.0, None, 1.0], []],
)
def test_a_group_without_difference_teaches_nothing_and_is_flagged(how: str, rewards: list[float | None]) -> None:
    assert not has_signal(rewards)
    assert advantages(rewards, how) == [None if reward is None else 0.0 for reward in rewards]  # type: ignore[arg-type]


# proves RFT-8
def test_a_small_difference_is_one_and_a_reward_that_is_no_number_is_refused() -> None:
    assert has_signal([0.5, 0.5001]) and has_signal([None, 0.0, 1.0])
    assert abs(advantages([0.5, 0.5001], "group_std")[0] or 0) < 0.8
    with pytest.raises(ValueError, match="not finite"):
        advantages([1.0, float("nan")], "mean_only")
