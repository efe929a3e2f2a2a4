# proves DAT-1, DAT-4: the trainer honours a mix's weights and refuses a corpus that is not ready
from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from mixes import Place
from tiny_runs import Attempt, NotTrained, Tiny, run
from transformers import PreTrainedTokenizerBase

from supervisor.jobs import Problem
from trainer.data.build.manifest import encode_manifest, manifest_of
from trainer.data.build.readiness import Thresholds
from trainer.data.sources import Source, check_sources
from trainer.errors import DataProblemError
from trainer.head_loss import IGNORED
from trainer.job import SFT

WEIGHTS = {"a": 6.0, "b": 1.0, "c": 0.5}
SIZES = {"a": 150, "b": 400, "c": 700}
"""The other way round than the weights."""


def rows_of(name: str, count: int) -> list[dict[str, str]]:
    """Answers of source a are short, those of c long, so that counting rows would not do."""
    rng = np.random.default_rng(ord(name))
    least = {"a": 2, "b": 5, "c": 9}[name]
    rows = []
    for number in range(count):
        digits = rng.integers(0, 10, int(rng.integers(least, least + 6)))
        rows.append({"instruction": f"Question <{name}> {number}", "output": f"{' '.join(map(str, digits))} {number}"})
    return rows


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("built"))
    for name, count in SIZES.items():
        place.rows(f"{name}.jsonl", rows_of(name, count))
    sources = [
        {"name": name, "path": f"{name}.jsonl", "weight": WEIGHTS[name], "readiness": {"min_rows": 100}}
        for name in SIZES
    ]
    # Rows of one template: numbers alone make them near duplicates.
    place.build(place.mix(*sources, duplicates={"near": "off"}))
    return place


def changes(built: Place, **more: Any) -> dict[str, Any]:
    return {
        "data.sources": [{"path": str(built.root / "out" / "corpus.jsonl")}],
        "train.max_steps": -1,
        "train.num_train_epochs": 3.0,
        "train.max_length": 256,
        **more,
    }


class Batches(NotTrained):
    """Draws every batch of the run from the trainer's own loader, and computes nothing."""

    seen: list[dict[str, Any]]

    def train(self, *args: Any, **kwargs: Any) -> None:
        super().train(*args, **kwargs)
        self.seen = list(self.get_train_dataloader())


def learnt_by_source(batches: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> Counter[str]:
    """Counted from the tensors: each document by the mark in its question."""
    found: Counter[str] = Counter()
    for batch in batches:
        for ids, labels, positions in zip(batch["input_ids"], batch["labels"], batch["position_ids"], strict=True):
            starts = [*torch.nonzero(positions == 0).flatten().tolist(), len(ids)]
            for start, end in pairwise(starts):
                count = int((labels[start:end] != IGNORED).sum())
                if count:
                    (name,) = re.findall(r"Question <(\w)>", tokenizer.decode(ids[start:end]))
                    found[name] += count
    return found


def test_tokens_trained_have_the_declared_shares_within_one_per_cent(
    tiny: Tiny, built: Place, smol_tokenizer: PreTrainedTokenizerBase
) -> None:
    attempt = tiny.run("mixed", changes(built), trainer_class=Batches)
    trainer = attempt.built
    assert isinstance(trainer, Batches)
    learnt = learnt_by_source(trainer.seen, smol_tokenizer)
    for name, weight in WEIGHTS.items():
        assert learnt[name] / sum(learnt.values()) == pytest.approx(weight / sum(WEIGHTS.values()), rel=0.01)
    (event,) = attempt.events("mixture")
    assert "a 80." in event.message and "(declared 80.00%, 12.0 passes)" in event.message
    planned = {entry["source"]: entry["planned"] for entry in event.data["sources"]}
    assert planned == pytest.approx({name: learnt[name] / sum(learnt.values()) for name in learnt}, rel=1e-9)
    warnings = [event.message for event in attempt.events("warning")]
    assert any("passes 12.0 times over the rows of source a" in warning for warning in warnings)


def test_weights_survive_the_cache_of_rendered_rows_and_are_part_of_the_identity(tiny: Tiny, built: Place) -> None:
    first = tiny.run("mixed-first", changes(built), trainer_class=NotTrained)
    again = tiny.run("mixed-again", changes(built), trainer_class=NotTrained)
    assert again.built.plan.fingerprint("x") == first.built.plan.fingerprint("x")
    assert again.built.rows.mix == first.built.rows.mix is not None
    rows = first.built.rows
    other = msgspec.structs.replace(rows.mix, weights=(1.0, 1.0, 1.0))
    assert rows.fingerprint() != type(rows)(**{**vars(rows), "mix": other}).fingerprint()


def problems(built: Place, *more: Source, **limits: Any) -> list[Problem]:
    return check_sources([Source("jsonl", built.root / "out" / "corpus.jsonl", **limits), *more])


def test_a_corpus_is_checked_before_launch(tiny: Tiny, built: Place) -> None:
    assert problems(built) == []
    (problem,) = problems(built, Source("jsonl", built.root / "a.jsonl"))
    assert "must be the only source" in problem.message and "put the other sources into its mix" in problem.remedy
    (problem,) = problems(built, max_rows=5)
    assert "those of its first source alone" in problem.message
    sections = SFT.resolve(tiny.sections(changes(built)), built.root)
    assert SFT.preflight(sections) == []


@pytest.fixture
def copied(built: Place, tmp_path: Path) -> Place:
    (tmp_path / "out").mkdir()
    for name in ("corpus.jsonl", "manifest.json"):
        (tmp_path / "out" / name).write_bytes((built.root / "out" / name).read_bytes())
    return Place(tmp_path)


def test_a_changed_corpus_is_refused(copied: Place) -> None:
    corpus = copied.root / "out" / "corpus.jsonl"
    corpus.write_bytes(b"".join(corpus.read_bytes().splitlines(keepends=True)[:-1]))
    (problem,) = problems(copied)
    assert "the file was changed after it was built" in problem.message and "build it again" in problem.remedy
    (copied.root / "out" / "manifest.json").write_text('{"format": "mens-sup corpus", "format_version": 1}')
    (problem,) = problems(copied)
    assert "manifest.json is damaged" in problem.message


def with_thresholds(copied: Place, thresholds: Thresholds) -> None:
    manifest = manifest_of(copied.root / "out" / "corpus.jsonl")
    assert manifest is not None
    (copied.root / "out" / "manifest.json").write_bytes(
        encode_manifest(msgspec.structs.replace(manifest, thresholds=thresholds))
    )


def test_a_corpus_below_its_recorded_threshold_is_refused_before_launch(copied: Place) -> None:
    with_thresholds(copied, Thresholds(min_rows=5000))
    (problem,) = problems(copied)
    assert "1250 rows where min_rows asks for 5000" in problem.message


def test_the_trainer_measures_again_in_its_own_window(tiny: Tiny, copied: Place) -> None:
    with_thresholds(copied, Thresholds(max_over_length=0.05))
    with pytest.raises(DataProblemError) as caught:
        tiny.run("unready", changes(copied, **{"train.max_length": 48}), trainer_class=NotTrained)
    said = str(caught.value)
    assert re.search(r"the corpus is not ready: \d+ of \d+ rows \(\d+\.\d%\) are longer than 48 tokens", said)
    assert "max_over_length allows 5.0%" in said and "raise train.max_length" in said
    tiny.run("ready", changes(copied, **{"train.max_length": 256}), trainer_class=NotTrained)


def test_a_run_under_way_says_so_and_goes_on(tiny: Tiny, copied: Place) -> None:
    started: Attempt = tiny.run(
        "short", changes(copied, **{"train.max_steps": 2, "train.num_train_epochs": 1.0}), save_steps=1
    )
    with_thresholds(copied, Thresholds(max_over_length=0.05))
    shorter = tiny.sections(changes(copied, **{"train.max_steps": 2, "train.max_length": 48}))
    again = run(
        started.paths.root, shorter, resume_from=started.paths.checkpoint(1, 1), number=2, accepted=("max_length",)
    )
    assert any("the corpus is not ready" in event.message for event in again.events("warning"))
