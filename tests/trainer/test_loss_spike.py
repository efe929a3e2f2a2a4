"""proves TRN-15: a loss that jumps is noticed, a noisy one is not."""

from __future__ import annotations

import random

from trainer.loss_spike import LASTING, MINIMUM, LossSpikeGuard, Spike


# proves TRN-15
def test_a_jump_is_noticed_and_does_not_become_the_new_normal() -> None:
    guard = LossSpikeGuard()
    noise = random.Random(1)
    assert [guard.spike(2.0 + noise.uniform(-0.3, 0.3)) for _ in range(40)] == [None] * 40
    found = guard.spike(6.0)
    assert found is not None and 1.7 < found.usual < 2.3 and not found.lasting
    assert guard.spike(6.0) is None, "a spike is news once"
    assert guard.spike(2.1) is None
    assert guard.spike(6.0) is not None


# proves TRN-15: a loss that stays where it jumped to is said once more, and the guard works on from there
def test_a_lasting_jump_becomes_the_range() -> None:
    guard = LossSpikeGuard([2.0] * 40)
    said = [guard.spike(6.0) for _ in range(3 * LASTING)]
    assert [step for step, found in enumerate(said) if found is not None] == [0, LASTING - 1]
    assert said[LASTING - 1] == Spike(2.0, lasting=True)
    assert guard.spike(20.0) == Spike(6.0, lasting=False)


# proves TRN-15: resuming does not blind the guard
def test_it_goes_on_with_what_was_logged_before() -> None:
    noise = random.Random(3)
    losses = [2.0 + noise.uniform(-0.3, 0.3) for _ in range(MINIMUM)]
    assert LossSpikeGuard(losses).spike(6.0) is not None
    assert LossSpikeGuard().spike(6.0) is None


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
    assert guard.spike(2.0) == Spike(1.0, lasting=False)
