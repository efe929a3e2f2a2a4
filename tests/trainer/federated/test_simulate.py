"""A whole federation on this machine: SuperLink, front, three SuperNodes, three supervised trainers."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from trainer.federated.coordinator import State
from trainer.federated.packed import layout_of

TRAIN = """
kind: sft
device: cpu
model: {base: "random:2x64", quantization: none, lora: {r: 4}}
data: {sources: [{path: rows.jsonl}], validation: {fraction: 0.2, max_rows: 8}}
train: {max_steps: 100000, lr_scheduler_type: constant, learning_rate: 0.002, per_device_train_batch_size: 2,
        gradient_accumulation_steps: 1, max_length: 64}
eval: {min_delta: 5.0, eval_steps: 100000, eval_on_start: false}
limits: {max_hours: 2000}
checkpoint: {save_steps: 500}
"""
FEDERATION = """
name: lan
host: "127.0.0.1"
nodes: [node1]
train: train.yaml
rounds: {count: 2, train_seconds: 5, deadline_seconds: 600, warmup_steps: 2}
"""


# proves FED-1 (simulate: three real nodes over TLS, with keys, to the end; the adapter is PEFT's)
@pytest.mark.slow
@pytest.mark.flower
def test_three_real_nodes_train_one_adapter(tmp_path: Path) -> None:
    rows = [{"prompt": f"What is {i} plus 3?", "completion": f"{i} plus 3 makes {i + 3}, the sum."} for i in range(60)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "train.yaml").write_text(TRAIN)
    (tmp_path / "fed.yaml").write_text(FEDERATION)
    program = Path(sys.executable).parent / "mens-sup"
    done = subprocess.run(
        [program, "federate", "simulate", tmp_path / "fed.yaml", "--nodes", "3", "--out", tmp_path / "trial"],
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    state = msgspec.json.decode((tmp_path / "trial/coordinator/standing/state.json").read_bytes(), type=State)
    assert [record.round for record in state.records] == [0, 1]
    assert all(set(record.counted) == {"node1", "node2", "node3"} for record in state.records)
    first, second = (record.bytes_moved or 0 for record in state.records)
    assert second - first >= 3 * 4 * state.layout.size  # Flower's own counter; it adds what came back a little later
    assert set(state.told) == {"node1", "node2", "node3"}
    for node in state.told:
        assert "the federation is over" in (tmp_path / f"trial/{node}.log").read_text()
        outcome = json.loads((tmp_path / f"trial/{node}/run/state.json").read_text())["outcome"]
        assert outcome == "completed"
    tensors = load_file(tmp_path / "trial/final/adapter_model.safetensors")
    assert layout_of(tensors) == state.layout
    assert any(np.abs(tensor).max() > 0 for name, tensor in tensors.items() if ".lora_B." in name)
    assert json.loads((tmp_path / "trial/final/adapter_config.json").read_text())["r"] == 4
