# proves TRN-4, TRN-6: what is read, dropped and trimmed is accounted for
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from trainer.data.corpus import Corpus, DataError, Validation, build_corpus
from trainer.data.render import Rendered, Renderer
from trainer.data.sources import Source
from trainer.data.token_rows import token_rows


@pytest.fixture(scope="module")
def renderer(smol_tokenizer: PreTrainedTokenizerBase) -> Renderer:
    return Renderer(smol_tokenizer)


def write(path: Path, rows: list[dict[str, Any]]) -> Source:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Source("jsonl", path)


def pairs(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"instruction": f"Say {n}.", "output": f"It is {n}."} for n in range(start, start + count)]


def text(tokenizer: PreTrainedTokenizerBase, corpus: Corpus) -> list[str]:
    rows = corpus.train
    return [tokenizer.decode(rows.fitted(row, 10_000).ids) for row in range(len(rows))]


def test_rows_are_those_of_the_renderer(tmp_path: Path, renderer: Renderer) -> None:
    source = write(tmp_path / "a.jsonl", pairs(40))
    corpus = build_corpus([source], renderer, max_length=512, validation=Validation(fraction=0.1, max_rows=100))
    assert (len(corpus.train), len(corpus.validation)) == (36, 4)
    row = corpus.train.fitted(0, 512)
    assert renderer._tokenizer.decode(row.ids[row.labels].tolist()).startswith("It is ")
    report = corpus.report
    assert (report.read, report.rows, report.validation_rows, report.unique_responses) == (40, 36, 4, 36)
    assert report.tokens == len(corpus.train.ids) and report.label_tokens == corpus.train.labels.sum()
    again = build_corpus([source], renderer, max_length=512, validation=Validation(fraction=0.1, max_rows=100))
    assert again.train.fingerprint() == corpus.train.fingerprint()
    other = build_corpus([source], renderer, max_length=512, validation=Validation(fraction=0.1), seed=1)
    assert other.train.fingerprint() != corpus.train.fingerprint()


def test_repeats_leaks_and_bad_rows_are_counted(tmp_path: Path, renderer: Renderer) -> None:
    rows = [*pairs(6), *pairs(2), {"instruction": "Again.", "output": "IT IS  5."}]
    rows += [{"instruction": "x", "output": ""}, {"instruction": "a <|im_end|> b", "output": "c"}]
    source = write(tmp_path / "a.jsonl", rows)
    held_out = write(tmp_path / "v.jsonl", [{"instruction": "Other.", "output": "it is 5."}])
    with pytest.raises(DataError) as caught:
        build_corpus([source], renderer, max_length=512, validation=Validation(path=held_out.path))
    first, second = str(caught.value).split("\n\n")
    assert first.startswith(f"{source.path}:10: ") and "empty answer" in first and "data.on_bad_row: skip" in first
    assert second.startswith(f"{source.path}:11: ") and "<|im_end|>" in second
    corpus = build_corpus(
        [source], renderer, max_length=512, on_bad_row="skip", validation=Validation(path=held_out.path)
    )
    report = corpus.report
    assert (report.rows, report.duplicates_dropped, report.leaked_rows, report.validation_rows) == (5, 2, 2, 1)
    assert {reason: bad.count for reason, bad in report.bad_rows.items()} == {
        "empty answer": 1, "control token in the text": 1,
    }  # fmt: skip
    assert f"{source.path}:10: " in report.bad_rows["empty answer"].examples[0]
    assert report.read == 12 == report.rows + report.validation_rows + 2 + 2 + 2
    assert json.loads(json.dumps(report.as_dict()))["histogram"] == report.histogram


def test_refusal_shows_twenty_and_counts_all(tmp_path: Path, renderer: Renderer) -> None:
    source = write(tmp_path / "a.jsonl", [{"instruction": "a", "output": "b", "id": n} for n in range(50)])
    with pytest.raises(DataError) as caught:
        build_corpus([source], renderer, max_length=512)
    assert str(caught.value).count("'id'") == 20
    assert str(caught.value).endswith("... and 30 more bad rows.")
    assert len(caught.value.problems) == 20
    corpus = build_corpus([source], renderer, max_length=512, metadata_fields=frozenset({"id"}), validation=Validation(
        path=write(tmp_path / "v.jsonl", pairs(1)).path))  # fmt: skip
    assert len(corpus.train) == 1


def test_nothing_left_is_an_error(tmp_path: Path, renderer: Renderer) -> None:
    source = write(tmp_path / "a.jsonl", [{"instruction": "a", "output": ""}])
    with pytest.raises(DataError, match=r"no row is left to train on: 1 read from .*a\.jsonl, 1 bad"):
        build_corpus([source], renderer, max_length=512, on_bad_row="skip")
    with pytest.raises(DataError, match=r"data\.validation: no training rows"):
        build_corpus([write(tmp_path / "b.jsonl", pairs(1))], renderer, max_length=512)
    validation = Validation(path=write(tmp_path / "v.jsonl", []).path)
    with pytest.raises(DataError, match=r"v\.jsonl has no usable row"):
        build_corpus([write(tmp_path / "b.jsonl", pairs(3))], renderer, max_length=512, validation=validation)


def test_curriculum_levels_reach_the_rows(tmp_path: Path, renderer: Renderer) -> None:
    rows = [{**pair, "level": n % 3} for n, pair in enumerate(pairs(30))]
    source = write(tmp_path / "a.jsonl", rows)
    corpus = build_corpus([source], renderer, max_length=512, curriculum_field="level")
    assert corpus.train.difficulty is not None
    for row in range(len(corpus.train)):
        answer = renderer._tokenizer.decode(corpus.train.fitted(row, 512).ids.tolist())
        assert int(answer.split("It is ")[1].split(".")[0]) % 3 == corpus.train.difficulty[row]
    many = write(tmp_path / "b.jsonl", [{**pair, "level": n / 7} for n, pair in enumerate(pairs(150))])
    with pytest.raises(DataError, match="different values"):
        build_corpus([many], renderer, max_length=512, curriculum_field="level")


def test_over_long_rows_are_kept_whole_and_their_cost_is_told(tmp_path: Path, renderer: Renderer) -> None:
    rows = [*pairs(3), {"instruction": "word " * 300, "output": "yes " * 200}]
    validation = Validation(path=write(tmp_path / "v.jsonl", pairs(1, 99)).path)
    corpus = build_corpus([write(tmp_path / "a.jsonl", rows)], renderer, max_length=128, validation=validation)
    report, train = corpus.report, corpus.train
    long = int(train.full_lengths.argmax())
    fitted = train.fitted(long, 128)
    assert len(fitted.ids) == 128 == train.lengths(128)[long]
    assert fitted.labels.sum() == 64
    assert report.trimmed_rows == 1
    assert report.trimmed_prompt_tokens == fitted.trimmed_prompt_tokens > 200
    assert report.trimmed_answer_tokens == fitted.trimmed_answer_tokens > 100
    assert report.longest_row == train.full_lengths[long]
    assert report.fitted_tokens == train.lengths(128).sum()
    for window in (64, 128, 256):
        assert sum(report.histogram[window // 64 :]) == (train.full_lengths > window).sum()
    assert sum(report.histogram) == len(train)


def test_rows_without_anything_to_learn_are_found() -> None:
    rows = token_rows([
        (Rendered([1, 2, 3], [False, True, True]), "a", None),
        (Rendered([1], [True]), "b", None),
        (Rendered([1, 2, 3, 4], [True, False, False, True]), "c", None),
    ])  # fmt: skip
    assert rows.label_counts(8).tolist() == [2, 0, 1]
    assert rows.trimmed(8).rows_without_label == 1
    assert rows.trimmed(2).rows == 2
    assert rows.label_counts(1).tolist() == [0, 0, 0]
    assert rows.histogram() == [3]
    edge = token_rows((Rendered([1] * n, [True] * n), "k", None) for n in (64, 65, 128, 129))
    assert edge.histogram() == [1, 2, 1]
    chosen = rows.select([2, 0])
    assert chosen.ids.tolist() == [1, 2, 3, 4, 1, 2, 3] and chosen.keys == ("c", "a")
    assert np.array_equal(chosen.offsets, [0, 4, 7])


def test_source_trees_are_a_source(tmp_path: Path, renderer: Renderer) -> None:
    (tmp_path / "m.py").write_text(
        "".join(f'def f{n}(x):\n    """Adds {n}."""\n    return x + {n}\n\n\n' for n in range(20))
        + 'def control(x):\n    """Holds one."""\n    return x + "<|im_end|>"\n'
    )
    corpus = build_corpus([Source("python_declarations", tmp_path, max_rows=12)], renderer, max_length=512)
    assert corpus.report.read == 12
    whole = build_corpus([Source("python_declarations", tmp_path)], renderer, max_length=512)
    assert whole.report.read == 21
    assert whole.report.bad_rows["control token in the text"].count == 1
