"""One metric of one bench, candidate against reference, paired by task. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import special, stats

from evalsuite.gate_config import CheckSection, SequentialSection
from evalsuite.gate_result import CheckResult, GateVerdict
from evalsuite.metrics import sampling_noise, task_scores
from evalsuite.scores import Scores
from evalsuite.statistics.bootstrap import fitting
from evalsuite.statistics.power import sequential_detectable, sequential_power
from evalsuite.statistics.sequential import Design, bounds, order_of, wealth
from evalsuite.statistics.units import Floats, Units, units_of
from supervisor.problems import InputError

LOW, HIGH = -1.0, 1.0
"""Scores lie between 0 and 1, their differences between these."""
_MOST_TASKS = 10_000_000
_LEAST_VARIANCE = 1e-3


@dataclass(frozen=True)
class Paired:
    """Scores (tasks,) of the same tasks by two models, each task's cluster, and of how many tasks in all.

    ``noise``: the part of the variance of a difference that more samples of the same tasks would take away.
    """

    candidate: Floats
    reference: Floats
    clusters: tuple[str, ...]
    bench_tasks: int
    samples: int
    noise: float | None

    @property
    def units(self) -> Units:
        return units_of(self.candidate - self.reference, self.clusters)


@dataclass(frozen=True)
class Wanted:
    """What a verdict needs: levels of PASS and of FAIL (this one divided among the checks), power, bootstrap."""

    pass_level: float
    fail_level: float
    power: float
    draws: int
    seed: int


def paired(candidate: Scores, reference: Scores, metric: str, order: SequentialSection | None = None) -> Paired:
    """Tasks in the bench's order; in that of a sequential gate as far as the candidate was asked without a gap.

    Raises InputError when the metric is unknown or no task is there.
    """
    ours = {task.task: task for task in candidate.tasks}
    tasks = [task for task in reference.tasks if task.task in ours]
    if order is not None:
        members: dict[str, list[str]] = {}
        for task in reference.tasks:
            members.setdefault(task.cluster, []).append(task.task)
        known = {task.task: task for task in tasks}
        tasks = []
        for cluster in order_of(list(members), order.seed):
            if any(name not in known for name in members[cluster]):
                break
            tasks += [known[name] for name in members[cluster]]
    if not tasks:
        raise InputError(f"{candidate.bench.name}: no task of the candidate has a score yet.")
    mine = [ours[task.task] for task in tasks]
    scores = (task_scores(mine, metric), task_scores(tasks, metric))
    noises = (sampling_noise(mine, metric), sampling_noise(tasks, metric))
    return Paired(
        *scores, tuple(task.cluster for task in tasks),
        len(reference.tasks), candidate.sampling.samples_per_task,
        None if None in noises else math.fsum(each for each in noises if each is not None),
    )  # fmt: skip


def check(
    bench: str, section: CheckSection, against: str, data: Paired, reference: Scores, wanted: Wanted,
    order: SequentialSection | None = None,
) -> CheckResult:  # fmt: skip
    """As if it were the only check of its gate, and not yet decided: see evalsuite.gate for what is made of it."""
    threshold = -section.margin if section.margin is not None else 0.0
    units = data.units
    if order is None:
        found = _fixed(units, threshold, wanted)
        power = _FixedPower(units, found.method, wanted)
    else:
        effect = section.margin if section.margin is not None else order.effect
        assert effect is not None  # the schema says so
        design = _design(reference, section.metric, effect)
        found = _sequential(units, threshold, design, 1 - wanted.pass_level)
        power = _SequentialPower(units, found.method, wanted, data.bench_tasks)
    difference = float(units.means[0])
    return CheckResult(
        bench=bench,
        metric=section.metric,
        rule=section.rule,
        margin=section.margin,
        against=against,
        verdict=GateVerdict.INCONCLUSIVE,
        candidate=float(data.candidate.mean()),
        reference=float(data.reference.mean()),
        difference=difference,
        lower=found.lower,
        upper=found.upper,
        p_pass=found.p_pass,
        p_fail=found.p_fail,
        p_fail_corrected=found.p_fail,
        method=found.method,
        tasks=data.bench_tasks,
        asked=units.tasks,
        units=units.count,
        samples_per_task=data.samples,
        detectable_drop=power.detectable(),
        unchanged_passes=power.passes(-threshold) if section.margin is not None else wanted.pass_level,
        settled_by=_settled_by(data, power, max(difference - threshold, -difference)),
    )


@dataclass(frozen=True)
class _Found:
    lower: float
    upper: float
    p_pass: float
    p_fail: float
    method: str


def _fixed(units: Units, threshold: float, wanted: Wanted) -> _Found:
    limits = fitting(units, LOW, HIGH, wanted.draws, wanted.seed)
    confidence = 1 - wanted.pass_level
    return _Found(
        float(limits.lower(confidence)[0]), float(limits.upper(confidence)[0]), float(limits.p_above(threshold)[0]),
        float(limits.p_below(0.0)[0]), limits.method,
    )  # fmt: skip


def _sequential(units: Units, threshold: float, design: Design, confidence: float) -> _Found:
    capital = wealth(units, threshold, 0.0, design)
    lower, upper = bounds(units, 1 - confidence, design)
    return _Found(float(lower[0]), float(upper[0]), float(capital.p_above[0]), float(capital.p_below[0]), "sequential")


def _design(reference: Scores, metric: str, effect: float) -> Design:
    """From what is known of the reference alone, before the candidate is asked anything."""
    noise = sampling_noise(reference.tasks, metric)
    values = task_scores(reference.tasks, metric)
    supposed = float(values.mean() * (1 - values.mean())) if noise is None else 2 * noise
    sizes = units_of(values, [task.cluster for task in reference.tasks]).sizes
    return Design(effect, max(supposed, _LEAST_VARIANCE), LOW, HIGH, float(sizes.max()))


@dataclass(frozen=True)
class _FixedPower:
    """What so many tasks can show, by the spread that their differences have."""

    units: Units
    method: str
    wanted: Wanted

    @property
    def error(self) -> float:
        """Of the mean; 0 for a single unit, whose bound comes from the worst case alone."""
        found = float(self.units.standard_errors[0])
        return 0.0 if math.isnan(found) else found

    def reach(self, error: float, times: float, level: float) -> float:
        """From the mean to its bound, with ``times`` as many units that give a standard error of ``error``."""
        count = self.units.count * times
        if self.method == "bca":
            return float(special.stdtrit(count - 1, 1 - level)) * error
        largest = float(self.units.sizes.max())  # the size of the unit that is added, of exponential weight
        pull = (HIGH - LOW) / 2 * largest / (self.units.tasks * times + largest)
        if error < pull * 1e-6:
            return -math.log(level) * pull
        return float(stats.exponnorm.ppf(1 - level, pull / error, scale=error))

    def needed(self, error: float, times: float, level: float) -> float:
        return self.reach(error, times, level) + float(special.ndtri(self.wanted.power)) * error

    def detectable(self) -> float:
        return min(HIGH, self.needed(self.error, 1.0, self.wanted.fail_level))

    def passes(self, margin: float) -> float:
        room = margin - self.reach(self.error, 1.0, self.wanted.pass_level)
        return float(special.ndtr(room / self.error)) if self.error > 0 else float(room > 0)

    def tasks_for(self, distance: float) -> int | None:
        """Tasks of the same kind that would show ``distance``; None when it takes more than anybody has."""
        least, most = 1.0, _MOST_TASKS / self.units.tasks
        if most < least or self.needed(self.error / math.sqrt(most), most, self.wanted.pass_level) > distance:
            return None
        for _ in range(60):
            middle = math.sqrt(least * most)
            enough = self.needed(self.error / math.sqrt(middle), middle, self.wanted.pass_level) <= distance
            least, most = (least, middle) if enough else (middle, most)
        return math.ceil(most * self.units.tasks)

    def error_for(self, distance: float) -> float | None:
        """The standard error, over the same units, that would show ``distance``."""
        if self.needed(0.0, 1.0, self.wanted.pass_level) > distance:
            return None
        least, most = 0.0, self.error
        for _ in range(60):
            middle = (least + most) / 2
            enough = self.needed(middle, 1.0, self.wanted.pass_level) <= distance
            least, most = (middle, most) if enough else (least, middle)
        return least


@dataclass(frozen=True)
class _SequentialPower(_FixedPower):
    """The same for bets on one unit after the other, over all of the bench's tasks."""

    bench_tasks: int = 0

    @property
    def spread(self) -> float:
        return max(self.error * math.sqrt(self.units.tasks), 1e-9)

    def needed(self, error: float, times: float, level: float) -> float:
        return sequential_detectable(error, 1, level, self.wanted.power)

    def detectable(self) -> float:
        return min(
            HIGH, sequential_detectable(self.spread, self.bench_tasks, self.wanted.fail_level, self.wanted.power)
        )

    def passes(self, margin: float) -> float:
        return sequential_power(margin, self.spread, self.bench_tasks, self.wanted.pass_level)


def _settled_by(data: Paired, power: _FixedPower, distance: float) -> str:
    """What would probably settle a check whose difference stays as it is."""
    left = data.bench_tasks - power.units.tasks
    if left:
        return f"{left} of {data.bench_tasks} tasks are still to be asked"
    if distance <= 0:
        return "a difference of 0 is settled by no number of tasks"
    tasks = power.tasks_for(distance)
    found = f"about {tasks:,} tasks of this kind" if tasks else f"more than {_MOST_TASKS:,} tasks of this kind"
    samples = _samples_for(data, power, distance)
    if samples is None:
        return f"a difference like this is settled by {found}; more samples of these tasks would not do"
    return f"a difference like this is settled by {found}, or by about {samples:,} samples of each of these"


def _samples_for(data: Paired, power: _FixedPower, distance: float) -> int | None:
    """Samples of each of these tasks; None when that would not do, or is unknown."""
    error = power.error_for(distance)
    if data.noise is None or error is None or not data.noise > 0:
        return None
    kept = data.noise - (power.error**2 - error**2) * power.units.tasks
    if kept <= data.noise * 1e-4:
        return None
    return max(data.samples + 1, math.ceil(data.samples * data.noise / kept))
