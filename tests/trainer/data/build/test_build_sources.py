# proves DAT-1, DAT-3, DAT-5: every kind of source and bench, and what is said when it cannot be had
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mixes import Place, pair, pairs

from supervisor.problems import InputError
from trainer.data.build.mix import load_mix
from trainer.data.build.reading import open_sources

EXAMPLE = Path(__file__).parents[4] / "configs" / "mixes" / "example.yaml"


def refusal(place: Place, *sources: dict[str, Any], **rest: Any) -> str:
    with pytest.raises(InputError) as caught:
        place.build(place.mix(*sources, **rest))
    assert not (place.root / "out").exists()
    return str(caught.value).replace(f"{place.root}/", "")


def test_declarations_are_a_source_with_names_and_places_of_their_own(place: Place) -> None:
    (place.root / "tree").mkdir()
    python = '"""Licence."""\n\n\ndef twice(x):\n    """Doubles."""\n    return x + x\n'
    (place.root / "tree" / "m.py").write_text(python)
    (place.root / "tree" / "m.rs").write_text("/// Halves.\nfn half(x: f64) -> f64 {\n    x / 2.0\n}\n")
    built = place.build(
        place.mix(
            {"name": "py", "type": "declarations", "language": "python", "path": "tree"},
            {"name": "rs", "type": "declarations", "language": "rust", "path": "tree"},
        )
    )
    found = [(row["source"], row["declaration"], row["origin"]) for row in place.corpus()]
    assert found == [("py", "twice", "tree/m.py:4"), ("rs", "half", "tree/m.rs:2")]
    assert built.manifest.metadata_fields == ("declaration",)
    inside = place.mix({"name": "py", "type": "declarations", "language": "python", "path": "."}, name="n")
    with pytest.raises(InputError, match="lie inside each other"):
        place.build(inside, "tree/out")


def test_a_data_set_on_this_disk_is_a_source(place: Place) -> None:
    import datasets

    rows = [{**pair(number), "note": None} for number in range(6)]
    datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(str(place.root / "saved"))
    source = {"name": "d", "type": "dataset", "path": "saved", "max_rows": 4}
    place.build(place.mix(source))
    assert len(place.corpus()) == 4 and place.corpus()[0]["origin"].startswith("saved:")
    (place.root / "out").rename(place.root / "first")
    said = refusal(place, {**source, "split": "test"})
    assert said.startswith("m.yaml:7: ") and "it has the splits train, not test" in said


def test_a_data_set_that_cannot_be_had_is_named_with_a_way_out(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    said = refusal(place, {"name": "d", "type": "dataset", "path": "nobody/nothing-of-this-name"})
    assert said.startswith("m.yaml:7: ")
    assert "the data set nobody/nothing-of-this-name (split train) cannot be read" in said
    assert "save it to a folder first" in said and "\n" not in said


@pytest.mark.parametrize(
    ("item", "bench", "words"),
    [
        (None, {}, "bench.jsonl does not exist and matches no file"),
        ('{"prompt": 3}', {}, "bench.jsonl:1: the item has no text in its field 'prompt'"),
        ("{", {}, "bench.jsonl:1: the line is not JSON"),
        ("", {}, "bench mine has no item"),
        ("not zipped", {"path": "bench.jsonl.gz"}, "bench.jsonl.gz is no whole gzip file"),
    ],
)
def test_a_bench_that_would_keep_nothing_out_stops_the_build(
    place: Place, item: str | None, bench: dict[str, Any], words: str
) -> None:
    place.rows("a.jsonl", pairs(2))
    described = {"name": "mine", "path": "bench.jsonl", "fields": ["prompt"], **bench}
    if item is not None:
        place.rows(described["path"], [item])
    said = refusal(place, {"name": "a", "path": "a.jsonl"}, exclude=[described])
    assert said.startswith("m.yaml:") and words in said and "\n" not in said


def test_a_file_that_changes_while_it_is_read_stops_the_build(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    import trainer.data.build.build as module

    original = module.gather

    def gather(*arguments: Any) -> Any:
        found = original(*arguments)
        place.rows("a.jsonl", pairs(3))
        return found

    place.rows("a.jsonl", pairs(2))
    monkeypatch.setattr(module, "gather", gather)
    assert "a.jsonl changed while it was read. Build again" in refusal(place, {"name": "a", "path": "a.jsonl"})


def test_the_example_is_a_good_mix_whose_sources_are_there(tmp_path: Path) -> None:
    opened = open_sources(load_mix(EXAMPLE), tmp_path / "out")
    assert [source.section.name for source in opened] == ["stdlib", "questions"]
    assert opened[1].inputs[0].shown == "questions.jsonl"
