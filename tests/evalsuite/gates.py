"""Evaluations and gates made of numbers, for tests of what a gate decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evalsuite.gate_config import BenchSection, GateSections
from evalsuite.gate_inputs import BenchInputs
from evalsuite.scores import (
    ACCEPTED,
    FORMAT,
    BenchIdentity,
    ModelIdentity,
    SamplingIdentity,
    Scores,
    TaskScores,
    is_whole,
)
from evalsuite.statistics.units import Floats

BASE = ModelIdentity("toy", None, None, None, "template", "weights")
CANDIDATE = ModelIdentity("toy", None, "adapter-1", 0.7, "template", "weights")


def scores_of(
    accepted: Sequence[int], samples: int = 4, clusters: Sequence[str] | None = None, **changed: Any
) -> Scores:
    """``accepted`` of each task; ``model``, ``sampling``, ``bench``, ``missing`` may be given."""
    sampling = changed.get("sampling", SamplingIdentity(samples, 0.8, 1.0, 64, 7))
    names = [f"bench/{number}" for number in range(len(accepted))]
    missing = tuple(changed.get("missing", ()))
    tasks = tuple(
        TaskScores(
            name,
            clusters[number] if clusters else name,
            samples,
            int(right),
            {ACCEPTED: (1.0,) * int(right) + (0.0,) * (samples - int(right))},
        )
        for number, (name, right) in enumerate(zip(names, accepted, strict=True))
        if name not in missing
    )
    bench = changed.get("bench", BenchIdentity("toy", "digest", len(accepted)))
    model = changed.get("model", BASE)
    return Scores(FORMAT, bench, model, sampling, tasks, is_whole(tasks, missing, sampling), missing)


def chances(tasks: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).beta(0.8, 0.8, size=tasks)


def drawn(chance: Floats, seed: int, samples: int = 4, drop: float = 0.0) -> list[int]:
    """Accepted samples of each task, the chances lowered by ``drop`` on average."""
    lowered = np.clip(chance * (1 - drop / chance.mean()), 0, 1)
    return [int(each) for each in np.random.default_rng(seed).binomial(samples, lowered)]


def gate_of(*checks: dict[str, Any], **changed: Any) -> GateSections:
    bench = {
        "bench": "bench.yaml", "candidate": "candidate", "base": "base", "release": "none",
        "checks": list(checks) or [{"margin": 0.05}],
    }  # fmt: skip
    bench.update(changed.pop("bench", {}))
    return GateSections.model_validate({"name": "toy", "benches": [bench], **changed})


def inputs_of(gate: GateSections, candidate: Scores, **references: Scores) -> BenchInputs:
    """As if they had been read, and nothing spoke against comparing them."""
    section: BenchSection = gate.benches[0]
    return BenchInputs(section, candidate, dict(references))
