"""GRPO groups: the rollouts of a job with rewards, log-probabilities and advantages, for a trainer of any make.

A rollout is one line (or row): what was asked and drawn as token ids, the log-probability of every drawn token under
the distribution that it was drawn from, its reward, its advantage in its group, and what it was drawn from and how.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rft.advantages import Advantage, advantages, has_signal
from rft.config import RftSections
from rft.owned_file import Owner, check_target, claimed
from rft.store import Origin, Store, StoredSample
from rft.tasks.task import Task
from rft.verifiers.verdict import Outcome
from supervisor.problems import InputError
from supervisor.protocol.atomic import STAGING_PREFIX, fsync_directory, fsync_file, write_atomic

if TYPE_CHECKING:
    import pyarrow

MANIFEST_SUFFIX = ".manifest.json"
FORMAT_VERSION = 1
PARQUET_ROWS = 1000
"""Rollouts that are in memory at a time when parquet is written."""

PromptIds = Callable[[Task], Sequence[int]]


class Rollout(msgspec.Struct, frozen=True):
    """One rollout with a reward, in a group that teaches something.

    ``group`` is the task's id, ``index`` the sample's. ``logprobs``: nats, one for each of ``completion_ids``, of the
    distribution that was drawn from (``temperature`` applied); the stop token is one of them when ``finish`` is stop.
    ``truncated``: it ran into the limit of tokens. ``model_digest``, ``adapter`` and ``adapter_digest`` are null where
    there is none.
    """

    group: str
    index: int
    source: str
    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    logprobs: Sequence[float]
    completion: str
    reward: float
    advantage: float
    outcome: str
    finish: str
    truncated: bool
    seed: int
    model: str
    model_digest: str | None
    adapter: str | None
    adapter_digest: str | None
    template_hash: str | None
    engine: str
    dtype: str
    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int
    verifier: str
    verifier_version: str
    isolation: str


@dataclass
class Counts:
    """What became of the groups: ``groups`` and ``rollouts`` that were written, ``left_out`` by reason; groups except
    where the reason says rollouts."""

    groups: int = 0
    rollouts: int = 0
    truncated: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


ALL_RIGHT = "groups whose rewards are all the same: all right"
ALL_ALIKE = "groups whose rewards are all the same: none right"
UNSCORED = "rollouts that the judge failed on (unscored)"
TOO_FEW = "groups with fewer than two rollouts that have a reward"
INCOMPLETE = "groups that are not complete yet"
REFUSED = "groups whose prompt the sampler refused"
MIXED = "groups drawn from more than one model or in more than one way"


def config_problem(sections: RftSections) -> str | None:
    """Why groups cannot come of this job, in a paragraph; None when they can."""
    if sections.budget.adaptive:
        return (
            "budget.adaptive is true: tasks are stopped for their verdicts, so their groups are neither complete nor a "
            "fair sample, and advantages in them are biased. Set budget.adaptive: false and sample in a run of its own."
        )
    if not sections.sampling.logprobs:
        return "sampling.logprobs is false, and an off-policy trainer needs them. Set it to true and sample again."
    if sections.sampling.samples_per_task < 2:
        return "sampling.samples_per_task is 1, and a group needs two rollouts to compare. Raise it."
    return drawing_problem(sections.sampling.temperature, sections.sampling.top_p, sections.sampling.top_k)


def drawing_problem(temperature: float, top_p: float, top_k: int) -> str | None:
    """Why rollouts that were drawn so cannot be trained on off-policy."""
    if top_p < 1 or top_k > 0:
        named = f"sampling.top_p is {top_p:g}" if top_p < 1 else f"sampling.top_k is {top_k}"
        return (
            f"{named}: tokens that were cut off can never be drawn, so the ratio of the trained to the sampling policy "
            "is biased for all others. Sample with top_p: 1 and top_k: 0."
        )
    if temperature == 0:
        return "sampling.temperature is 0: every rollout of a group is the same. Sample with temperature: 1."
    return None


def rollouts(
    store: Store, sections: RftSections, prompt_ids: PromptIds, template_hash: str | None, counts: Counts
) -> Iterator[Rollout]:
    """The rollouts of all groups that teach something, group by group, one group in memory at a time.

    Raises InputError when they cannot be used: without log-probabilities, or drawn from another template than
    ``template_hash`` or in a biased way.
    """
    origins = store.samplers()
    for origin in origins.values():
        _check_origin(origin, template_hash)
    wanted = sections.sampling.samples_per_task
    for number, task in store.each_task():
        samples = store.samples(number)
        group = list(_group(task, samples, wanted, origins, sections.groups.advantage, prompt_ids, counts))
        counts.groups += bool(group)
        counts.rollouts += len(group)
        counts.truncated += sum(each.truncated for each in group)
        yield from group


def _group(
    task: Task,
    samples: Sequence[StoredSample],
    wanted: int,
    origins: dict[int, Origin],
    how: Advantage,
    prompt_ids: PromptIds,
    counts: Counts,
) -> Iterator[Rollout]:
    samples = [sample for sample in samples if sample.index < wanted]
    if any(sample.refused is not None for sample in samples):
        counts.left_out[REFUSED] += 1
        return
    if len(samples) < wanted or any(sample.verdict is None for sample in samples):
        counts.left_out[INCOMPLETE] += 1
        return
    if len({sample.sampler for sample in samples}) > 1:
        counts.left_out[MIXED] += 1
        return
    rewards = [sample.verdict.reward if sample.verdict else None for sample in samples]
    scored = [reward for reward in rewards if reward is not None]
    counts.left_out[UNSCORED] += len(rewards) - len(scored)
    if len(scored) < 2:
        counts.left_out[TOO_FEW] += 1
        return
    if not has_signal(rewards):
        outcomes = {sample.verdict.outcome for sample in samples if sample.verdict} - {Outcome.ERROR}
        counts.left_out[ALL_RIGHT if outcomes == {Outcome.ACCEPTED} else ALL_ALIKE] += 1
        return
    prompt = prompt_ids(task)
    for sample, reward, advantage in zip(samples, rewards, advantages(rewards, how), strict=True):
        if reward is not None and advantage is not None:
            yield _rollout(task, sample, prompt, reward, advantage, origins[sample.sampler])


def _rollout(
    task: Task, sample: StoredSample, prompt: Sequence[int], reward: float, advantage: float, origin: Origin
) -> Rollout:
    verdict = sample.verdict
    assert verdict is not None
    if sample.token_ids is None or sample.logprobs is None:
        raise InputError(
            f"Sample {sample.index} of {task.id} has no log-probabilities: {origin.sampler.engine} does not "
            "tell token ids and log-probabilities. Sample with type transformers, vllm or vllm_offline."
        )
    if len(sample.token_ids) != len(sample.logprobs):
        problem = f"has {len(sample.token_ids)} tokens and {len(sample.logprobs)} log-probabilities"
        raise InputError(f"Sample {sample.index} of {task.id} {problem}: the sampler or the store is at fault.")
    if len(prompt) != sample.prompt_tokens:
        raise InputError(
            f"The prompt of {task.id} has {len(prompt)} tokens now and had {sample.prompt_tokens} when it was sampled: "
            "tokenizer or template have changed. Sample again in a new --run-dir."
        )
    sampler, sampling = origin.sampler, origin.sampling
    return Rollout(
        group=task.id,
        index=sample.index,
        source=task.source,
        prompt_ids=prompt,
        completion_ids=sample.token_ids,
        logprobs=sample.logprobs,
        completion=sample.text,
        reward=reward,
        advantage=advantage,
        outcome=verdict.outcome.value,
        finish=sample.finish,
        truncated=sample.finish == "length",
        seed=sample.seed,
        model=sampler.model,
        model_digest=sampler.model_digest,
        adapter=sampler.adapter,
        adapter_digest=sampler.adapter_digest,
        template_hash=sampler.template_hash,
        engine=sampler.engine,
        dtype=sampler.dtype,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_new_tokens=sampling.max_new_tokens,
        verifier=verdict.verifier,
        verifier_version=verdict.version,
        isolation=verdict.isolation.value,
    )


def _check_origin(origin: Origin, template_hash: str | None) -> None:
    drawn = origin.sampling
    if problem := drawing_problem(drawn.temperature, drawn.top_p, drawn.top_k):
        raise InputError(problem)
    if template_hash is not None and origin.sampler.template_hash not in (None, template_hash):
        raise InputError(
            "The rollouts were sampled with another chat template than the job's model has now, so their prompts "
            "cannot be told. Sample again in a new --run-dir."
        )


def write_jsonl(path: Path, found: Iterable[Rollout]) -> None:
    """One JSON object a line; whole or not at all. Raises OSError."""
    write_atomic(path, (msgspec.json.encode(rollout) + b"\n" for rollout in found))


def write_parquet(path: Path, found: Iterable[Rollout]) -> None:
    """One row a rollout; whole or not at all. Raises OSError."""
    import pyarrow
    from pyarrow import parquet

    schema = parquet_schema()
    staged = path.with_name(f"{STAGING_PREFIX}{path.name}.{os.getpid()}")
    try:
        with parquet.ParquetWriter(staged, schema, compression="zstd") as writer:
            for batch in _batches(found):
                writer.write_table(pyarrow.Table.from_pylist([msgspec.to_builtins(each) for each in batch], schema))
        fsync_file(staged)
        os.replace(staged, path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def parquet_schema() -> pyarrow.Schema:
    import pyarrow

    kinds: dict[str, pyarrow.DataType] = {
        "str": pyarrow.string(),
        "str | None": pyarrow.string(),
        "int": pyarrow.int64(),
        "float": pyarrow.float64(),
        "bool": pyarrow.bool_(),
        "Sequence[int]": pyarrow.list_(pyarrow.int32()),
        "Sequence[float]": pyarrow.list_(pyarrow.float32()),
    }
    return pyarrow.schema([(name, kinds[str(kind)]) for name, kind in Rollout.__annotations__.items()])


def _batches(found: Iterable[Rollout]) -> Iterator[list[Rollout]]:
    batch: list[Rollout] = []
    for rollout in found:
        batch.append(rollout)
        if len(batch) == PARQUET_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def write_groups(
    store: Store, sections: RftSections, prompt_ids: PromptIds, template_hash: str | None, out: Path
) -> dict[str, Any]:
    """Write the rollouts of a job and, last, a manifest beside them; the manifest.

    Raises InputError when there is nothing to write or ``out`` is something else; OSError.
    """
    owner = Owner(store.path.parent, store.run_id)
    manifest_path = out.with_name(f"{out.name}{MANIFEST_SUFFIX}")
    check_target(out, manifest_path, owner, "rollouts_file")
    counts = Counts()
    found = _not_empty(rollouts(store, sections, prompt_ids, template_hash, counts), counts)
    with claimed(out, manifest_path, owner, "rollouts_file"):
        (write_parquet if sections.groups.format == "parquet" else write_jsonl)(out, found)
    manifest = {
        "format_version": FORMAT_VERSION,
        "rollouts_file": out.name,
        **owner.words,
        "format": sections.groups.format,
        "advantage": sections.groups.advantage,
        "groups": counts.groups,
        "rollouts": counts.rollouts,
        "truncated_rollouts": counts.truncated,
        "left_out": dict(sorted((+counts.left_out).items())),
        "samples_per_task": sections.sampling.samples_per_task,
        "sha256": _digest(out),
        "samplers": [msgspec.to_builtins(origin) for origin in store.samplers().values()],
    }
    write_atomic(manifest_path, json.dumps(manifest, indent=2, ensure_ascii=False).encode() + b"\n")
    return manifest


def _not_empty(found: Iterator[Rollout], counts: Counts) -> Iterator[Rollout]:
    yield from found
    if not counts.rollouts:
        why = "; ".join(f"{count} {reason}" for reason, count in (+counts.left_out).items())
        raise InputError(f"No group has anything to learn from{f': {why}' if why else ''}. Nothing was written.")


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
