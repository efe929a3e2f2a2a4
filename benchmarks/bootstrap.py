"""The bootstrap and a whole gate: how long they take. The peer is scipy.stats.bootstrap (BCa), in the same run."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import numpy as np
from machine import describe, verdict
from scipy import stats

from evalsuite.gate import judge
from evalsuite.gate_config import GateSections
from evalsuite.gate_inputs import BenchInputs
from evalsuite.scores import (
    FORMAT,
    BenchIdentity,
    ModelIdentity,
    SamplingIdentity,
    Scores,
    TaskScores,
)
from evalsuite.statistics.bootstrap import bca
from evalsuite.statistics.units import units_of

TASKS, METRICS, DRAWS = 1319, 3, 10_000
GATE_TASKS, GATE_SAMPLES = 164, 20
ROUNDS = 7


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def paired_draws() -> tuple[float, float, float]:
    """Ratios of our time to the peer's: every task by itself, and in clusters of about four; the peer's seconds.

    Both take turns, so that what else the machine does falls on both.
    """
    dice = np.random.default_rng(0)
    values = dice.choice([-1.0, -0.5, 0.0, 0.5, 1.0], p=[0.04, 0.1, 0.7, 0.1, 0.06], size=(TASKS, METRICS))
    clusters = [str(each) for each in dice.integers(0, TASKS // 4, size=TASKS)]
    alone, together, peer = [], [], []

    def ours(names: list[str] | None) -> None:
        found = bca(units_of(values, names), DRAWS, 1)
        found.lower(0.975), found.upper(0.975)

    def theirs() -> None:
        stats.bootstrap((values[:, 0],), np.mean, n_resamples=DRAWS, method="BCa", rng=np.random.default_rng(1))

    for _ in range(ROUNDS):
        alone.append(seconds(lambda: ours(None)))
        peer.append(seconds(theirs))
        together.append(seconds(lambda: ours(clusters)))
    ratios = (statistics.median(a / b for a, b in zip(mine, peer, strict=True)) for mine in (alone, together))
    return *ratios, statistics.median(peer)  # type: ignore[return-value]


def gate_seconds() -> float:
    """A gate of two metrics against base and release."""
    dice = np.random.default_rng(3)
    chance = dice.beta(0.8, 0.8, size=GATE_TASKS)

    def scores(adapter: str | None) -> Scores:
        drawn = dice.random((GATE_TASKS, GATE_SAMPLES)) < chance[:, None]
        tasks = tuple(
            TaskScores(f"t/{at}", f"t/{at}", GATE_SAMPLES, int(row.sum()), {"accepted": tuple(row.astype(float))})
            for at, row in enumerate(drawn)
        )
        model = ModelIdentity("base", None, adapter, adapter and 0.5, "t", "w")
        sampling = SamplingIdentity(GATE_SAMPLES, 0.8, 1.0, 512, 1)
        return Scores(FORMAT, BenchIdentity("bench", "d", GATE_TASKS), model, sampling, tasks, True, ())

    checks = [{"margin": 0.03}, {"metric": "pass@10", "margin": 0.03}]
    bench = {"bench": "b", "candidate": "c", "base": "b", "release": "r", "checks": checks}
    gate = GateSections.model_validate({"name": "gate", "benches": [bench]})
    read = BenchInputs(gate.benches[0], scores("a1"), {"base": scores(None), "release": scores("a0")})
    return statistics.median(seconds(lambda: judge(gate, [], [read])) for _ in range(ROUNDS))


def main() -> None:
    print(f"Bootstrap of paired differences. {describe()}")
    alone, together, peer = paired_draws()
    print(f"{DRAWS} draws over {TASKS} tasks; scipy's BCa for one plain mean of one metric: {peer:.3f} s")
    verdict(f"{METRICS} metrics, time as a share of scipy's", alone, 1.0, at_least=False)
    verdict(f"{METRICS} metrics, {TASKS // 4} clusters, the same", together, 1.0, at_least=False)
    gate = gate_seconds()
    verdict(f"four checks over {GATE_TASKS} tasks x {GATE_SAMPLES} samples, seconds", gate, 1.0, at_least=False)
    results = {"alone": alone, "clustered": together, "peer_seconds": peer, "gate_seconds": gate}
    print(json.dumps({"benchmark": "bootstrap", **results}))


if __name__ == "__main__":
    main()
