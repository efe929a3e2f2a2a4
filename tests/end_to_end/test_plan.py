"""`mens-sup plan` foretells what `mens-sup run` then does. proves TRN-16."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from real_runs import QUICK, TINY, events, log_of, mens_sup, run, sets

CHANGES = {**QUICK, "limits.admission": "refuse"}


@pytest.mark.slow
def test_the_plan_is_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_CACHE", str(tmp_path / "cache"))
    before = planned(tmp_path)
    assert before["fits"] is True and before["device"] == "cpu"
    assert before["time"]["seconds"] is None and "--probe" in before["time"]["source"]
    place = tmp_path / "runs" / "one"
    place.parent.mkdir()
    assert run(place, CHANGES) == 0, log_of(place).read_text()
    plan, corpus, admission, memory = (
        events(place, kind)[0].data for kind in ("plan", "corpus", "admission", "memory")
    )
    assert plan["planned_steps"] == before["data"]["planned_steps"]
    assert plan["planned_tokens"] == before["data"]["planned_tokens"]
    assert corpus["longest_row"] == before["data"]["longest_row"]
    assert admission["fits"] is True
    assert memory["predicted_tensor_bytes"] == before["memory"]["tensor_bytes"]
    size = sum(file.stat().st_size for file in (place / "final").iterdir())
    assert before["disk"]["checkpoint_bytes"] == pytest.approx(size, rel=0.5)
    after = planned(tmp_path)
    assert after["time"]["seconds"] is not None and "earlier run" in after["time"]["source"]


def planned(place: Path, *options: str) -> dict[str, Any]:
    done = mens_sup("plan", TINY, "--json", "--runs", place / "runs", *sets(CHANGES), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_a_probe_measures_the_time_and_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_CACHE", str(tmp_path / "cache"))
    found = planned(tmp_path, "--probe", "--set", "train.max_steps=1000")
    assert found["data"]["planned_steps"] == 1000
    assert found["time"]["seconds"] > 1 and "1000 steps" in found["time"]["source"]
    assert list((tmp_path / "runs").iterdir()) == []
