"""proves TRN-14, TRN-13: how much data there must be, and where it differs."""

from __future__ import annotations

from dataclasses import replace

from trainer.corpus_check import first_difference, from_scratch_sentence, overfit_problem
from trainer.data.corpus import SourceDigest

A = SourceDigest("/data/a.jsonl", 10, "aa" * 16)
B = SourceDigest("/data/b.jsonl", 20, "bb" * 16)


# proves TRN-14
def test_four_passes_are_allowed_and_no_more() -> None:
    assert overfit_problem(4000, 1000) is None
    problem = overfit_problem(4001, 1000)
    assert problem is not None
    for words in ("4001 tokens are planned", "the corpus has 1000", "4.0 times", "--force-overfit", "train.max_steps"):
        assert words in problem


# proves TRN-14
def test_training_from_scratch_is_compared_with_twenty_tokens_per_parameter() -> None:
    sentence = from_scratch_sentence("random:1x64", 1000, 500)
    assert "1000 tokens for 500 trained parameters are 2 tokens per parameter, where about 20 are usual" in sentence


# proves TRN-13: the first differing source is named
def test_the_first_source_that_differs_is_named() -> None:
    changed = SourceDigest("/data/b.jsonl", 21, "cc" * 16)
    assert "the first source that differs is /data/b.jsonl: 20 rows (bbbbbbbbbbbb), now 21 rows (cccccccccccc)" in (
        first_difference((A, B), (A, changed))
    )
    assert "the source /data/b.jsonl is gone" in first_difference((A, B), (A,))
    assert "the source /data/b.jsonl is new" in first_difference((A,), (A, B))
    assert "source 1 was /data/a.jsonl (10 rows" in first_difference((A, B), (B, A))
    assert "same" in first_difference((A, B), (A, B))


# proves TRN-13, DAT-1: weights are a difference of their own
def test_weights_that_differ_are_named() -> None:
    before, now = (replace(B, weights=f"code {weight}, chat 1 (mix m)") for weight in (1, 2))
    said = first_difference((A, before), (A, now))
    assert said.endswith("the weights of /data/b.jsonl were code 1, chat 1 (mix m), now code 2, chat 1 (mix m)")
    assert "were none, now code 2" in first_difference((B,), (now,))
    assert "the first source that differs is" in first_difference((before,), (replace(now, rows=21),))
