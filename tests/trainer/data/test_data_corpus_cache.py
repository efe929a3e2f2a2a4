import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.data.corpus import BadRows, Corpus, CorpusReport, SourceDigest
from trainer.data.corpus_cache import KEPT_ENTRIES, cached_corpus, corpus_key, encode_corpus, read_corpus
from trainer.data.sources import Source
from trainer.data.token_rows import TokenRows


def rows(count: int, difficulty: bool = False) -> TokenRows:
    lengths = np.arange(1, count + 1)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    ids = np.arange(offsets[-1], dtype=np.int32)
    keys = tuple(f"{number:032x}" for number in range(count))
    levels = np.arange(count, dtype=np.float64) if difficulty else None
    return TokenRows(ids, ids % 3 == 0, offsets, keys, levels, np.arange(count) // 2)


REPORT = CorpusReport(
    read=9, rows=5, tokens=15, label_tokens=5, unique_responses=5, groups=4, validation_rows=2, validation_tokens=3,
    validation_label_tokens=1, duplicates_dropped=1, leaked_rows=0, bad_rows={"torn": BadRows(1, ("a.jsonl:3: é",))},
    unlearnable_rows=0, dropped_reasoning_turns=0, max_length=64, trimmed_rows=0, trimmed_prompt_tokens=0,
    trimmed_answer_tokens=0, fitted_tokens=15, longest_row=5, histogram=[5, 0, 1],
    sources=(SourceDigest("a.jsonl", 7, "ab"), SourceDigest("b.jsonl", 2, "cd", held_out=True)),
)  # fmt: skip
CORPUS = Corpus(rows(5), rows(2), REPORT)


def same(one: TokenRows, other: TokenRows) -> bool:
    pairs = [(one.ids, other.ids), (one.labels, other.labels), (one.offsets, other.offsets),
             (one.groups, other.groups)]  # fmt: skip
    if one.difficulty is not None and other.difficulty is not None:
        pairs.append((one.difficulty, other.difficulty))
    return (
        all(left.dtype == right.dtype and np.array_equal(left, right) for left, right in pairs)
        and one.keys == other.keys
        and (one.difficulty is None) == (other.difficulty is None)
        and one.fingerprint() == other.fingerprint()
    )


def never() -> Corpus:
    raise AssertionError("it was built although it is in the cache")


# proves SUP-12: what comes back is what was kept, arrays, types, keys and report
@pytest.mark.parametrize("difficulty", [False, True])
def test_round_trip(tmp_path: Path, difficulty: bool) -> None:
    corpus = Corpus(rows(5, difficulty), rows(2), REPORT)
    (tmp_path / "entry").write_bytes(b"".join(encode_corpus(corpus)))
    found = read_corpus(tmp_path / "entry")
    assert found is not None
    assert same(found.train, corpus.train)
    assert same(found.validation, corpus.validation)
    assert found.report == corpus.report
    found.train.ids[0] = 7  # as writable as those of a fresh corpus


# proves SUP-12: a damaged entry is never used, wherever the damage is
def test_every_damage_is_seen(tmp_path: Path) -> None:
    whole, path = b"".join(encode_corpus(CORPUS)), tmp_path / "entry"
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert read_corpus(path) is None, place
    for size in (0, 1, 64, 65, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert read_corpus(path) is None, size
    assert read_corpus(tmp_path / "none") is None


# proves SUP-12: built once, read from then on, built again when the entry is damaged
def test_built_once(tmp_path: Path) -> None:
    built = []

    def build() -> Corpus:
        built.append(1)
        return CORPUS

    for _ in range(2):
        assert same(cached_corpus(tmp_path / "c", lambda: "k", build, built.append).train, CORPUS.train)
    assert built == [1]
    (entry,) = (tmp_path / "c").iterdir()
    os.truncate(entry, 200)
    cached_corpus(tmp_path / "c", lambda: "k", build, built.append)
    assert built == [1, 1]
    assert cached_corpus(tmp_path / "c", lambda: "k", never, built.append).report == REPORT


# proves SUP-12: inputs that change while they are read leave no entry behind
def test_a_corpus_of_changing_files_is_not_kept(tmp_path: Path) -> None:
    keys = iter(["before", "after"])
    cached_corpus(tmp_path / "c", lambda: next(keys), lambda: CORPUS, lambda message: None)
    assert not (tmp_path / "c").exists()


# proves SUP-12: a cache that cannot be written is announced and done without
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "file").touch()
    assert cached_corpus(tmp_path / "file" / "c", lambda: "k", lambda: CORPUS, said.append) is CORPUS
    assert "later starts will render it again" in said[0]


def test_missing_rows_are_the_builders_business(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        cached_corpus(
            tmp_path,
            lambda: corpus_key([Source("jsonl", tmp_path / "none.jsonl")], tmp_path, {}),
            lambda: 1 / 0,  # type: ignore[return-value,arg-type]
            print,
        )


def test_old_entries_make_room(tmp_path: Path) -> None:
    for number in range(KEPT_ENTRIES + 3):
        cached_corpus(tmp_path, lambda number=number: f"k{number}", lambda: CORPUS, print)  # type: ignore[misc]
        os.utime(tmp_path / f"k{number}.corpus", (number, number))
        cached_corpus(tmp_path, lambda: "k0", never, print)  # in use, so it stays
    left = {path.stem for path in tmp_path.iterdir()}
    assert len(left) == KEPT_ENTRIES
    assert {"k0", f"k{KEPT_ENTRIES + 2}"} <= left


def setting(folder: Path) -> dict[str, Any]:
    tokenizer = folder / "base"
    tokenizer.mkdir(parents=True)
    (tokenizer / "tokenizer.json").write_text("{}")
    (tokenizer / "model.safetensors").write_bytes(b"weights")
    (folder / "rows.jsonl").write_text("{}\n")
    (folder / "tree").mkdir()
    (folder / "tree" / "a.py").write_text("x = 1\n")
    (folder / "held.jsonl").write_text("{}\n")
    return {
        "sources": [Source("jsonl", folder / "rows.jsonl"), Source("python_declarations", folder / "tree")],
        "tokenizer": tokenizer,
        "settings": {"seed": 1, "template": "abc"},
        "held_out": folder / "held.jsonl",
    }


def write(name: str) -> Callable[[Path, dict[str, Any]], None]:
    return lambda folder, given: (folder / name).write_text("other\n") and None  # type: ignore[func-returns-value]


def settings(folder: Path, given: dict[str, Any]) -> None:
    given["settings"] = {"seed": 2, "template": "abc"}


def limit(folder: Path, given: dict[str, Any]) -> None:
    given["sources"][0] = replace(given["sources"][0], max_rows=3)


# proves SUP-12: everything that the corpus depends on is part of its name
@pytest.mark.parametrize(
    "change",
    [
        write("rows.jsonl"), write("tree/a.py"), write("tree/b.py"), write("held.jsonl"), write("base/tokenizer.json"),
        write("base/chat_template.jinja"), settings, limit,
    ],
)  # fmt: skip
def test_every_input_counts(tmp_path: Path, change: Callable[[Path, dict[str, Any]], None]) -> None:
    given = setting(tmp_path)
    before = corpus_key(**given)
    assert corpus_key(**given) == before
    (tmp_path / "base" / "model.safetensors").write_bytes(b"other weights")
    assert corpus_key(**given) == before
    change(tmp_path, given)
    assert corpus_key(**given) != before


# proves SUP-12: the manifest beside a file of held-out rows says which of their fields are known
def test_the_manifest_of_held_out_rows_counts(tmp_path: Path) -> None:
    given = setting(tmp_path)
    before = corpus_key(**given)
    (tmp_path / "manifest.json").write_text("{}")
    assert corpus_key(**given) != before
    rows = tmp_path / "elsewhere" / "rows.jsonl"
    rows.parent.mkdir()
    rows.write_text("{}\n")
    alone = {**given, "sources": [Source("jsonl", rows)]}
    before = corpus_key(**alone)
    (tmp_path / "manifest.json").write_text('{"changed": true}')
    assert corpus_key(**alone) != before
