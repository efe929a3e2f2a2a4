# proves TRN-4
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.data.messages import BadRow, Row, RowError, ToolCall
from trainer.data.rows import MAX_LINE_BYTES, decode_row, encode_row, objects_of, read_jsonl, row_of
from trainer.data.sources import Source, check_sources, read_source

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}


def parse(row: Any, **options: Any) -> Row:
    (found,) = objects_of([(7, json.dumps(row).encode())], "f.jsonl")
    if isinstance(found, BadRow):
        raise RowError(found.reason, found.problem)
    return row_of(found[1], file="f.jsonl", line=7, **options)


def turns(row: Row) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in row.messages]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"instruction": "Add.", "output": "3"}, [("user", "Add."), ("assistant", "3")]),
        (
            {"instruction": "Add.", "input": "1 2", "response": "3", "system": "Count."},
            [("system", "Count."), ("user", "Add.\n\n1 2"), ("assistant", "3")],
        ),
        ({"instruction": "Add.", "input": "", "output": "3"}, [("user", "Add."), ("assistant", "3")]),
        ({"prompt": "Add.", "completion": "3"}, [("user", "Add."), ("assistant", "3")]),
        (
            {
                "prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "Add."}],
                "completion": [{"role": "assistant", "content": "3"}],
            },
            [("system", "S"), ("user", "Add."), ("assistant", "3")],
        ),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "tools": None},
            [("user", "a"), ("assistant", "b")],
        ),
        (
            {
                "system": "S",
                "conversations": [
                    {"from": "human", "value": "a"},
                    {"from": "gpt", "value": "b"},
                    {"from": "user", "value": "c"},
                    {"from": "assistant", "value": "d"},
                ],
            },
            [("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")],
        ),
    ],
)
def test_each_shape_is_read_whole(row: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert turns(parse(row)) == expected


def test_tool_calls_in_both_shapes_are_the_same_conversation() -> None:
    messages = {
        "tools": [WEATHER],
        "messages": [
            {"role": "user", "content": "Oslo?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "rain"},
            {"role": "assistant", "content": "It rains."},
        ],
    }
    sharegpt = {
        "tools": json.dumps([WEATHER]),
        "conversations": [
            {"from": "human", "value": "Oslo?"},
            {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Oslo"}}'},
            {"from": "observation", "value": "rain"},
            {"from": "gpt", "value": "It rains."},
        ],
    }
    first, second = parse(messages), parse(sharegpt)
    assert first.tools == second.tools == (WEATHER,)
    assert turns(first) == turns(second) == [
        ("user", "Oslo?"), ("assistant", ""), ("tool", "rain"), ("assistant", "It rains."),
    ]  # fmt: skip
    assert first.messages[1].tool_calls == (ToolCall("weather", {"city": "Oslo"}, "c1"),)
    assert second.messages[1].tool_calls == (ToolCall("weather", {"city": "Oslo"}),)
    assert "Oslo" in first.response


USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"instruction": "a", "output": "b", "category": "x"}, ["'category'", "dropped", "metadata_fields"]),
        ({"messages": [USER, {**ANSWER, "weight": 0}]}, ["messages[1]", "'weight'"]),
        ({"messages": [USER, {**ANSWER, "reasoning_content": "r"}]}, ["'reasoning_content'"]),
        ({"conversations": [{"from": "human", "value": "a", "loss": 1}]}, ["conversations[0]", "'loss'"]),
        ({"messages": [USER, ANSWER], "instruction": "a"}, ["several shapes"]),
        ({"instruction": "a", "output": "b", "response": "c"}, ["both"]),
        ({"instruction": "a"}, ["neither"]),
        ({"output": "b"}, ["none of instruction"]),
        ({"messages": [{"role": "critic", "content": "a"}, ANSWER]}, ["'critic'", "system, user, assistant, tool"]),
        ({"conversations": [{"from": "bard", "value": "a"}]}, ["'bard'"]),
        ({"instruction": "a", "output": " \n"}, ["empty answer"]),
        ({"messages": [USER, {"role": "assistant", "content": ""}]}, ["empty answer"]),
        ({"instruction": " ", "output": "b"}, ["empty user turn"]),
        ({"messages": [USER]}, ["no assistant turn"]),
        ({"messages": []}, ["empty"]),
        ({"messages": [USER, ANSWER, USER]}, ["last turn", "user"]),
        ({"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}]}, ["string", "list"]),
        ({"instruction": 5, "output": "b"}, ["string", "number"]),
        ({"messages": "hello"}, ["list"]),
        ({"messages": [USER, {"role": "system", "content": "s"}, ANSWER]}, ["may only come first"]),
        ({"messages": [USER, {"role": "tool", "content": "r", "name": "x"}, ANSWER]}, ["no call"]),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[1]"}]}]}, ["object"]),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]},
                          {"role": "tool", "tool_call_id": "other", "content": "r"}, ANSWER]},
            ["'other'", "'c1'"],
        ),
        ({"instruction": "a", "output": "nul \0"}, ["NUL"]),
        ({"instruction": "a", "output": "half \ud800"}, ["surrogate"]),
        ([1, 2], ["object", "list"]),
    ],
)  # fmt: skip
def test_nothing_is_dropped_in_silence(row: Any, words: list[str]) -> None:
    with pytest.raises(RowError) as caught:
        parse(row)
    for word in words:
        assert word in caught.value.problem


def test_a_field_listed_as_metadata_is_kept_beside_the_row() -> None:
    row = parse(
        {"instruction": "a", "output": "b", "difficulty": 2, "messages": "kept"},
        metadata_fields=frozenset({"difficulty", "messages"}),
    )
    assert row.extra == {"difficulty": 2, "messages": "kept"}
    assert decode_row(encode_row(row)) == row


GOOD = b'{"instruction": "a", "output": "b"}'


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b'{"instruction": "a", "output": "b"', "not JSON"),
        (b'{"instruction": "a", "output": "\xff"}', "UTF-8"),
        (b'{"instruction": "a",\0 "output": "b"}', "NUL"),
        (b'{"instruction": "a", "output": "b", "output": "c"}', "'output' stands twice"),
        (b'{"instruction": "a", "output": NaN}', "NaN"),
        (b"[" * 100_000, "not usable JSON"),
        (b'{"instruction": "a", "output": "' + b"x" * MAX_LINE_BYTES + b'"}', "10 MB"),
    ],
)
def test_a_damaged_line_is_named_and_the_next_ones_are_read(tmp_path: Path, line: bytes, word: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + GOOD + b"\r\n\n" + line + b"\n" + GOOD)
    first, bad, last = read_jsonl(file)
    assert isinstance(first, Row) and isinstance(last, Row)
    assert isinstance(bad, BadRow)
    assert (bad.file, bad.line) == (str(file), 3)
    assert word in bad.problem
    assert last.line == 4


def test_check_before_launch_names_file_and_line(tmp_path: Path) -> None:
    file, empty, missing = tmp_path / "rows.jsonl", tmp_path / "empty.jsonl", tmp_path / "missing.jsonl"
    file.write_bytes(GOOD + b"\n" + b'{"instruction": "a", "output": "b", "topic": "x"}\n' * 30)
    empty.write_bytes(b"\n\n")
    sources = [Source("jsonl", path) for path in (missing, empty, file)]
    problems = check_sources(sources)
    assert len(problems) == 20
    assert problems[0].key == "data.sources[0].path" and "missing.jsonl" in problems[0].message
    assert "empty" in problems[1].message
    assert (problems[2].file, problems[2].line) == (str(file), 2)
    assert "'topic'" in problems[2].message and "skip" in problems[2].remedy
    assert check_sources([Source("jsonl", file)], on_bad_row="skip") == []
    assert check_sources([Source("jsonl", file)], metadata_fields=frozenset({"topic"})) == []
    file.write_bytes(b"{}\n")
    assert "none of the 1 rows" in check_sources([Source("jsonl", file)], on_bad_row="skip")[0].message


def test_max_rows_and_difficulty(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(
        "".join(json.dumps({"instruction": "a", "output": str(n), "level": level}) + "\n"
                for n, level in enumerate([1, "two", 2.5, None, 4]))
    )  # fmt: skip
    found = list(read_source(Source("jsonl", file, max_rows=4), curriculum_field="level"))
    assert [type(row) for row in found] == [Row, BadRow, Row, BadRow]
    assert isinstance(found[1], BadRow) and "'two'" in found[1].problem and found[1].line == 2
