"""proves TRN-9 for the supervisor's own sections: no field is there for show."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from scripted_runs import document, run, state

from supervisor import config_sections
from supervisor.cli import main
from supervisor.config import load_config
from supervisor.config_sections import SupervisorSections
from supervisor.state import Outcome
from supervisor.yaml_source import render_yaml

Reads = set[tuple[str, str]]
BY_RUNGS = {("ReliefSettings", "seq_len_rungs")}
"""Read by the rungs of a kind of job, from the plain document (see tests of the ladder)."""


def sections_of(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for info in model.model_fields.values():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from sections_of(info.annotation)


def recorded(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """From now on every read of an attribute of the sections is noted, but not those of their own validators."""
    reads: Reads = set()

    def read(self: Any, name: str) -> Any:
        if sys._getframe(1).f_code.co_filename != config_sections.__file__:
            reads.add((type(self).__name__, name))
        return object.__getattribute__(self, name)

    for each in sections_of(SupervisorSections):
        monkeypatch.setattr(each, "__getattribute__", read, raising=False)
    return reads


def test_something_reads_every_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {(each.__name__, name) for each in sections_of(SupervisorSections) for name in each.model_fields}
    assert len(fields) > 15
    file = tmp_path / "job.yaml"
    address = tmp_path / "address"
    address.touch(0o600)
    address.write_text("http://127.0.0.1:9/")
    notify = {"command": ["true"], "ping_file": str(address)}
    file.write_text(render_yaml(document({"at": 5, "do": "kill9", "attempt": 1}, notify=notify)))
    reads = recorded(monkeypatch)
    assert main(["run", str(file), "--run-dir", str(tmp_path / "r"), "--no-live"]) == 0
    assert state(tmp_path / "r").attempt == 2
    assert fields - reads - BY_RUNGS - {("SupervisorSections", "name"), ("SupervisorSections", "kind")} == set()
    assert main(["validate", str(file)]) == 0  # which names the run; its kind is looked up in the document
    assert ("SupervisorSections", "name") in reads


def test_an_unread_field_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(render_yaml(document()))
    reads = recorded(monkeypatch)
    loaded = load_config(file)
    assert ("Limits", "backoff_seconds") not in reads, "validating a section must not count as reading it"
    assert run(loaded, tmp_path / "r") is Outcome.COMPLETED
    assert ("Limits", "backoff_seconds") in reads
