"""The ``command`` kind before launch: placeholders, checks, rungs. proves SUP-20."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.command.kind import COMMAND
from supervisor.command.template import expand, parse
from supervisor.config import LoadedConfig, load_command, load_config, load_document
from supervisor.jobs import AttemptFacts
from supervisor.problems import ConfigError
from supervisor.yaml_source import render_yaml


def written(tmp_path: Path, **sections: Any) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(render_yaml({"kind": "command", **sections}))
    return file


def arguments(config: LoadedConfig, run_dir: Path, resume_from: Path | None = None) -> tuple[str, ...]:
    facts = AttemptFacts(run_dir, 3, 1, resume_from, "/usr/bin/python3", save_steps=7, keep=2)
    return COMMAND.program(config.sections, facts).arguments


def refused(tmp_path: Path, **sections: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, **sections))
    return str(caught.value)


def test_placeholders_are_filled(tmp_path: Path) -> None:
    command = [
        "true", "{micro_batch}", "--json", '{"a": 1}', "{{micro_batch}}", "{attempt}/{lineage}/{save_steps}/{keep}",
        ["--resume", "{resume_from}"], "--again={resume_from}", "--out={output_dir}", "{python}", 12,
    ]  # fmt: skip
    config = load_config(
        written(tmp_path, command=command, values={"micro_batch": 4}, checkpoints={"dir": "{output_dir}"})
    )
    first = arguments(config, tmp_path)
    common = ("true", "4", "--json", '{"a": 1}', "{micro_batch}", "3/1/7/2")
    end = (f"--out={tmp_path}/output", "/usr/bin/python3", "12")
    assert first == (*common, *end)
    assert (tmp_path / "output").is_dir()
    resumed = arguments(config, tmp_path, Path("/x/checkpoint-5"))
    assert resumed == (*common, "--resume", "/x/checkpoint-5", "--again=/x/checkpoint-5", *end)


def test_text_is_split_like_a_shell_would(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, command="true --name 'two words' {n}", values={"n": True}))
    assert arguments(config, tmp_path) == ("true", "--name", "two words", "true")


def test_groups_are_left_out_whole() -> None:
    parsed = parse(["a", ["-b", "{x}", "-c", "{y}"], "{y}", "z"])
    assert expand(parsed, {"x": "1", "y": ""}) == ("a", "z")
    assert expand(parsed, {"x": "1", "y": "2"}) == ("a", "-b", "1", "-c", "2", "2", "z")


def test_relative_places_are_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "go.sh").write_text("#!/bin/sh\n")
    (tmp_path / "sub" / "go.sh").chmod(0o755)
    config = load_config(written(tmp_path, command=["./go.sh"], working_dir="sub"))
    facts = AttemptFacts(tmp_path, 1, 1, None, "python3", save_steps=1, keep=1)
    assert COMMAND.program(config.sections, facts).folder == tmp_path / "sub"


# a placeholder that nothing supplies, and everything else that could only fail later, is named with file and line
@pytest.mark.parametrize(
    ("sections", "line", "words"),
    [
        ({"command": ["true", "--x={micro}"]}, 4, "nothing supplies {micro}. Declare values.micro"),
        ({"command": ["true", ["--x", "{micro}"]]}, 4, "nothing supplies {micro}"),
        ({"command": "true {micro}"}, 2, "nothing supplies {micro}"),
        ({"command": ["true"], "values": {"seed": 1}}, 5, "values.seed is not used"),
        ({"command": ["true", "{attempt}"], "values": {"attempt": 1}}, 6, "supplies {attempt}"),
        ({"command": ["true", "{resume_from}"]}, 4, "nothing supplies {resume_from} without checkpoints"),
        (
            {"command": ["true", "--resume", "{resume_from}"], "checkpoints": {"dir": "out"}},
            5,
            'Write ["--resume", "{resume_from}"]',
        ),
        ({"command": ["no-such-program", "-x"]}, 3, "no-such-program is no program that can be run"),
        ({"command": ["./no-such-program"]}, 3, "no program that can be run"),
        ({"command": "say 'it"}, 2, "cannot be split into words"),
        ({"command": "  "}, 2, "command is empty"),
        ({"command": ["true", "{n}"], "values": {"n": 1}, "fallback": {"n": [1]}}, 8, "does not understand n"),
        ({"command": ["true"], "fallback": {"model": ["b"]}}, 5, "there is no values.model"),
        ({"command": ["true", "{micro_batch}"], "values": {"micro_batch": "4"}}, 6, "must be a whole number"),
        (
            {
                "command": ["true", "{model}", "{resume_from}"],
                "values": {"model": "a"},
                "fallback": {"model": ["b"]},
                "checkpoints": {"dir": "out"},
            },
            12,
            "another model must not find the checkpoints",
        ),
        ({"command": ["true"], "checkpoints": {"dir": "{run_dir}/checkpoints/x"}}, 5, "is the supervisor's own"),
        ({"command": ["true"], "working_dir": "nowhere"}, 4, "nowhere is no folder"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, sections: dict[str, Any], line: int, words: str) -> None:
    text = refused(tmp_path, **sections)
    assert words in text
    assert f"job.yaml:{line}: " in text, text


def test_the_command_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_command(["true", "train_it.py", "{micro_batch}"], ["values.micro_batch=2", "limits.max_attempts=3"])
    assert (config.own.name, config.kind.name, config.own.limits.max_attempts) == ("train_it", "command", 3)
    assert config.document["working_dir"] == str(tmp_path)
    with pytest.raises(ConfigError, match=r"nothing supplies \{x\}"):
        load_command(["true", "{x}"])
    with pytest.raises(ConfigError, match="no program"):
        load_command(["no-such-program"])


def document(**sections: Any) -> dict[str, Any]:
    return load_document({"kind": "command", "command": ["true"], **sections}, COMMAND).document


# proves SUP-3, SUP-4 for any trainer: each rung changes what the command line shows, and has its price
def test_rungs() -> None:
    halve, shorten, switch = (COMMAND.rungs[name] for name in ("halve_micro_batch", "shorten_sequence", "switch_model"))
    values = {"micro_batch_size": 6, "gradient_accumulation": 2, "sequence_len": 2048, "base_model": "a"}
    fallback = {"base_model": ["b", "c"]}
    plain = document(values=values, fallback=fallback)
    relief = halve(plain, {})
    assert relief is not None
    assert {patch.key: patch.new for patch in relief.patches} == {
        "values.micro_batch_size": 3,
        "values.gradient_accumulation": 4,
    }
    assert relief.lossless
    odd = halve(document(values={**values, "micro_batch_size": 3}), {})
    assert odd is not None
    assert [patch.new for patch in odd.patches] == [1, 6]
    alone = halve(document(values={"micro_batch": 2}), {})
    assert alone is not None
    assert not alone.lossless
    assert "global batch is halved" in alone.price
    assert halve(document(values={"micro_batch": 1}), {}) is None
    shorter = shorten(plain, {})
    assert shorter is not None
    assert [patch.new for patch in shorter.patches] == [1536]
    named = shorten(document(values=values, fallback={"sequence_len": [1000]}), {})
    assert named is not None
    assert [patch.new for patch in named.patches] == [1000]
    other = switch(plain, {})
    assert other is not None
    assert (other.patches[0].new, other.new_lineage) == ("b", True)
    further = switch(document(values={**values, "base_model": "b"}, fallback=fallback), {})
    assert further is not None
    assert further.patches[0].new == "c"
    assert switch(document(values={**values, "base_model": "c"}, fallback=fallback), {}) is None
    nothing = document()
    assert [rung(nothing, {}) for rung in (halve, shorten, switch)] == [None, None, None]
