"""configs/qwen3-4b-16gb.yaml as it stands, with its two models shrunk to two layers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import run, write_rows
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from supervisor.config import load_config, load_document, set_key
from supervisor.protocol.attempt import ExitKind
from supervisor.protocol.manifest import verify_checkpoint
from trainer.config import SftSections
from trainer.job import switch_model

CONFIG = Path(__file__).parents[2] / "configs" / "qwen3-4b-16gb.yaml"


def shrunk(folder: Path, tokenizer: PreTrainedTokenizerBase, hidden: int) -> Path:
    """A Qwen3 with everything that makes it one (query and key norms, a head dimension of its own, its template)."""
    trl = find_spec("trl")
    assert trl is not None and trl.origin is not None
    template = (Path(trl.origin).parent / "chat_templates" / "qwen3.jinja").read_text()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory, smol_tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The configuration loaded with ``--set`` for what this machine lacks: the models, a GPU and the data."""
    root = tmp_path_factory.mktemp("qwen3")
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    rows: list[dict[str, Any]] = [
        *({"instruction": f"Say {number}.", "output": f"{number}! " * (number + 1)} for number in range(12)),
        {"messages": [{"role": "user", "content": "What is 1 + 2?"}, call,
                      {"role": "tool", "content": "3"}, {"role": "assistant", "content": "It is 3."}],
         "tools": [tool]},
    ]  # fmt: skip
    changes = {
        "device": "cpu",
        "model.base": shrunk(root / "four", smol_tokenizer, 128),
        "model.fallback.base": shrunk(root / "two", smol_tokenizer, 64),
        "data.sources": f"[{{path: {write_rows(root / 'rows.jsonl', rows)}}}]",
        "data.validation.fraction": 0.2,
        "train.optim": "adamw_8bit",  # a CPU has no paged memory
        "train.max_steps": 2,
        "train.max_length": 128,
        "train.gradient_accumulation_steps": 2,
        "eval.eval_on_start": "false",
    }
    return load_config(CONFIG, [f"{key}={value}" for key, value in changes.items()]).document


def trained(document: dict[str, Any], run_dir: Path, layers_wide: int) -> None:
    sections = load_document(document).sections
    assert isinstance(sections, SftSections)
    attempt = run(run_dir, sections, save_steps=2)
    assert attempt.report is not None and attempt.report.kind is ExitKind.COMPLETED
    assert attempt.report.planned == attempt.report.done and attempt.report.done["steps"] == 2
    trainer = attempt.built
    assert trainer.model.config.model_type == "qwen3" and trainer.model.config.hidden_size == layers_wide
    assert any("Linear4bit" in str(type(module)) for module in trainer.model.modules())
    assert trainer.args.gradient_checkpointing and trainer.args.optim == "adamw_8bit"
    losses = attempt.progress("loss")
    assert len(losses) == 2 and all(0 < loss < 20 for loss in losses)
    assert verify_checkpoint(attempt.paths.checkpoint(2)) == []


def test_the_configuration_trains(document: dict[str, Any], tmp_path: Path) -> None:
    trained(document, tmp_path / "run", 128)


# proves SUP-3 (model fallback): what the rung patches trains as well
def test_its_fallback_trains(document: dict[str, Any], tmp_path: Path) -> None:
    relief = switch_model(document, {})
    assert relief is not None and relief.new_lineage
    for patch in relief.patches:
        set_key(document, patch.key, patch.new)
    trained(document, tmp_path / "run", 64)
    assert switch_model(document, {}) is None
