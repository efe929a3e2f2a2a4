# proves DAT-1, DAT-3, TRN-4: what cannot be used is named and refused, or passed over; it never ends in a traceback,
# in a wait without end, or in data that changed on its way
from __future__ import annotations

import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any

import pytest
from mixes import Place, pair, pairs

from supervisor.problems import InputError
from trainer.data.build.mix import load_mix
from trainer.data.build.reading import open_sources

RUST = "/// Halves.\nfn half(x: f64) -> f64 {\n    x / 2.0\n}\n"
PYTHON = 'def twice(x):\n    """Doubles."""\n    return x + x\n'


BUILT = ["source", "lane", "origin", "response_key", "duplicate_cluster", "mix"]


def refusal_again(place: Place, *sources: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        place.build(place.mix(*sources), "again")
    return str(caught.value).replace(f"{place.root}/", "")


def refusal(place: Place, *sources: dict[str, Any], **rest: Any) -> str:
    with pytest.raises(InputError) as caught:
        place.build(place.mix(*sources, **rest))
    assert not (place.root / "out").exists()
    return str(caught.value).replace(f"{place.root}/", "")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('"\\ud800"', "half of a surrogate pair"),
        ('{"a": ["\\udfff"]}', "half of a surrogate pair"),
        ("1e999", "is not finite"),
        ('{"a": [-1e999]}', "is not finite"),
    ],
)
def test_metadata_that_cannot_be_written_as_it_was_is_a_bad_row(place: Place, value: str, words: str) -> None:
    row = json.dumps({**pair(0), "note": 0}).replace('"note": 0', f'"note": {value}')
    place.rows("a.jsonl", [row, pair(1)])
    source = {"name": "a", "path": "a.jsonl", "metadata_fields": ["note"]}
    said = refusal(place, source)
    assert said.startswith("a.jsonl:1: ") and "note" in said and words in said
    place.build(place.mix({**source, "on_bad_row": "skip"}))
    assert len(place.corpus()) == 1 and words in place.dropped()[0]["detail"]


def test_a_file_whose_name_is_no_text_is_refused(place: Place) -> None:
    place.rows("d/a.jsonl", pairs(1))
    (place.root / "d" / os.fsdecode(b"b\xff.jsonl")).write_text(json.dumps(pair(2)))
    assert "is not UTF-8. Rename it." in refusal(place, {"name": "a", "path": "d"})
    bench = {"name": "b", "path": "d/*.jsonl", "fields": ["output"]}
    assert "is not UTF-8. Rename it." in refusal(place, {"name": "a", "path": "d/a.jsonl"}, exclude=[bench])


@pytest.mark.parametrize(("language", "suffix", "text"), [("rust", ".rs", RUST), ("python", ".py", PYTHON)])
def test_what_is_no_readable_file_of_a_source_tree_is_passed_over(
    place: Place, language: str, suffix: str, text: str
) -> None:
    tree = place.root / "tree"
    tree.mkdir()
    (tree / f"good{suffix}").write_text(text)
    (tree / f".hidden{suffix}").write_text(text.replace("x", "hidden"))
    (tree / os.fsdecode(b"b\xff" + suffix.encode())).write_text(text.replace("x", "y"))
    (tree / f".#good{suffix}").symlink_to("somebody@somewhere.1234")
    (tree / f"gone{suffix}").symlink_to("nowhere")
    (tree / f"endless{suffix}").symlink_to("/dev/zero")
    os.mkfifo(tree / f"pipe{suffix}")
    place.build(place.mix({"name": "t", "type": "declarations", "language": language, "path": "tree"}))
    assert [row["origin"].split(":")[0] for row in place.corpus()] == [f"tree/good{suffix}"]


def test_code_that_is_nested_too_deep_is_passed_over(place: Place) -> None:
    (place.root / "tree").mkdir()
    (place.root / "tree" / "deep.rs").write_text("mod a {\n" * 2000 + RUST.replace("x", "y") + "}\n" * 2000)
    (place.root / "tree" / "good.rs").write_text(RUST)
    place.build(place.mix({"name": "t", "type": "declarations", "language": "rust", "path": "tree"}))
    assert [row["origin"] for row in place.corpus()] == ["tree/good.rs:2"]


def test_a_source_tree_that_cannot_be_read_is_named_with_its_line(place: Place) -> None:
    (place.root / "tree").mkdir()
    (place.root / "tree" / "a.rs").symlink_to("/proc/self/mem")  # a file whose reading fails
    said = refusal(place, {"name": "t", "type": "declarations", "language": "rust", "path": "tree"})
    assert said.startswith("m.yaml:") and "tree cannot be read: " in said


@pytest.mark.parametrize("part", ["source", "bench", "tokenizer"])
def test_the_home_of_nobody_is_refused_with_its_line(place: Place, part: str) -> None:
    place.rows("a.jsonl", pairs(2))
    source: dict[str, Any] = {"name": "a", "path": "a.jsonl"}
    rest: dict[str, Any] = {}
    if part == "source":
        source["path"] = "~nosuchuser/x"
    elif part == "bench":
        rest = {"exclude": [{"name": "b", "path": "~nosuchuser/x", "fields": ["prompt"]}]}
    else:
        rest = {"tokenizer": "~nosuchuser/x", "max_length": 64}
    said = refusal(place, source, **rest)
    assert said.startswith("m.yaml:") and "the home folder of nosuchuser is not known" in said


def test_out_that_is_a_dangling_link_is_left_alone_before_anything_is_read(place: Place) -> None:
    place.rows("a.jsonl", ["not a row"])
    (place.root / "out").symlink_to("nowhere")
    with pytest.raises(InputError, match="out exists already"):
        place.build(place.mix({"name": "a", "path": "a.jsonl"}))
    assert (place.root / "out").is_symlink()


@pytest.mark.parametrize("path", ["d/**/*.jsonl", "d"])
def test_a_file_under_several_names_is_read_once(place: Place, path: str) -> None:
    place.rows("d/a.jsonl", pairs(3))
    (place.root / "d" / "loop").symlink_to(".")
    (place.root / "d" / "again.jsonl").symlink_to("a.jsonl")
    built = place.build(place.mix({"name": "a", "path": path}))
    assert [found.file for found in built.manifest.inputs] == ["d/a.jsonl"]
    assert built.manifest.sources[0].read == 3


def test_a_data_set_is_a_folder_beside_the_mix_or_an_id(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = place.root / "elsewhere"
    place.rows("elsewhere/saved/a.jsonl", pairs(3))
    place.rows("rows.jsonl", pairs(3))
    monkeypatch.chdir(elsewhere)
    for path, words in [
        ("saved", "saved is no folder beside the mix"),
        ("./nodir", "./nodir is not a folder"),
        ("/nowhere/at/all", "/nowhere/at/all is not a folder"),
        ("a/b/c", "a/b/c is not a folder"),
        ("rows.jsonl", "rows.jsonl is a file"),
    ]:
        said = refusal(place, {"name": "d", "type": "dataset", "path": path})
        assert said.startswith("m.yaml:7: ") and words in said


def test_an_id_of_the_hub_is_no_folder(tmp_path: Path) -> None:
    mix = Place(tmp_path).mix({"name": "d", "type": "dataset", "path": "some-body/some.rows"})
    assert open_sources(load_mix(mix), tmp_path / "out")[0].folder is None


def test_a_copy_of_what_came_from_the_mix_is_known_by_its_rows_at_any_distance(place: Place) -> None:
    place.rows("a.jsonl", pairs(3))
    place.build(place.mix({"name": "a", "path": "a.jsonl"}))
    place.build(place.mix({"name": "b", "path": "out/corpus.jsonl"}, name="second"), "out2")
    assert {row["mix"] for row in place.corpus("out2")} == {"second m"}
    (place.root / "copy.jsonl").write_bytes((place.root / "out2" / "corpus.jsonl").read_bytes())
    said = refusal_again(place, {"name": "x", "path": "copy.jsonl", "ignore_fields": BUILT})
    assert "copy.jsonl:1: this row was made by the mix m itself" in said


@pytest.mark.parametrize("change", ["metadata", "bad row"])
def test_the_digest_of_a_source_covers_all_that_is_read_of_it(place: Place, change: str) -> None:
    def digest(note: object, bad: str, out: str) -> str:
        place.rows("a.jsonl", [{**pair(0), "note": note}, bad])
        source = {"name": "a", "path": "a.jsonl", "metadata_fields": ["note"], "on_bad_row": "skip"}
        return place.build(place.mix(source), out).manifest.sources[0].rows_sha256

    first = digest(1, "{}", "out")
    assert digest(1, "{}", "same") == first
    assert (digest(2, "{}", "other") if change == "metadata" else digest(1, "[]", "other")) != first


def test_the_manifest_has_digests_of_trees_and_tokenizer_and_versions_of_grammars(place: Place) -> None:
    (place.root / "tree").mkdir()
    (place.root / "tree" / "a.rs").write_text(RUST)
    source = {"name": "t", "type": "declarations", "language": "rust", "path": "tree"}
    first = place.build(place.mix(source)).manifest
    (place.root / "tree" / "a.rs").write_text(RUST + "// no declaration\n")
    second = place.build(place.mix(source), "out2").manifest
    assert [record.file for record in first.inputs] == ["tree"] and first.inputs != second.inputs
    assert first.versions["tree-sitter-rust"] == importlib.metadata.version("tree-sitter-rust")


@pytest.mark.parametrize("changed", ["bench.jsonl", "tree/a.rs"])
def test_benches_and_trees_that_change_while_they_are_read_stop_the_build(
    place: Place, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    import trainer.data.build.build as module

    original = module.gather

    def gather(*arguments: Any) -> Any:
        found = original(*arguments)
        with open(place.root / changed, "a") as file:
            file.write("\n")
        return found

    (place.root / "tree").mkdir()
    (place.root / "tree" / "a.rs").write_text(RUST)
    place.rows("bench.jsonl", [{"prompt": " ".join(map(str, range(40)))}])
    monkeypatch.setattr(module, "gather", gather)
    source = {"name": "t", "type": "declarations", "language": "rust", "path": "tree"}
    said = refusal(place, source, exclude=[{"name": "b", "path": "bench.jsonl", "fields": ["prompt"]}])
    assert "changed while it was read. Build again" in said and changed.partition("/")[0] in said
