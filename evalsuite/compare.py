"""Two evaluations of one bench side by side: paired differences and how far to trust them. Pure.

A comparison describes; it decides nothing. Whether a model may be released is a gate's business.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evalsuite.check import HIGH, LOW, paired
from evalsuite.comparable import differences, not_applied, not_whole
from evalsuite.metrics import metrics_of
from evalsuite.scores import ModelIdentity, Scores, scores_digest
from evalsuite.statistics.bootstrap import DRAWS, fitting
from evalsuite.statistics.corrections import holm
from evalsuite.statistics.intervals import score_interval
from evalsuite.statistics.power import detectable_effect


class MetricComparison(msgspec.Struct, frozen=True):
    """Scores are means over tasks, ``difference`` is the second less the first; each between ``low`` and ``high`` with
    the comparison's confidence (two-sided), by ``method``.

    ``p_value``: two-sided, against no difference; ``p_corrected``: for all metrics together. ``better``, ``worse``,
    ``same``: tasks by the sign of their difference. ``detectable``: the smallest difference that is found with 80 %
    power, by the spread seen here.
    """

    metric: str
    first: float
    first_low: float
    first_high: float
    second: float
    second_low: float
    second_high: float
    difference: float
    low: float
    high: float
    p_value: float
    p_corrected: float
    method: str
    units: int
    better: int
    worse: int
    same: int
    detectable: float


class Comparison(msgspec.Struct, frozen=True):
    """``digests`` and ``models`` of the first and the second evaluation."""

    bench: str
    bench_digest: str
    digests: tuple[str, str]
    models: tuple[ModelIdentity, ModelIdentity]
    tasks: int
    samples_per_task: int
    confidence: float
    metrics: tuple[MetricComparison, ...]


def why_not(first: Scores, second: Scores) -> list[str]:
    """Why these two may not be compared."""
    reasons = [each for role, scores in (("first", first), ("second", second)) for each in not_whole(scores, role)]
    reasons += [each for role, scores in (("first", first), ("second", second)) for each in not_applied(scores, role)]
    return [*reasons, *(each.replace("the candidate", "the second") for each in differences(second, first, "first"))]


def compare(
    first: Scores,
    second: Scores,
    metrics: Sequence[str] = (),
    confidence: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> Comparison:
    """By ``metrics``, or by all that the bench has. Raises InputError for one that it hasn't."""
    names = list(metrics) or metrics_of(first)
    found = [_metric(first, second, name, confidence, draws, seed) for name in names]
    corrected = holm([each.p_value for each in found])
    return Comparison(
        first.bench.name, first.bench.digest, (scores_digest(first), scores_digest(second)),
        (first.model, second.model), len(first.tasks), first.sampling.samples_per_task, confidence,
        tuple(msgspec.structs.replace(each, p_corrected=p) for each, p in zip(found, corrected, strict=True)),
    )  # fmt: skip


def _metric(first: Scores, second: Scores, metric: str, confidence: float, draws: int, seed: int) -> MetricComparison:
    data = paired(second, first, metric)
    units = data.units
    limits = fitting(units, LOW, HIGH, draws, seed)
    each = (1 + confidence) / 2
    before = score_interval(data.reference, data.clusters, confidence, draws=draws, seed=seed)
    after = score_interval(data.candidate, data.clusters, confidence, draws=draws, seed=seed)
    p = min(1.0, 2 * min(float(limits.p_above(0.0)[0]), float(limits.p_below(0.0)[0])))
    gained = data.candidate - data.reference
    error = units.standard_errors[0]
    return MetricComparison(
        metric,
        before.estimate, before.low, before.high,
        after.estimate, after.low, after.high,
        float(units.means[0]), float(limits.lower(each)[0]), float(limits.upper(each)[0]),
        p, p, limits.method, units.count,
        int((gained > 0).sum()), int((gained < 0).sum()), int((gained == 0).sum()),
        detectable_effect(float(error), 1, (1 - confidence) / 2) if units.count > 1 else HIGH,
    )  # fmt: skip
