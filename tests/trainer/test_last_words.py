"""What a trainer leaves behind when it ends badly, and what it keeps out of checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants
from tiny_runs import Tiny

from supervisor.protocol.attempt import EXIT_CODES, SPEC_VARIABLE, AttemptSpec, ExitKind, read_exit_report, write_spec
from supervisor.protocol.paths import RunPaths
from trainer.base_model import locate
from trainer.effective import read_effective
from trainer.errors import ConfigurationError
from trainer.job import SFT


def broken_attempt(root: Path) -> Path:
    """An attempt whose configuration is refused; returns its attempt.json."""
    files = RunPaths(root).attempt(1)
    files.root.mkdir(parents=True)
    files.effective.write_text(json.dumps({"model": {"base": "random:1x64"}, "data": {"sources": []}}))
    write_spec(files.spec, AttemptSpec(str(root), 1, 1, str(files.effective), None, 5))
    return files.spec


# proves SUP-2: a full log disk costs neither the exit report nor the exit code
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_log_disk_leaves_report_and_exit_code(tmp_path: Path) -> None:
    spec = broken_attempt(tmp_path)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, *SFT.command(None)],  # type: ignore[arg-type]  # the same for every configuration
            env={**os.environ, SPEC_VARIABLE: str(spec), "PYTHONUNBUFFERED": "1"},
            stderr=full,
            check=False,
        )
    report = read_exit_report(RunPaths(tmp_path).attempt(1).exit_report)
    assert report is not None and report.kind is ExitKind.CONFIG_ERROR
    assert "data.sources" in report.message
    assert done.returncode == EXIT_CODES[ExitKind.CONFIG_ERROR]


TORN = """
import os, runpy, signal, threading
import trainer.effective

def torn(path):
    threading.Thread(target=threading.Event().wait).start()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except Exception:  # as numpy does, which then says that it is broken
        pass
    raise ImportError("Importing the numpy C-extensions failed.")

trainer.effective.read_effective = torn
runpy.run_module("trainer", run_name="__main__")
"""


# proves SUP-9: a stop in the middle of an import ends at once, whatever the import has made of it and left running
def test_an_import_that_is_torn_off_holds_nobody_up(tmp_path: Path) -> None:
    spec = broken_attempt(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", TORN], env={**os.environ, SPEC_VARIABLE: str(spec)})
    try:
        assert process.wait(120) == EXIT_CODES[ExitKind.INTERRUPTED]
    finally:
        process.kill()
        process.wait()
    report = read_exit_report(RunPaths(tmp_path).attempt(1).exit_report)
    assert report is not None and report.kind is ExitKind.INTERRUPTED
    assert report.message == "asked to stop while loading; nothing new to save"


# proves TRN-12: adapters get published, and launch.env may hold credentials
def test_a_checkpoint_records_the_kinds_own_sections_only(tiny: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "effective.yaml"
    own = tiny.sections({}).model_dump(mode="json")
    path.write_text(json.dumps({**own, "name": "x", "launch": {"env": {"HF_TOKEN": "hf_secret"}}}))
    sections, recorded = read_effective(path)
    assert sections == tiny.sections({})
    assert set(recorded) == set(own)
    assert "hf_secret" not in json.dumps(recorded)


# proves SUP-2: a base model that is nowhere is one paragraph, and final where no hub may be asked
def test_a_base_model_that_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigurationError, match=r"nobody/nothing.*Check the name and the network"):
        locate("nobody/nothing", None)
    with pytest.raises(ConfigurationError, match="neither an existing folder nor a hub id"):
        locate("no/such/model", None)


# proves SUP-2: a damaged base model is the configuration's trouble, named with its folder
@pytest.mark.parametrize(("file", "text"), [("model.safetensors", "short"), ("tokenizer.json", "{}")])
def test_a_damaged_base_model_is_named(tiny: Tiny, tmp_path: Path, file: str, text: str) -> None:
    base = tmp_path / "base"
    shutil.copytree(locate("random:1x64", None).path, base)
    (base / file).write_text(text)
    with pytest.raises(ConfigurationError, match=str(base)):
        tiny.run(f"damaged-{file}", {"model.base": str(base), "model.quantization": "none"})
