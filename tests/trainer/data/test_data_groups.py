# proves TRN-8
"""Rows that answer alike, or are copies of one another, stay together."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from trainer.data.corpus import Corpus, Validation, build_corpus
from trainer.data.groups import group_names
from trainer.data.render import Renderer
from trainer.data.sources import Source
from trainer.data.split import split


@pytest.fixture(scope="module")
def renderer(smol_tokenizer: PreTrainedTokenizerBase) -> Renderer:
    return Renderer(smol_tokenizer)


TEXTS = [
    "The harbour lies on the northern shore of the island, behind a long breakwater of grey stone.",
    "To sort a list in place, call its sort method; sorted returns a new one and leaves the old alone.",
    "Bread rises because yeast turns sugar into carbon dioxide, which the gluten keeps in small bubbles.",
    "A heap keeps its smallest element at the root, so that taking it out costs a logarithm of its size.",
    "The comet was seen for eleven nights, low above the western hills, before clouds came in from the sea.",
    "Every prime above three is one more or one less than a multiple of six, but not the other way round.",
]


# proves TRN-8: transitively, over both relations
def test_groups_are_joined_through_other_rows() -> None:
    keys = ["c", "a", "a", "b", "d"]
    clusters = [0, 0, 1, 1, 2]
    assert group_names(keys, clusters) == ["a", "a", "a", "a", "d"]
    assert group_names(keys) == keys


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 5)), min_size=2, max_size=40), st.integers(0, 9))
def test_no_relation_crosses_a_split(rows: list[tuple[str, int]], seed: int) -> None:
    keys, clusters = [key for key, _ in rows], [cluster for _, cluster in rows]
    names = group_names(keys, clusters)
    if len(set(names)) == 1:
        return
    largest = max(names.count(name) for name in names)
    train, held_out = split(names, rows=min(largest, len(rows) - 1), seed=seed)
    assert {keys[row] for row in train}.isdisjoint(keys[row] for row in held_out)
    assert {clusters[row] for row in train}.isdisjoint(clusters[row] for row in held_out)
    shuffled = np.random.default_rng(seed).permutation(len(rows)).tolist()
    again = group_names([keys[row] for row in shuffled], [clusters[row] for row in shuffled])
    assert again == [names[row] for row in shuffled], "a group's name must not depend on the order of the rows"


def corpus_of(path: Path, rows: list[dict[str, object]], renderer: Renderer, **options: object) -> Corpus:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    known = frozenset({"duplicate_cluster"})
    return build_corpus(
        [Source("jsonl", path)], renderer, max_length=128, metadata_fields=known, **options  # type: ignore[arg-type]
    )  # fmt: skip


def like(text: str, number: int) -> dict[str, object]:
    """Rows of one text differ in their last word; those of different texts share next to nothing."""
    backwards = " ".join(reversed(text.split()))
    return {"prompt": f"Say something about this: {text}", "completion": f"{text} {backwards} {number}"}


# proves TRN-8: near duplicates are found where nobody has looked for them
def test_near_copies_are_held_out_together(tmp_path: Path, renderer: Renderer) -> None:
    rows = [like(text, number) for text in TEXTS for number in range(3)]
    for seed in range(4):
        corpus = corpus_of(
            tmp_path / "rows.jsonl", rows, renderer, validation=Validation(fraction=0.5), seed=seed
        )
        assert corpus.report.groups + len(set(corpus.validation.groups.tolist())) == len(TEXTS)
        assert not set(corpus.train.groups.tolist()) & set(corpus.validation.groups.tolist())
        assert len(corpus.validation) == 9


# proves TRN-8: a cluster that the build has found counts as well
def test_clusters_of_a_build_are_kept_together(tmp_path: Path, renderer: Renderer) -> None:
    rows = [{**like(text, 1), "duplicate_cluster": number // 3} for number, text in enumerate(TEXTS)]
    corpus = corpus_of(tmp_path / "rows.jsonl", rows, renderer, validation=Validation(fraction=0.5))
    assert (len(corpus.train), len(corpus.validation)) == (3, 3)
    assert corpus.report.groups == 1


# proves TRN-8, DAT-3: a file of held-out rows drops the training rows that are nearly the same
def test_near_copies_of_held_out_rows_are_not_trained_on(tmp_path: Path, renderer: Renderer) -> None:
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text(json.dumps(like(TEXTS[0], 99)) + "\n")
    rows = [like(text, 1) for text in TEXTS]
    corpus = corpus_of(tmp_path / "rows.jsonl", rows, renderer, validation=Validation(path=held_out))
    assert corpus.report.leaked_rows == 1 and len(corpus.train) == len(TEXTS) - 1
