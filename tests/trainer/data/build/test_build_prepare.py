# proves DAT-1, DAT-2, DAT-3: what a build makes of rows does not depend on how they were shared out among processes
from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from mixes import Place, pair, pairs

from supervisor.problems import InputError
from trainer.data.build import prepare, reading

LEAK = "the quick brown fox jumps over the lazy dog and then it sleeps for a while in the warm sun"


@pytest.fixture
def shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file goes to two processes, a few rows at a time."""
    monkeypatch.setattr(prepare, "SHARED_BYTES", 0)
    monkeypatch.setattr(prepare.os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(reading, "PIECE_BYTES", 1000)


def workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]


def mix_of_everything(place: Place) -> Path:
    """Good and bad rows, copies near and exact across pieces and sources, leaks, a sample, a cap, a blank line."""
    rows: list[object] = [*pairs(40, words=40), "", {"instruction": "?"}, "not JSON"]
    rows += [row | {"output": row["output"].upper()} for row in pairs(40, words=40)[::4]]
    rows += [{"instruction": pair(7, words=40)["instruction"], "output": f"{pair(7, words=40)['output']} indeed"}]
    rows += [{"instruction": "Say it", "output": f"{number} {LEAK}"} for number in range(3)]
    place.rows("a.jsonl", [row if isinstance(row, str) else json.dumps(row) for row in rows])
    place.rows("b.jsonl", [*pairs(10, words=40), *pairs(60, "y", words=40)])
    place.rows("bench.jsonl", [{"id": "fox", "text": LEAK}])
    return place.mix(
        {"name": "a", "path": "a.jsonl", "on_bad_row": "skip"},
        {"name": "b", "path": "b.jsonl", "sample_rate": 0.8, "max_rows": 30},
        exclude=[{"name": "bench", "path": "bench.jsonl", "fields": ["text"], "id_field": "id"}],
    )


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_several_processes_give_the_same_bytes_as_one(place: Place, request: pytest.FixtureRequest) -> None:
    mix = mix_of_everything(place)
    place.build(mix, "alone")
    request.getfixturevalue("shared_out")
    built = place.build(mix, "shared")
    assert outputs(place.root / "shared") == outputs(place.root / "alone")
    dropped = built.manifest.sources[0].dropped
    assert dropped == {"bad_row": 2, "contaminated": 3, "exact_duplicate": 10, "near_duplicate": 1}
    assert not workers()


def test_a_bad_row_is_refused_with_its_line_whichever_process_met_it(place: Place, shared_out: None) -> None:
    place.rows("a.jsonl", [*map(json.dumps, pairs(60)), '{"instruction": "?"}', *map(json.dumps, pairs(9, "z"))])
    with pytest.raises(InputError, match=r"a\.jsonl:61: .*'output' or 'response'"):
        place.build(place.mix({"name": "a", "path": "a.jsonl"}))
    assert not workers()


def test_a_killed_process_ends_the_build_with_a_reason(
    place: Place, shared_out: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = prepare.line_pieces

    def killing(source: reading.OpenSource) -> Iterator[tuple[str, list[tuple[int, bytes | None]]]]:
        for number, piece in enumerate(pieces(source)):
            if number == 1:
                for worker in workers():
                    os.kill(worker.pid, 9)
            yield piece

    monkeypatch.setattr(prepare, "line_pieces", killing)
    place.rows("a.jsonl", pairs(300))
    with pytest.raises(InputError, match=r"a\.jsonl: a process that was reading its rows was killed"):
        place.build(place.mix({"name": "a", "path": "a.jsonl"}))
    assert not (place.root / "out").exists()
