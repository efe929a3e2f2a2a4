"""proves TRN-9: no field of the schema is there for show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from tiny_runs import NotTrained, Tiny, rows_of, write_rows

from trainer.config import Section, SftSections
from trainer.job import SFT

Reads = set[tuple[str, str]]


def classes_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """The schema classes inside a type, however deep: optional, in lists, in annotations."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for info in annotation.model_fields.values():
            yield from classes_of(info.annotation)
    for inside in get_args(annotation):
        yield from classes_of(inside)


def recorded(monkeypatch: pytest.MonkeyPatch, classes: set[type[BaseModel]]) -> Reads:
    """From now on every read of an attribute of these classes is noted."""
    reads: Reads = set()

    def read(self: Any, name: str) -> Any:
        reads.add((type(self).__name__, name))
        return object.__getattribute__(self, name)

    for each in classes:
        monkeypatch.setattr(each, "__getattribute__", read, raising=False)
    return reads


def test_something_reads_every_field(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classes = set(classes_of(SftSections))
    assert len(classes) == 10 and all(issubclass(each, Section) for each in classes)
    fields = {(each.__name__, name) for each in classes for name in each.model_fields}
    rows = write_rows(tmp_path / "rows.jsonl", [{**row, "level": 1} for row in rows_of(12)])
    with_fallback = {
        "model.quantization": "nf4",  # double_quant is read with it alone
        "model.fallback": {"base": "random:1x64"},
        "data.sources": [{"path": str(rows)}],
        "data.validation": {"fraction": 0.25},
        "data.curriculum_field": "level",
        "train.max_steps": 1,
        "train.lr_scheduler_type": "constant",
        "train.warmup_ratio": 0.0,
    }
    # A federation's training waits for its rounds, so the mailbox is not part of the run below.
    sections = tiny.sections({**with_fallback, "federated.mailbox": "box"})
    reads = recorded(monkeypatch, classes)
    resolved = SFT.resolve(sections, tmp_path)
    assert SFT.preflight(resolved) == []
    tiny.run("all-read", with_fallback)
    assert fields - reads == set()


def test_an_unread_field_would_be_noticed(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = recorded(monkeypatch, set(classes_of(SftSections)))
    tiny.run("some-read", {"train.max_steps": 1}, trainer_class=NotTrained)
    assert ("TrainSection", "learning_rate") in reads
    assert ("FallbackModel", "base") not in reads and ("ModelSection", "double_quant") in reads
    assert ("ModelSection", "fallback") not in reads, "validating and printing a section must not count as reading it"
