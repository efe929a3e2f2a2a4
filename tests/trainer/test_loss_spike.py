"""proves TRN-15: a loss that jumps is noticed, a noisy one is not."""

from __future__ import annotations

import random

from trainer.loss_spike import MINIMUM, LossSpikeGuard


# proves TRN-15
def test_a_jump_is_noticed_and_does_not_become_the_new_normal() -> None:
    guard = LossSpikeGuard()
    noise = random.Random(1)
    assert [guard.spike(2.0 + noise.uniform(-0.3, 0.3)) for _ in range(40)] == [None] * 40
    usual = guard.spike(6.0)
    assert usual is not None and 1.7 < usual < 2.3
    assert guard.spike(6.0) is not None
    assert guard.spike(2.1) is None


# proves TRN-15
def test_noise_a_falling_loss_and_a_short_history_are_no_spikes() -> None:
    noise = random.Random(2)
    guard = LossSpikeGuard()
    assert all(guard.spike(1.5 + noise.gauss(0, 0.4)) is None for _ in range(300))
    falling = LossSpikeGuard()
    assert all(falling.spike(10.0 * 0.97**step) is None for step in range(200))
    short = LossSpikeGuard()
    assert [short.spike(2.0) for _ in range(MINIMUM - 1)] + [short.spike(50.0)] == [None] * MINIMUM


def test_a_flat_history_needs_a_real_rise() -> None:
    guard = LossSpikeGuard()
    for _ in range(30):
        guard.spike(1.0)
    assert guard.spike(1.2) is None
    assert guard.spike(2.0) == 1.0
