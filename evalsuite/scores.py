"""What an evaluation found: one value per sample, task and metric, with all that makes two evaluations comparable.

``scores.json`` in the folder of ``mens-sup eval run``. Light: no numpy, no torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from supervisor.problems import InputError
from supervisor.protocol.atomic import write_atomic

SCORES_NAME = "scores.json"
FORMAT = 1
ACCEPTED = "accepted"
"""The metric that every bench has: 1 for a sample that its verifier accepted, 0 for any other."""


class BenchIdentity(msgspec.Struct, frozen=True):
    """``digest`` over ids, prompts, tools and checks of all tasks in order, and over the verifiers' versions and
    settings; ``tasks``: how many there are, judged or not."""

    name: str
    digest: str
    tasks: int


class ModelIdentity(msgspec.Struct, frozen=True):
    """``adapter``: SHA-256 over its weights and configuration, None for the base alone. ``adapter_effect_nats``: the
    largest difference that it makes to the log-probabilities of a probe; None where it was not measured, and then it is
    not proven applied. ``template_hash``: of the one renderer; None where a server renders. ``base_digest``: over the
    base's files where they are local."""

    base: str
    base_revision: str | None
    adapter: str | None
    adapter_effect_nats: float | None
    template_hash: str | None
    base_digest: str | None = None


class SamplingIdentity(msgspec.Struct, frozen=True):
    samples_per_task: int
    temperature: float
    top_p: float
    max_new_tokens: int
    seed: int
    top_k: int = 0
    stop: tuple[str, ...] = ()


class TaskScores(msgspec.Struct, frozen=True):
    """``values[metric]``: one value, 0 to 1 and the higher the better, for each of ``samples``, in their order; all
    tasks of a bench have the same metrics. ``cluster``: what tasks have in common that are no independent evidence."""

    task: str
    cluster: str
    samples: int
    accepted: int
    values: Mapping[str, tuple[float, ...]]


class Scores(msgspec.Struct, frozen=True):
    """``tasks`` in the bench's order, only those of which every sample has a verdict; ``missing``: ids of the others.
    ``whole``: nothing is missing and every task has ``sampling.samples_per_task`` samples."""

    format: int
    bench: BenchIdentity
    model: ModelIdentity
    sampling: SamplingIdentity
    tasks: tuple[TaskScores, ...]
    whole: bool
    missing: tuple[str, ...]


class _File(msgspec.Struct, frozen=True):
    scores: Scores
    sha256: str


def scores_digest(scores: Scores) -> str:
    """SHA-256 by which an artefact names the scores that it read."""
    return hashlib.sha256(msgspec.json.encode(scores, order="sorted")).hexdigest()


def write_scores(folder: Path, scores: Scores) -> Path:
    """``scores.json``, whole or not at all. Raises OSError, and ValueError for scores that contradict themselves."""
    if problem := contradiction(scores):
        raise ValueError(problem)
    path = folder / SCORES_NAME
    data = msgspec.json.encode(_File(scores, scores_digest(scores)))
    write_atomic(path, msgspec.json.format(data, indent=1) + b"\n")
    return path


def read_scores(folder: Path) -> Scores:
    """The scores in a folder of ``eval run``, or in the file itself. Raises InputError when they are missing, damaged,
    changed by hand or of another format; whether they are enough to judge by is said by ``whole`` and ``missing``."""
    path = folder / SCORES_NAME if folder.is_dir() else folder
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: nothing was evaluated there. Run: {_command(folder)}.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
    try:
        found = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is no file of scores ({error}). Write it anew: {_command(folder)}.") from None
    scores = found.scores
    if scores.format != FORMAT:
        raise InputError(
            f"{path} is of format {scores.format}, this program reads {FORMAT}. Write it anew: {_command(folder)}."
        )
    if found.sha256 != scores_digest(scores):
        raise InputError(f"{path} is damaged or was changed by hand: its digest does not fit. {_command(folder)}.")
    if problem := contradiction(scores):
        raise InputError(f"{path} contradicts itself: {problem}. Write it anew: {_command(folder)}.")
    return scores


def contradiction(scores: Scores) -> str | None:
    """What cannot be true of any evaluation; None when nothing is found."""
    metrics = {frozenset(task.values) for task in scores.tasks}
    if len(metrics) > 1:
        return "its tasks have different metrics"
    names = [task.task for task in scores.tasks]
    if len({*names, *scores.missing}) != len(names) + len(scores.missing):
        return "a task stands twice"
    if len(names) + len(scores.missing) != scores.bench.tasks:
        return f"{len(names)} tasks and {len(scores.missing)} missing ones are not {scores.bench.tasks}"
    for task in scores.tasks:
        accepted = task.values.get(ACCEPTED)
        if accepted is None or task.samples < 1:
            return f"{task.task} has no {ACCEPTED} values"
        if any(len(values) != task.samples for values in task.values.values()):
            return f"{task.task} has {task.samples} samples and another number of values"
        if any(not 0 <= value <= 1 for values in task.values.values() for value in values):
            return f"{task.task} has a value that is not between 0 and 1"
        if any(value not in (0, 1) for value in accepted) or sum(accepted) != task.accepted:
            return f"{task.task} has {task.accepted} accepted samples, and its values say otherwise"
    if scores.whole != is_whole(scores.tasks, scores.missing, scores.sampling):
        return "whether it is whole does not fit what is missing"
    return None


def is_whole(tasks: tuple[TaskScores, ...], missing: tuple[str, ...], sampling: SamplingIdentity) -> bool:
    return bool(tasks) and not missing and all(task.samples == sampling.samples_per_task for task in tasks)


def _command(folder: Path) -> str:
    out = folder.parent if folder.name == SCORES_NAME else folder
    return f"mens-sup eval run BENCH.yaml --model BASE --out {out}"
