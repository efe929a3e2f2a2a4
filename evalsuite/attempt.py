"""One attempt of an evaluation: the sampling job with a fixed number of samples, then its scores. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from evalsuite.baselines import remember_baseline
from evalsuite.collect import collect
from evalsuite.config import EvalSections, as_job
from evalsuite.scores import Scores, scores_digest, write_scores
from evalsuite.summary import means
from evalsuite.until import Until
from rft.effective import Effective
from rft.parts import PARTS, load_every_task
from rft.run import Parts, run_attempt
from supervisor.problems import InputError
from supervisor.protocol.attempt import AttemptSpec, ExitReport
from trainer.errors import DataProblemError
from trainer.reporting import Reporter

EVAL_PARTS = replace(PARTS, load_tasks=load_every_task)
SHOWN = 3


def evaluate(
    effective: Effective[EvalSections], spec: AttemptSpec, reporter: Reporter, parts: Parts = EVAL_PARTS
) -> ExitReport:
    """Sample, judge, write ``scores.json``. Raises TrainerError; DataProblemError when tasks stay without a score.

    No accepted change is taken over: samples of two models, or of two ways to sample, are no evaluation of one.
    """
    spec = msgspec.structs.replace(spec, accepted_changes=())
    sections = effective.sections
    if sections.until is not None:
        until = Until(Path(sections.until), Path(spec.run_dir), sections, effective.name)
        parts = replace(parts, load_tasks=until.in_order(parts.load_tasks), enough=until.enough)
    report = run_attempt(as_job(sections), spec, reporter, effective.stop_grace_seconds, parts)
    try:
        scores, missing = collect(Path(spec.run_dir))
    except InputError as error:
        raise DataProblemError(str(error)) from None
    write_scores(Path(spec.run_dir), scores)
    try:
        remember_baseline(scores)
    except OSError as error:
        reporter.warn(f"the scores are not kept as a baseline for gates: {error}")
    reporter.event("scores", _said(scores), **_data(scores))
    decided = sections.until is not None and bool(report.stopped_early)
    if not scores.whole and not decided:
        raise DataProblemError(_incomplete(scores, missing))
    return msgspec.structs.replace(report, message=f"{report.message}; {_said(scores)}")


def _said(scores: Scores) -> str:
    found = ", ".join(f"{metric} {mean:.4f}" for metric, mean in means(scores).items())
    part = "" if scores.whole else f"; not whole: {len(scores.missing)} tasks are missing"
    return f"{scores.bench.name}: {found or 'no score'} over {len(scores.tasks)} of {scores.bench.tasks} tasks{part}"


def _data(scores: Scores) -> dict[str, object]:
    return {
        "bench": scores.bench.name,
        "bench_digest": scores.bench.digest,
        "scores_digest": scores_digest(scores),
        "means": means(scores),
        "tasks": len(scores.tasks),
        "missing": len(scores.missing),
        "whole": scores.whole,
    }


def _incomplete(scores: Scores, missing: Mapping[str, str]) -> str:
    shown = "; ".join(f"{task}: {why}" for task, why in list(missing.items())[:SHOWN])
    more = f"; and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    return (
        f"{len(missing)} of {scores.bench.tasks} tasks have no score, so this is no evaluation of the whole bench: "
        f"{shown}{more}. Take away the cause (a prompt that is too long: raise sampler.max_model_len) and evaluate "
        "into a new folder."
    )
