"""Advantages of rollouts in their group. Pure functions of rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

Advantage = Literal["group_std", "mean_only", "leave_one_out"]
EPSILON = 1e-4
"""Added to the standard deviation, as TRL and verl do, so that rewards that hardly differ do not explode."""
TOLERANCE = 1e-9
"""Rewards nearer to each other than this (relative to the largest) are the same."""


def advantages(rewards: Sequence[float | None], how: Advantage) -> list[float | None]:
    """The advantage of every rollout of one group.

    ``None`` is a rollout without a reward: the judge failed, which says nothing of the answer. It counts neither in the
    group's mean nor in its spread, and has no advantage.

    - ``group_std`` (GRPO): ``(r - mean) / (std + EPSILON)``, the sample's standard deviation (n - 1)
    - ``mean_only`` (Dr. GRPO): ``r - mean``, not divided by a spread that favours tasks nearly always or never solved
    - ``leave_one_out`` (RLOO): ``r`` less the mean of the others, which does not contain ``r`` itself

    All are 0 in a group whose rewards are the same, and for a rollout that is the only one with a reward: there is
    nothing to compare it with. Raises ValueError for a reward that is not finite.
    """
    scored = [reward for reward in rewards if reward is not None]
    if not all(map(math.isfinite, scored)):
        raise ValueError("a reward is not finite")
    if not has_signal(rewards):
        return [None if reward is None else 0.0 for reward in rewards]
    count = len(scored)
    mean = math.fsum(scored) / count
    if how == "group_std":
        spread = math.sqrt(math.fsum((reward - mean) ** 2 for reward in scored) / (count - 1)) + EPSILON
        return [None if reward is None else (reward - mean) / spread for reward in rewards]
    factor = 1.0 if how == "mean_only" else count / (count - 1)
    return [None if reward is None else (reward - mean) * factor for reward in rewards]


def has_signal(rewards: Sequence[float | None]) -> bool:
    """Whether at least two rollouts have rewards and these differ: otherwise nothing is learnt from the group."""
    scored = [reward for reward in rewards if reward is not None]
    if len(scored) < 2:
        return False
    low, high = min(scored), max(scored)
    return high - low > TOLERANCE * max(1.0, abs(low), abs(high))
