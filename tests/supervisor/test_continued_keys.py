"""What may change when a run goes on. proves TRN-13, TRN-19."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scripted_runs import config, run

from supervisor.config import unaccepted
from supervisor.protocol.paths import RunPaths
from supervisor.state import Outcome
from supervisor.yaml_source import read_yaml, render_yaml


@pytest.mark.parametrize(
    ("key", "value", "free"),
    [
        ("processes", 2, False), ("strategy", "fsdp", False),
        ("standby", "off", True), ("python", "/usr/bin/python3", True), ("env", {"A": "1"}, True),
    ],
)  # fmt: skip
def test_how_many_train_is_no_matter_of_operation(key: str, value: Any, free: bool) -> None:
    before = {"launch": {"processes": 1, "strategy": "ddp", "standby": "auto", "python": None, "env": {}}}
    after = {"launch": {**before["launch"], key: value}}
    assert (unaccepted(before, after, ()) == []) is free
    assert unaccepted(before, after, (f"launch.{key}",)) == []


def test_a_run_of_a_version_without_a_key_goes_on_with_its_default(tmp_path: Path) -> None:
    fault = {"at": 8, "do": "exit", "code": 1, "attempt": 1}
    assert run(config(fault, limits={"max_attempts": 1}), tmp_path / "run") is not Outcome.COMPLETED
    file = RunPaths(tmp_path / "run").run_yaml
    document, _ = read_yaml(file)
    del document["launch"]["processes"], document["launch"]["strategy"]
    file.write_text(render_yaml(document))
    assert run(config(fault, limits={"max_attempts": 1}), tmp_path / "run") is Outcome.COMPLETED
