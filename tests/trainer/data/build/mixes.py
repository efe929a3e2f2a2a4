"""Mixes and rows for the tests of the build."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data.build.build import Built, build
from trainer.data.build.mix import load_mix

TOPICS = (
    "rivers carry sand", "clocks lose seconds", "bakers rise early", "kites need wind", "copper turns green",
    "owls hunt mice", "bridges swing slowly", "letters get lost", "glaciers carve valleys", "violins age well",
)  # fmt: skip


def pair(number: int, mark: str = "x", words: int = 12) -> dict[str, Any]:
    """A row unlike every other: its words are drawn from its number."""
    told = " ".join(
        f"{mark}{number * 31 + place * 7}{TOPICS[(number + place) % 10].split()[place % 3]}" for place in range(words)
    )
    return {"instruction": f"Tell {mark} {number} of {told[:30]}", "output": told}


def pairs(count: int, mark: str = "x", words: int = 12) -> list[dict[str, Any]]:
    return [pair(number, mark, words) for number in range(count)]


@dataclass
class Place:
    """A folder with rows and mixes in it."""

    root: Path

    def rows(self, name: str, rows: Sequence[Mapping[str, Any] | str]) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return path

    def mix(self, *sources: Mapping[str, Any], name: str = "m", **rest: Any) -> Path:
        path = self.root / f"{name}.yaml"
        path.write_text(json.dumps({"name": name, "sources": list(sources), **rest}, indent=1))
        return path

    def build(self, mix: Path, out: str = "out") -> Built:
        return build(load_mix(mix), self.root / out, lambda text: None)

    def corpus(self, out: str = "out") -> list[dict[str, Any]]:
        return read(self.root / out / "corpus.jsonl")

    def dropped(self, out: str = "out") -> list[dict[str, Any]]:
        return read(self.root / out / "dropped.jsonl")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
