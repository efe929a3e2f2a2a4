"""Scores of base models by what they are scores of, in the user's cache: a base is asked a bench once. Light."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from evalsuite.scores import SCORES_NAME, ModelIdentity, Scores, read_scores, write_scores
from supervisor.problems import InputError
from trainer.cache import cache_root


def remember_baseline(scores: Scores) -> Path | None:
    """Keep whole scores of a model without an adapter; None for others. Raises OSError."""
    if scores.model.adapter is not None or not scores.whole:
        return None
    folder = baseline_folder(scores)
    folder.mkdir(parents=True, exist_ok=True)
    return write_scores(folder, scores)


def cached_baseline(candidate: Scores) -> tuple[Path, Scores]:
    """Of the candidate's base, asked the same bench in the same way. Raises InputError when there is none."""
    folder = baseline_folder(candidate)
    if not (folder / SCORES_NAME).is_file():
        raise InputError(
            f"no scores of {candidate.model.base} on {candidate.bench.name} are cached for this bench, sampling and "
            "template. Evaluate the base once: mens-sup eval run BENCH --model BASE --template-of ADAPTER --out DIR."
        )
    return folder, read_scores(folder)


def baseline_folder(scores: Scores) -> Path:
    """Named by the digest of the bench, of the base under the model, and of how it is sampled, the seed aside."""
    model = scores.model
    base = ModelIdentity(model.base, model.base_revision, None, None, model.template_hash, model.base_digest)
    sampling = msgspec.structs.replace(scores.sampling, seed=0)
    key = msgspec.json.encode([scores.format, scores.bench.digest, base, sampling], order="sorted")
    return cache_root() / "baselines" / hashlib.sha256(key).hexdigest()[:32]
