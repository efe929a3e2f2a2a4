import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_resume import assert_same_checkpoint
from tiny_runs import Attempt, Tiny

from trainer import held_model
from trainer.base_model import locate
from trainer.config import SftSections
from trainer.held_model import CPU, hold_model, take_model

SCRIPT = """
import os, sys
from trainer import warm

if "AGAIN" in os.environ:
    print("afresh", os.getpid(), sys.argv[1:], "torch" in sys.modules)
    sys.exit(7)
os.environ["AGAIN"] = "1"
print("first", os.getpid(), flush=True)
warm._imported_with.extend({imported!r})
warm.start_afresh_if_imported_otherwise()
print("went on", flush=True)
"""


# proves SUP-12: imported for a local base and given a job with a hub model (or the reverse), the process starts afresh
@pytest.mark.parametrize(
    ("imported", "now", "afresh"),
    [(["1"], None, True), ([None], "1", True), (["1"], "1", False), ([None], None, False), ([], "1", False)],
)
def test_other_settings_than_at_import(
    tmp_path: Path, imported: list[str | None], now: str | None, afresh: bool
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(imported=imported))
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    if now is not None:
        environment["HF_HUB_OFFLINE"] = now
    found = subprocess.run(
        [sys.executable, "-P", str(script), "argument"], env=environment, capture_output=True, text=True, check=False
    )
    first, second = found.stdout.splitlines()
    pid = first.removeprefix("first ")
    assert second == (f"afresh {pid} ['argument'] False" if afresh else "went on"), found.stderr
    assert found.returncode == (7 if afresh else 0)


# --- the model ------------------------------------------------------------------------------------------

LIKE_PLAIN: dict[str, Any] = {"train.max_steps": 5, "eval.eval_steps": 2, "eval.eval_on_start": True}


def hold(sections: SftSections) -> None:
    hold_model(locate(sections.model.base, None), sections.model, sections.train.seed)


# proves SUP-12, TRN-12: with a model that was loaded before the job came, the run is the same bit for bit
def test_a_held_model_trains_like_a_fresh_one(tiny: Tiny, plain_run: Attempt) -> None:
    hold(tiny.sections(LIKE_PLAIN))
    ((_, held),) = held_model._held
    torch.rand(3)  # whatever else is drawn before the job comes
    run = tiny.run("held", LIKE_PLAIN, save_steps=2)
    assert run.built.accelerator.unwrap_model(run.built.model) is held.model
    assert held_model._held == [], "nobody else gets it, and nothing keeps its memory"
    for step in (2, 5):
        assert_same_checkpoint(run.paths.checkpoint(step), plain_run.paths.checkpoint(step))


# proves SUP-12: relief or the user has changed what is to be trained, or where
@pytest.mark.parametrize(
    "changes", [{"model.lora.r": 2}, {"train.seed": 2}, {"model.dtype": "bfloat16"}, {"model.base": "random:1x32"}]
)
def test_another_model_is_not_taken(tiny: Tiny, changes: dict[str, Any]) -> None:
    hold(tiny.sections())
    now = tiny.sections(changes)
    assert take_model(locate(now.model.base, None), now.model, now.train.seed, CPU) is None
    assert held_model._held == []


def test_a_held_model_is_for_the_cpu_alone(tiny: Tiny) -> None:
    hold(tiny.sections())
    now = tiny.sections()
    assert take_model(locate(now.model.base, None), now.model, now.train.seed, torch.device("cuda", 0)) is None
    assert held_model._held == []


# proves SUP-12: the attempt that runs comes first
def test_without_memory_nothing_is_held(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_model, "LEFT_BYTES", 1 << 60)
    hold(tiny.sections())
    assert held_model._held == []


# proves SUP-12: quantising takes long and much memory; only what lies there ready is read
def test_a_base_that_has_yet_to_be_quantised_is_not_held(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = locate("random:1x64", None)
    monkeypatch.setenv("MENS_CACHE", str(tmp_path))
    sections = tiny.sections({"model.quantization": "nf4"})
    hold_model(base, sections.model, 1)
    assert held_model._held == [] and not list(tmp_path.iterdir())
