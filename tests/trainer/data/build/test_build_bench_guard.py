# proves DAT-3: a bench item is found in what a tool is called with
from __future__ import annotations

from typing import Any

import pytest
from mixes import Place, pairs

ITEM = """def grüße(leute):
    # "Hallo" für alle, die da sind
    for mensch in leute:
        print(f"Hallo {mensch}")
"""
BENCH = {"name": "mine", "path": "bench.jsonl", "fields": ["text"], "id_field": "id"}


def calling(arguments: dict[str, Any]) -> dict[str, Any]:
    call = {"name": "write_file", "arguments": arguments}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    return {"messages": [{"role": "user", "content": "Do it"}, answer]}


@pytest.mark.parametrize(
    "arguments", [{"path": "a.py", "content": ITEM}, {"edits": [{"n": 1}, {"new": [None, f"# new\n{ITEM}"]}]}]
)
def test_an_item_in_a_tool_call_is_found_as_the_tool_gets_it(place: Place, arguments: dict[str, Any]) -> None:
    place.rows("bench.jsonl", [{"id": "B/1", "text": ITEM}])
    place.rows("a.jsonl", [*pairs(2), calling(arguments), calling({"content": "print('innocent')"})])
    place.build(place.mix({"name": "a", "path": "a.jsonl"}, exclude=[BENCH]))
    assert [(row["origin"], row["detail"]) for row in place.dropped()] == [
        ("a.jsonl:3", "mine B/1 (containment 1.00)")
    ]
    assert len(place.corpus()) == 3
