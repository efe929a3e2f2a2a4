"""What a gate reads: the bench's file, the scores, the samples behind them; and why they don't fit together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from evalsuite.baselines import cached_baseline
from evalsuite.collect import bench_digest, collect, sampling_of
from evalsuite.comparable import differences, not_applied, not_the_base, not_whole, nothing_released, sampled_otherwise
from evalsuite.config import EvalSections
from evalsuite.gate_config import CACHED, NO_RELEASE, BenchSection, GateSections
from evalsuite.gate_result import GateInput
from evalsuite.scores import Scores, read_scores, scores_digest
from rft.config import RftSections
from rft.store import STORE_NAME, Store
from rft.tasks.task import Task
from supervisor.problems import InputError
from supervisor.protocol.manifest import digest_file
from trainer.errors import TrainerError


@dataclass
class BenchInputs:
    """Everything about one bench of a gate. There are scores of each reference, or ``reasons`` say why not."""

    section: BenchSection
    candidate: Scores | None = None
    references: dict[str, Scores] = field(default_factory=dict)
    inputs: list[GateInput] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def read_inputs(gate: GateSections, file: Path) -> tuple[list[GateInput], list[BenchInputs]]:
    """The gate's own file among the inputs, and each bench's. Never raises for what is missing: that is a reason."""
    own = GateInput("gate", "", str(file), digest_file(file).sha256)
    return [own], [_read_bench(bench) for bench in gate.benches]


def _read_bench(section: BenchSection) -> BenchInputs:
    found = BenchInputs(section)
    found.candidate = _read(found, "candidate", section.candidate)
    read_references(found)
    if found.candidate is not None:
        _check_candidate(found, found.candidate)
    found.reasons += reasons_against(found)
    return found


def read_references(found: BenchInputs) -> None:
    """The scores that the candidate is compared with; a cached baseline is found by the candidate's."""
    section = found.section
    if section.base != CACHED:
        base = _read(found, "base", section.base)
    else:
        base = None if found.candidate is None else _cached(found, found.candidate)
    release = None if section.release == NO_RELEASE else _read(found, "release", section.release)
    found.references = {role: scores for role, scores in (("base", base), ("release", release)) if scores is not None}


def reasons_against(found: BenchInputs) -> list[str]:
    """Why what was read must not be compared."""
    reasons: list[str] = []
    candidate, base, release = found.candidate, found.references.get("base"), found.references.get("release")
    for role, scores in found.references.items():
        reasons += [*not_whole(scores, role), *not_applied(scores, role)]
        if candidate is not None:
            reasons += differences(candidate, scores, role)
    if candidate is None:
        return reasons
    reasons += not_applied(candidate, "candidate")
    if base is not None:
        reasons += not_the_base(candidate.model, base.model)
    if release is not None and scores_digest(candidate) == scores_digest(release):
        reasons.append("release: it is the candidate's own evaluation, and that shows nothing")
    if release is not None:
        reasons += nothing_released(candidate.model, release.model)
    return reasons


def _check_candidate(found: BenchInputs, candidate: Scores) -> None:
    section = found.section
    if section.sequential is None:
        found.reasons += not_whole(candidate, "candidate")
    if section.adapter is not None:
        found.reasons += _adapter_problems(Path(section.adapter), candidate)
    try:
        digest = digest_of_bench(Path(section.bench), Path(section.candidate))
    except InputError as error:
        found.reasons.append(f"bench: {error}")
        return
    found.inputs.append(GateInput("bench", candidate.bench.name, section.bench, digest))
    found.reasons += sampled_otherwise(sampling_of(_sections_of(Path(section.bench))), candidate.sampling)
    if digest != candidate.bench.digest:
        found.reasons.append(
            f"bench: {section.bench} asks other tasks, or judges them otherwise, than what the candidate was asked "
            f"(digest {digest[:12]}, the candidate's {candidate.bench.digest[:12]}); evaluate it anew"
        )


def _read(found: BenchInputs, role: str, place: str) -> Scores | None:
    folder = Path(place)
    try:
        scores = read_scores(folder)
        if (folder / STORE_NAME).is_file():
            counted, _ = collect(folder)
            if scores_digest(counted) != scores_digest(scores):
                raise InputError(f"{folder}: its scores are not those of its samples. Evaluate into a new folder.")
        elif role == "candidate":
            raise InputError(f"{folder} has scores and no samples ({STORE_NAME}), so nothing shows what they are.")
    except InputError as error:
        found.reasons.append(f"{role}: {error}")
        return None
    found.inputs.append(GateInput(role, scores.bench.name, place, scores_digest(scores), scores.model))
    return scores


def _cached(found: BenchInputs, candidate: Scores) -> Scores | None:
    try:
        folder, scores = cached_baseline(candidate)
    except InputError as error:
        found.reasons.append(f"base: {error}")
        return None
    found.inputs.append(GateInput("base", scores.bench.name, str(folder), scores_digest(scores), scores.model))
    return scores


def _adapter_problems(folder: Path, candidate: Scores) -> list[str]:
    from rft.samplers.weights import adapter_digest

    try:
        digest = adapter_digest(folder)
    except OSError as error:
        return [f"adapter: {folder} has no adapter that can be read ({error.strerror or error})"]
    if digest == candidate.model.adapter:
        return []
    was = candidate.model.adapter
    return [
        f"adapter: {folder} (digest {digest[:12]}) is not what was evaluated as the candidate "
        f"({'no adapter' if was is None else f'digest {was[:12]}'})"
    ]


def tasks_of_bench(bench: Path) -> Iterator[Task]:
    """The tasks that a bench's file asks, in order. Raises InputError."""
    from rft.job import RFT
    from rft.parts import load_every_task

    sections = _sections_of(bench)
    job = RftSections(seed=sections.seed, tasks=sections.tasks, sampler=sections.sampler)
    try:
        yield from load_every_task(RFT.resolve(job, bench.resolve().parent))
    except TrainerError as error:
        raise InputError(f"{bench}: {error}") from None


def _sections_of(bench: Path) -> EvalSections:
    """Of a bench's file, without a model. Raises InputError."""
    from supervisor.yaml_source import read_yaml

    document, _ = read_yaml(bench)
    own = {key: document[key] for key in ("seed", "tasks", "sampling") if key in document}
    try:
        return EvalSections.model_validate({**own, "sampler": {"model": "none"}})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(f"{bench}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def digest_of_bench(bench: Path, folder: Path) -> str:
    """The digest of a bench's file, judged as in the evaluation in ``folder``. Raises InputError."""
    with Store.read(folder) as store:
        return bench_digest(tasks_of_bench(bench), store)
