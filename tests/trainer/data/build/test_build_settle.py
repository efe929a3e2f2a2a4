# proves DAT-2, DAT-6: a row gives way only to one that is in the corpus
from __future__ import annotations

from mixes import Place, pair, pairs


def origins(place: Place) -> list[str]:
    return [row["origin"] for row in place.corpus()]


def words(start: int, count: int) -> str:
    return " ".join(f"w{number}" for number in range(start, start + count))


def test_a_cap_takes_no_rows_of_other_sources(place: Place) -> None:
    place.rows("a.jsonl", pairs(50))
    place.rows("b.jsonl", [*pairs(40), *pairs(2, "y")])
    place.build(place.mix({"name": "a", "path": "a.jsonl", "max_rows": 5}, {"name": "b", "path": "b.jsonl"}))
    of_a = {int(origin.split(":")[1]) for origin in origins(place) if origin.startswith("a.")}
    of_b = {int(origin.split(":")[1]) for origin in origins(place) if origin.startswith("b.")}
    assert len(of_a) == 5 and of_b == set(range(1, 43)) - of_a
    copies = [(row["origin"], row["detail"]) for row in place.dropped()]
    assert copies == [(f"b.jsonl:{line}", f"copy of a.jsonl:{line}") for line in sorted(of_a) if line <= 40]


def test_an_oracle_takes_no_rows_of_other_sources(place: Place) -> None:
    place.rows("a.jsonl", [pair(1), pair(2), pair(1)])
    place.rows("b.jsonl", [pair(1), pair(2)])
    oracle = {"command": ["grep", "-q", pair(2)["output"], "{file}"]}
    place.build(place.mix({"name": "a", "path": "a.jsonl", "oracle": oracle}, {"name": "b", "path": "b.jsonl"}))
    assert origins(place) == ["a.jsonl:2", "b.jsonl:1"]
    assert [(row["origin"], row["reason"], row["detail"]) for row in place.dropped()] == [
        ("a.jsonl:1", "oracle", "fail"),
        ("a.jsonl:3", "exact_duplicate", "copy of a.jsonl:1"),
        ("b.jsonl:2", "exact_duplicate", "copy of a.jsonl:2"),
    ]


def test_only_what_is_similar_to_a_row_that_stays_is_dropped(place: Place) -> None:
    # Windows that slide over one text: each is nearly its neighbour, the last shares no word with the first.
    place.rows("a.jsonl", [{"instruction": "Say", "output": words(2 * number, 80)} for number in range(60)])
    place.build(place.mix({"name": "a", "path": "a.jsonl"}))
    lines = [int(origin.split(":")[1]) for origin in origins(place)]
    assert lines[0] == 1 and 8 < len(lines) < 30
    for row in place.dropped():
        kept = int(row["detail"].removeprefix("copy of a.jsonl:"))
        dropped = int(row["origin"].split(":")[1])
        assert kept in lines and 0 < dropped - kept < 10
    assert {row["duplicate_cluster"] for row in place.corpus()} == {0}, "the split keeps the chain together"


def test_the_row_that_stays_is_named(place: Place) -> None:
    rows = [{"instruction": "Say", "output": f"{words(0, 80)} {end}"} for end in ("bad", "good one", "good two")]
    place.rows("a.jsonl", rows)
    place.build(
        place.mix({"name": "a", "path": "a.jsonl", "oracle": {"command": ["grep", "-q", "good", "{file}"]}})
    )
    assert origins(place) == ["a.jsonl:2"]
    assert [(row["origin"], row["detail"]) for row in place.dropped()] == [
        ("a.jsonl:1", "fail"), ("a.jsonl:3", "copy of a.jsonl:2"),
    ]  # fmt: skip


def test_a_capped_row_takes_no_similar_row_of_another_source(place: Place) -> None:
    place.rows("a.jsonl", [{"instruction": "Say", "output": f"{words(100 * n, 80)} a"} for n in range(6)])
    place.rows("b.jsonl", [{"instruction": "Say", "output": f"{words(100 * n, 80)} b"} for n in range(6)])
    place.build(place.mix({"name": "a", "path": "a.jsonl", "max_rows": 2}, {"name": "b", "path": "b.jsonl"}))
    kept = origins(place)
    assert len(kept) == 6 and sum(origin.startswith("a.") for origin in kept) == 2
    assert len({origin.split(":")[1] for origin in kept}) == 6
