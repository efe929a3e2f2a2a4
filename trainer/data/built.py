"""Training on a corpus that ``mens-sup data build`` made: its metadata, its weights, and whether it is still ready."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from supervisor.jobs import Problem
from trainer.data.build.manifest import SOURCE_FIELD, CorpusManifest, ManifestError, manifest_of
from trainer.data.build.readiness import Measured, shortfalls
from trainer.data.messages import Row
from trainer.data.mix_spec import MOST_PASSES
from trainer.data.plan import DataPlan
from trainer.data.sources import Source, weight_problem
from trainer.data.token_rows import TokenRows
from trainer.errors import DataProblemError

SHARE_TOLERANCE = 0.01
"""How far the planned share of a source may be from the declared one without a warning."""


def built_corpora(sources: Sequence[Source]) -> list[CorpusManifest | None]:
    """The manifest of each source that a build made. Raises DataProblemError, OSError."""
    try:
        manifests = [manifest_of(source.path) if source.type == "jsonl" else None for source in sources]
    except ManifestError as error:
        raise DataProblemError(f"data.sources: {error}.") from error
    if problem := weight_problem(sources, manifests):
        raise DataProblemError(f"{problem.key}: {problem.message}. Remedy: {problem.remedy}.")
    return manifests


def weights_of(manifest: CorpusManifest | None) -> str:
    """The weights of a corpus in words; empty when it has none."""
    spec = manifest.mix_spec() if manifest else None
    if manifest is None or spec is None:
        return ""
    weights = ", ".join(f"{name} {weight:g}" for name, weight in zip(spec.names, spec.weights, strict=True))
    return f"{weights} (mix {manifest.name}, at most {spec.max_repeats:g} passes an epoch)"


def source_name(row: Row) -> str | None:
    """The source in the mix that a row of a built corpus is from."""
    name = row.extra.get(SOURCE_FIELD)
    return name if isinstance(name, str) else None


def weighted(rows: TokenRows, names: Sequence[str | None], manifest: CorpusManifest | None) -> TokenRows:
    """The rows with the weights that their corpus, then the only one, declares; ``names``: the source of each."""
    spec = manifest.mix_spec() if manifest else None
    if spec is None:
        return rows
    numbers = {name: number for number, name in enumerate(spec.names)}
    unknown = sorted({str(name) for name in names if name not in numbers})
    if unknown:
        raise DataProblemError(f"data.sources: rows are from {unknown[0]}, a source that the corpus' manifest lacks.")
    return replace(rows, sources=np.array([numbers[str(name)] for name in names], np.int64), mix=spec)


def unready(
    rows: TokenRows,
    corpora: Sequence[int],
    names: Sequence[str | None],
    manifests: Sequence[CorpusManifest | None],
    max_length: int,
) -> list[str]:
    """Thresholds of built corpora that their rows do not meet as they are here: after this tokenizer, in this window.

    ``corpora``: by row the index of its corpus in ``manifests``, ``names``: its source in the mix.
    """
    long = rows.full_lengths > max_length
    of, sources, keys = np.array(corpora), np.array([str(name) for name in names]), np.array(rows.keys)
    problems = []
    for index, manifest in enumerate(manifests):
        if manifest is None or manifest in manifests[:index]:
            continue  # a corpus that is named twice gives its rows once
        whole = of == index
        found = []
        for source in manifest.sources:
            mine = whole & (sources == source.name)
            measured = _measured(keys[mine], long[mine], max_length, source.measured)
            found += [f"source {source.name}: {text}" for text in shortfalls(source.thresholds, measured)]
        found += shortfalls(manifest.thresholds, _measured(keys[whole], long[whole], max_length, manifest.measured))
        problems += [f"{manifest.name}: {text}" for text in found] if len(manifests) > 1 else found
    return problems


def readiness_problem(problems: Sequence[str]) -> Problem:
    message = f"the corpus is not ready: {'; '.join(problems)}"
    remedy = "build it from better data, raise train.max_length, or lower the thresholds of its mix and build it again"
    return Problem("data.sources", message, remedy)


def missing_sources(rows: TokenRows) -> list[str]:
    """Sources with a weight of which no row is left to learn from."""
    if rows.mix is None or rows.sources is None:
        return []
    present = set(rows.sources.tolist())
    return [name for number, name in enumerate(rows.mix.names) if number not in present]


def planned_mixture(plan: DataPlan, rows: TokenRows) -> tuple[str, list[dict[str, float | str]]] | None:
    """What the plan makes of the weights: a sentence, and per source its lane, shares and passes over all epochs.

    None without weights.
    """
    if rows.mix is None or rows.sources is None:
        return None
    count = len(rows.mix.names)
    learnt, seen = np.zeros(count), np.zeros(count)
    for length, planned_rows in plan.rows_by_length().items():
        times = np.bincount(planned_rows, minlength=len(rows))
        counts = rows.label_counts(length)
        learnt += np.bincount(rows.sources, weights=times * counts, minlength=count)
        seen += np.bincount(rows.sources, weights=times, minlength=count)
    passes = seen / np.bincount(rows.sources, minlength=count)
    shares = learnt / learnt.sum()
    found: list[dict[str, float | str]] = [
        {"source": name, "lane": lane, "declared": declared, "planned": float(planned), "passes": float(times)}
        for name, lane, declared, planned, times in zip(
            rows.mix.names, rows.mix.lanes, rows.mix.shares(), shares, passes, strict=True
        )
    ]
    parts = [
        f"{entry['source']} {entry['planned']:.2%} (declared {entry['declared']:.2%}, {entry['passes']:.1f} passes)"
        for entry in found
    ]
    return f"learnt tokens by source: {', '.join(parts)}", found


def mixture_warnings(sources: Sequence[Mapping[str, float | str]]) -> list[str]:
    """What of the plan (see :func:`planned_mixture`) its user would not expect; a sentence each."""
    found = []
    for source in sources:
        name, declared, planned = source["source"], float(source["declared"]), float(source["planned"])
        if float(source["passes"]) > MOST_PASSES:
            found.append(
                f"the run passes {source['passes']:.1f} times over the rows of source {name}; give it a lower weight "
                "or more rows, or it will be learnt by heart"
            )
        if abs(planned - declared) > SHARE_TOLERANCE:
            found.append(
                f"source {name} gets {planned:.2%} of the learnt tokens though its weight declares {declared:.2%}: a "
                "curriculum that train.max_steps cuts in the middle of an epoch, a window that was shortened late, or "
                "a run of few rows keeps no share. Plan whole epochs (train.num_train_epochs), or more of them"
            )
    return found


def _measured(keys: np.ndarray[Any, Any], long: np.ndarray[Any, Any], max_length: int, recorded: Measured) -> Measured:
    return Measured(len(keys), len(np.unique(keys)), recorded.judged, recorded.passed, int(long.sum()), max_length)
