"""final/ is a checkpoint like any other: it loads, says its template, and its folder is a run for gates and export."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from peft import PeftModel
from tiny_runs import Tiny
from transformers import AutoModelForCausalLM

from evalsuite.after_run import trained
from evalsuite.export import export
from rft.samplers.renderer import read_adapter_template
from supervisor.problems import InputError
from supervisor.protocol.manifest import read_manifest, verify_checkpoint
from trainer.adapter import open_adapter
from trainer.base_model import load_tokenizer, locate
from trainer.federated import size
from trainer.federated.blueprint import changed, standing_blueprint
from trainer.federated.coordinator import Record, State
from trainer.federated.final import write_final
from trainer.federated.packed import Blueprint, joined, of_rank, unpack
from trainer.run import make_renderer

TRAIN = """
model: {base: "random:1x64", quantization: none, lora: {r: 4, lora_alpha: 8}}
data: {sources: [{path: rows.jsonl}]}
"""


@pytest.fixture
def planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], Blueprint]:
    """What a training comes to by its YAML."""

    def planned(text: str) -> Blueprint:
        (tmp_path / "train.yaml").write_text(text)
        monkeypatch.setattr(sys, "argv", ["size", str(tmp_path / "train.yaml"), "--whole"])
        assert size.main() == 0
        return msgspec.json.decode(capsys.readouterr().out, type=Blueprint)

    return planned


@pytest.fixture
def plan(planned: Callable[[str], Blueprint]) -> Blueprint:
    return planned(TRAIN)


# proves FED-1 (the federation's training cannot change under boxes that have begun with it, but in what is a box's own)
def test_what_an_edited_training_changes_for_all(planned: Callable[[str], Blueprint], plan: Blueprint) -> None:
    own = planned(TRAIN.replace("lora_alpha: 8", "lora_alpha: 8, lora_dropout: 0.2") + "gates: [gate.yaml]\n")
    assert changed(plan, own) == "" and own.run["gates"] != plan.run["gates"]
    rescaled = planned(TRAIN.replace("lora_alpha: 8", "lora_alpha: 16").replace("none", "nf4"))
    assert changed(plan, rescaled) == "quantization nf4 instead of none; lora_alpha / r 4.0 instead of 2.0"
    wider = msgspec.structs.replace(plan, layout=of_rank(plan.layout, 8))
    assert changed(plan, wider) == "rank 8 instead of 4, or other layers"


# proves FED-1 (serve reads the training anew when it is started: gates that were added count, another scale is refused)
@pytest.mark.slow
def test_serve_reads_the_training_anew(tmp_path: Path) -> None:
    train, kept = tmp_path / "train.yaml", tmp_path / "blueprint.json"
    train.write_text(TRAIN)
    first = standing_blueprint(kept, train, begun=False)
    train.write_text(TRAIN + "gates: [gate.yaml]\n")
    second = standing_blueprint(kept, train, begun=True)
    assert (second.common, second.run["gates"]) == (first.common, [str(tmp_path / "gate.yaml")])
    written = kept.read_bytes()
    train.write_text(TRAIN.replace("lora_alpha: 8", "lora_alpha: 16"))
    with pytest.raises(InputError, match=r"changed after the rounds had begun: lora_alpha / r 4\.0 instead of 2\.0"):
        standing_blueprint(kept, train, begun=True)
    assert kept.read_bytes() == written


# proves FED-1 (the adapter of both modes loads as any other, and goes where any other goes)
@pytest.mark.parametrize("rank", [0, 3])
def test_the_final_adapter_is_like_any_other(tmp_path: Path, tiny: Tiny, plan: Blueprint, rank: int) -> None:
    layout, frozen_layout = plan.layout, of_rank(plan.layout, rank)
    draw = np.random.default_rng(rank)
    adapter, frozen = (draw.normal(0, 0.1, each.size).astype(np.float32) for each in (layout, frozen_layout))
    record = Record(0, 1.0, {"node1": 70, "node2": 30}, {}, {}, (), 0.0, 0.0, None, tokens=180, steps=12, rows=9)
    mode = "exact" if rank else "product"
    state = State("lan", layout, 1, records=(record,), mode=mode)
    root = tmp_path / "lan"
    root.mkdir()
    final = write_final(root, plan, state, joined(adapter, frozen))
    assert verify_checkpoint(final) == []
    written = final.stat().st_ino
    assert write_final(root, plan, state, joined(adapter, frozen)).stat().st_ino == written, "a verdict on it stands"
    assert json.loads((final / "adapter_config.json").read_text())["r"] == 4 + rank

    base = locate("random:1x64", None)
    model = AutoModelForCausalLM.from_pretrained(str(base.path), dtype=torch.float32)
    opened = open_adapter(model, final, make_renderer(tiny.sections(), base, load_tokenizer(base)))
    wanted = {
        layer.name: plan.scale * (one.b @ one.a + other.b @ other.a)
        for layer, one, other in zip(
            layout.layers, unpack(layout, adapter), unpack(frozen_layout, frozen), strict=True
        )
    }
    found = {
        name: module.get_delta_weight("default").detach().numpy()
        for name, module in opened.named_modules()
        if hasattr(module, "lora_A")
    }
    assert found.keys() == wanted.keys()
    for name, delta in found.items():
        assert np.linalg.norm(delta - wanted[name]) < 1e-5 * np.linalg.norm(wanted[name])
    assert isinstance(opened, PeftModel)

    assert read_adapter_template(final).template_hash == plan.template["template_hash"]
    run = trained(root)
    assert (run.base, run.checkpoint) == ("random:1x64", final.resolve())
    manifest = read_manifest(final)
    assert (manifest.step, manifest.tokens_seen, manifest.rows_seen) == (12, 180, 9)
    assert manifest.identity["federation"] == f"lan, 2 nodes, 1 rounds, {mode}"
    export(root, tmp_path / "out", without_gate=None)
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"adapter_model.safetensors", "template.json"}
