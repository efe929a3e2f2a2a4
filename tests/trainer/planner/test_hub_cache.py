"""A model in the hub's cache is found where huggingface_hub would look. proves TRN-16."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.planner.shapes import hub_file

VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME")


@pytest.mark.parametrize(
    ("variables", "hub"),
    [
        ({}, "home/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "{root}/xdg"}, "xdg/huggingface/hub"),
        ({"HF_HOME": "~/hf"}, "home/hf/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "{root}/older", "HF_HOME": "{root}/hf"}, "older"),
        ({"HF_HUB_CACHE": "$HOME/newer", "HUGGINGFACE_HUB_CACHE": "{root}/older"}, "home/newer"),
    ],
)
def test_the_hubs_own_variables_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], hub: str
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(root=tmp_path))
    model = tmp_path / hub / "models--a--b"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("c0ffee")
    (model / "snapshots" / "c0ffee").mkdir(parents=True)
    (model / "snapshots" / "c0ffee" / "config.json").write_text("{}")
    assert hub_file("a/b", None, "config.json") == model / "snapshots" / "c0ffee" / "config.json"
