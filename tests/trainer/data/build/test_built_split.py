# proves TRN-8, DAT-2, DAT-4: what the trainer takes over from a built corpus, and what it looks at again
from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from mixes import Place, pairs
from transformers import PreTrainedTokenizerBase

from trainer.data.build.manifest import encode_manifest, manifest_of
from trainer.data.build.readiness import Thresholds
from trainer.data.corpus import Corpus, Validation, build_corpus
from trainer.data.render import Renderer
from trainer.data.sources import Source


@pytest.fixture(scope="module")
def renderer(smol_tokenizer: PreTrainedTokenizerBase) -> Renderer:
    return Renderer(smol_tokenizer)


def families(count: int, copies: int) -> list[dict[str, str]]:
    """Rows of one family differ in their last word."""
    return [
        {"instruction": "Say it", "output": " ".join(f"w{family * 97 + word}" for word in range(60)) + f" v{copy}"}
        for family in range(count)
        for copy in range(copies)
    ]


def trained(*files: Path, renderer: Renderer) -> Corpus:
    validation = Validation(fraction=0.2)
    sources = [Source("jsonl", file) for file in files]
    return build_corpus(sources, renderer, max_length=512, validation=validation, seed=1)


def groups(corpus: Corpus) -> int:
    """Of all rows, held out or not; no group may be on both sides."""
    train, held_out = set(corpus.train.groups.tolist()), set(corpus.validation.groups.tolist())
    assert held_out and not train & held_out
    return len(train | held_out)


@pytest.mark.parametrize("duplicates", [{"near": "off"}, {"near": "keep"}, {"near": "keep", "threshold": 0.99}])
def test_near_copies_stay_on_one_side_whatever_the_build_has_looked_for(
    place: Place, renderer: Renderer, duplicates: dict[str, Any]
) -> None:
    plain = place.rows("a.jsonl", families(8, 3))
    place.build(place.mix({"name": "a", "path": "a.jsonl"}, duplicates=duplicates))
    rows = place.root / "out" / "corpus.jsonl"
    assert groups(trained(rows, renderer=renderer)) == groups(trained(plain, renderer=renderer)) == 8
    # The same through a second corpus, whose build has looked for nothing.
    place.build(place.mix({"name": "m", "path": "out"}, name="second", duplicates={"near": "off"}), "again")
    assert groups(trained(place.root / "again" / "corpus.jsonl", renderer=renderer)) == 8


def test_what_the_build_has_compared_is_not_compared_again(
    place: Place, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.rows("a.jsonl", families(8, 3))
    place.build(place.mix({"name": "a", "path": "a.jsonl"}, duplicates={"near": "keep"}))

    def never(*_: object) -> None:
        raise AssertionError("compared again")

    monkeypatch.setattr("trainer.data.corpus.DuplicateSearch.add", never)
    assert groups(trained(place.root / "out" / "corpus.jsonl", renderer=renderer)) == 8
    with pytest.raises(AssertionError, match="compared again"):
        trained(place.root / "a.jsonl", renderer=renderer)


def test_every_built_corpus_of_a_run_is_measured(place: Place, renderer: Renderer) -> None:
    for name in ("one", "two"):
        place.rows(f"{name}.jsonl", pairs(20, name))
        place.build(place.mix({"name": name, "path": f"{name}.jsonl"}, name=name), f"out-{name}")
    files = [place.root / f"out-{name}" / "corpus.jsonl" for name in ("one", "two")]
    assert trained(*files, renderer=renderer).unready == ()
    manifest = manifest_of(files[1])
    assert manifest is not None
    stricter = msgspec.structs.replace(manifest, thresholds=Thresholds(min_rows=30))
    (files[1].parent / "manifest.json").write_bytes(encode_manifest(stricter))
    (lacking,) = trained(*files, renderer=renderer).unready
    assert lacking == "two: 20 rows where min_rows asks for 30"
    assert len(trained(files[0], files[1], files[1], renderer=renderer).unready) == 1
