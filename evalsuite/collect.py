"""Scores from the samples of an evaluation: all of a task's samples or none, counted anew in its store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from evalsuite.config import EvalSections
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
from rft.effective import read_effective_as
from rft.identity import IDENTITY
from rft.store import REFUSED, STORE_NAME, Judgement, Origin, Store
from rft.tasks.task import Task
from rft.verifiers.verdict import Outcome
from supervisor.problems import InputError
from supervisor.protocol.paths import RunPaths
from trainer.errors import ConfigurationError

SCORE = "score"
"""The metric of a verifier that grades: its scores, 0 to 1."""


class MissingError(Exception):
    """A sample without a value; a few words why."""


def collect(folder: Path) -> tuple[Scores, Mapping[str, str]]:
    """The scores of an evaluation's folder, and why each missing task is missing. Raises InputError."""
    path = RunPaths(folder).run_yaml
    if not path.is_file() or not (folder / STORE_NAME).is_file():
        raise InputError(f"{folder} holds no evaluation (no {path.name} or no {STORE_NAME}): nothing was asked there.")
    try:
        found = read_effective_as(path, EvalSections)
    except ConfigurationError as error:
        raise InputError(f"{error}. Is {folder} the folder of an evaluation?") from None
    with Store.read(folder) as store:
        return scores_of(store, found.sections, found.name)


def scores_of(store: Store, sections: EvalSections, name: str) -> tuple[Scores, Mapping[str, str]]:
    """As :func:`collect`. ``name`` of the bench."""
    wanted = sections.sampling.samples_per_task
    values: list[tuple[Task, dict[str, tuple[float, ...]]]] = []
    missing: dict[str, str] = {}
    asked: list[Task] = []
    judgements = store.judgements()
    for number, task in store.each_task():
        asked.append(task)
        try:
            values.append((task, _values(judgements.get(number, []), wanted)))
        except MissingError as error:
            missing[task.id] = str(error)
    metrics = frozenset.intersection(*(frozenset(found) for _, found in values)) if values else frozenset()
    scored = tuple(
        TaskScores(
            task.id,
            task.cluster or task.id,
            wanted,
            int(sum(found[ACCEPTED])),
            {metric: found[metric] for metric in sorted(metrics)},
        )
        for task, found in values
    )
    sampling = sampling_of(sections)
    absent = tuple(missing)
    bench = BenchIdentity(name, bench_digest(asked, store), len(scored) + len(absent))
    model = _model(_only_origin(store), sections)
    whole = is_whole(scored, absent, sampling)
    return Scores(FORMAT, bench, model, sampling, scored, whole, absent), missing


def bench_digest(tasks: Iterable[Task], store: Store) -> str:
    """Over what is asked, in whatever order, and how it is judged: verdicts of another verifier, or of another version,
    are others."""
    lines = sorted(f"{task.id}\0{task.digest}\n" for task in tasks)
    asked = hashlib.sha256("".join(lines).encode()).hexdigest()
    text = store.recall(IDENTITY)
    known = {} if text is None else msgspec.json.decode(text, type=dict[str, str])
    return hashlib.sha256(f"{asked}\n{known.get('verifiers', '')}".encode()).hexdigest()


def _values(samples: Sequence[Judgement], wanted: int) -> dict[str, tuple[float, ...]]:
    """By metric, one value per sample in their order. Raises MissingError."""
    by_index = {sample.index: sample for sample in samples}
    rows = []
    for index in range(wanted):
        sample = by_index.get(index)
        if sample is None:
            raise MissingError(f"{len(by_index)} of {wanted} samples are there")
        rows.append(_row(sample))
    names = frozenset.intersection(*(frozenset(row) for row in rows))
    return {name: tuple(row[name] for row in rows) for name in sorted(names)}


def _row(sample: Judgement) -> dict[str, float]:
    if sample.outcome is None:
        raise MissingError("a sample is not judged yet")
    if sample.outcome == REFUSED:
        raise MissingError(f"it was never drawn: {sample.why}")
    if sample.outcome == Outcome.ERROR:
        raise MissingError(f"the judge failed on a sample: {sample.why}")
    row = {**sample.metrics, ACCEPTED: float(sample.outcome == Outcome.ACCEPTED)}
    if sample.score is not None:
        row[SCORE] = sample.score
    return row


def _only_origin(store: Store) -> Origin:
    origins = list(store.samplers().values())
    if len(origins) != 1:
        raise InputError(
            f"the samples in {store.path} come from {len(origins) or 'no'} model{'s' if len(origins) > 1 else ''}, so "
            "they say nothing of one. Evaluate into a new folder."
        )
    return origins[0]


def _model(origin: Origin, sections: EvalSections) -> ModelIdentity:
    sampler = origin.sampler
    return ModelIdentity(
        sampler.model, sections.sampler.revision, sampler.adapter_digest, sampler.adapter_effect, sampler.template_hash,
        sampler.model_digest,
    )  # fmt: skip


def sampling_of(sections: EvalSections) -> SamplingIdentity:
    sampling = sections.sampling
    return SamplingIdentity(
        sampling.samples_per_task, sampling.temperature, sampling.top_p, sampling.max_new_tokens, sections.seed,
        sampling.top_k, tuple(sampling.stop),
    )  # fmt: skip
