"""Moments set back are those of a fresh optimiser."""

from collections.abc import Callable

import pytest
import torch
from bitsandbytes.optim import AdamW8bit

from trainer.moments import reset_moments

SIZES = (300, 5000)
"""bitsandbytes keeps the moments of small tensors in 32 bits."""
Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def _steps(parameters: list[torch.nn.Parameter], optimiser: torch.optim.Optimizer, count: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=draw)
        optimiser.step()


def _fresh() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.linspace(-1, 1, size)) for size in SIZES]


# proves FED-1 (every round begins with fresh moments, with an 8-bit optimiser as well)
@pytest.mark.parametrize("make", [lambda p: torch.optim.AdamW(p, lr=0.01), lambda p: AdamW8bit(p, lr=0.01)])
def test_what_is_set_back_goes_on_as_a_fresh_one_would(make: Make) -> None:
    used, fresh = _fresh(), _fresh()
    optimiser = make(used)
    _steps(used, optimiser, 3, seed=1)
    held = [value for state in optimiser.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    reset_moments(optimiser)
    now = [value for state in optimiser.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    assert all(one is other for one, other in zip(held, now, strict=True)), "snapshots hold the very tensors"
    with torch.no_grad():
        for parameter, begin in zip(used, _fresh(), strict=True):
            parameter.copy_(begin)
    _steps(used, optimiser, 3, seed=2)
    _steps(fresh, make(fresh), 3, seed=2)
    assert all(torch.equal(one, other) for one, other in zip(used, fresh, strict=True))


def test_an_optimiser_with_other_state_is_refused() -> None:
    parameters = _fresh()
    optimiser = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    _steps(parameters, optimiser, 1, seed=1)
    with pytest.raises(ValueError, match="momentum_buffer of SGD"):
        reset_moments(optimiser)
