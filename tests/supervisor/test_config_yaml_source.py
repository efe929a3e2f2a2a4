"""YAML files as plain data with lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.problems import ConfigError
from supervisor.yaml_source import parse_yaml_mapping, parse_yaml_value, read_yaml, render_yaml


def problem_of(text: str) -> tuple[int | None, str]:
    with pytest.raises(ConfigError) as caught:
        parse_yaml_mapping(text, "x.yaml")
    assert len(caught.value.problems) == 1
    problem = caught.value.problems[0]
    assert problem.file == "x.yaml"
    return problem.line, problem.message


# proves TRN-9: what a person means by a number is a number, and every key has a line to point at
def test_yaml_1_2_scalars_and_lines() -> None:
    data, lines = parse_yaml_mapping("lr: 2e-4\nb:\n  c: [1, 2]\n  d: yes\n  e: 010\n", "x.yaml")
    assert data == {"lr": 2e-4, "b": {"c": [1, 2], "d": "yes", "e": 10}}
    assert lines == {"lr": 1, "b": 2, "b.c": 3, "b.c.0": 3, "b.c.1": 3, "b.d": 4, "b.e": 5}


def test_merge_keys_keep_the_line_of_what_holds() -> None:
    data, lines = parse_yaml_mapping("base: &b {x: 1}\nc:\n  <<: *b\n  x: 2\n  y: 3\n", "x.yaml")
    assert data["c"] == {"x": 2, "y": 3}
    assert lines["c.x"] == 4


# proves TRN-9: bad input names file and line
@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "a stands twice, first on line 1"),
        ("s:\n  a: 1\n  a: 3\n", 3, "s.a stands twice, first on line 2"),
        ("a: [1\nb: 2", 2, "not valid YAML"),
        ("a:\n\t- b", 2, "not valid YAML"),
        ("a: *nope", 1, "undefined alias"),
        ("a: !!python/object:os.system 1", 1, "could not determine a constructor"),
        ("a: 1\n---\nb: 2\n", 2, "another document"),
        ("", 1, "empty"),
        ("- 1", 1, "no mapping"),
        ("1: 2", 1, "the key 1 is not text"),
        ("? [a]\n: 2", 1, "the key a list or mapping is not text"),
        ("a: &x\n  b: *x\n", None, "refers to itself"),
        ("a: \x00", None, "not valid YAML"),
    ],
)
def test_unusable_text(text: str, line: int | None, part: str) -> None:
    found_line, message = problem_of(text)
    assert found_line == line
    assert part in message


def test_aliases_of_aliases_stop() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    _, message = problem_of("\n".join(lines))
    assert "without end" in message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff\n")
    for name, part in [("no.yaml", "no such file"), (".", "a folder"), ("latin.yaml", "not UTF-8")]:
        with pytest.raises(ConfigError) as caught:
            read_yaml(tmp_path / name)
        assert part in caught.value.problems[0].message


def test_value_of_a_set_option() -> None:
    assert [parse_yaml_value(text) for text in ("1e-4", "", "[a, b]", "x")] == [1e-4, None, ["a", "b"], "x"]
    with pytest.raises(ValueError, match="expected"):
        parse_yaml_value("{a: 1")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3),
    max_leaves=8,
)


# proves SUP-1: run.yaml and effective.yaml say exactly what was decided
@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(min_size=1), plain, min_size=1, max_size=4))
def test_render_then_read_is_the_same(document: dict[str, Any]) -> None:
    data, _ = parse_yaml_mapping(render_yaml(document), "x.yaml")
    assert data == document
    assert list(data) == list(document)
