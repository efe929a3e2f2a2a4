"""A whole federation on this machine: SuperLink, front, three SuperNodes, three supervised trainers."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest
from real_federation import TRAIN, need_flower  # type: ignore[import-not-found]
from safetensors.numpy import load_file

from supervisor.config import load_config
from supervisor.problems import ConfigError, InputError
from trainer.federated import flower
from trainer.federated import simulate as simulation
from trainer.federated.coordinator import State
from trainer.federated.packed import layout_of
from trainer.federated.simulate import lay_out, simulate, start, threads_of_each

FEDERATION = """
name: lan
host: "127.0.0.1"
nodes: [node1]
train: train.yaml
rounds: {count: 2, train_seconds: 5, deadline_seconds: 600, warmup_steps: 2}
"""
RELATIVE = """
gates: [gate.yaml]
launch: {python: bin/python}
notify: {urls_file: urls}
device: cpu
model: {base: base, quantization: none, chat_template: chat.jinja, fallback: {base: ./base}}
data: {sources: [{path: rows.jsonl}], validation: {path: held-out.jsonl}, system_prompt_file: system.txt}
train: {lr_scheduler_type: constant, warmup_ratio: 0}
"""


def write(folder: Path, text: str) -> Path:
    """A federation whose training has all that it names beside it; the federation's file."""
    training = folder / "training"
    for name in ("rows.jsonl", "held-out.jsonl"):
        (training / "base").mkdir(parents=True, exist_ok=True)
        (training / name).write_text('{"prompt": "One?", "completion": "Two."}\n')
    for name in ("chat.jinja", "system.txt", "gate.yaml", "urls", "base/config.json"):
        (training / name).write_text("{}")
    (training / "bin").mkdir()
    (training / "bin/python").symlink_to(sys.executable)
    (training / "train.yaml").write_text(text)
    file = folder / "fed.yaml"
    file.write_text(FEDERATION.replace("train.yaml", "training/train.yaml"))
    return file


# proves FED-1 (simulate: what the training names by relative paths is found from each node's folder as well)
def test_relative_paths_are_those_of_the_training(tmp_path: Path) -> None:
    laid = lay_out(write(tmp_path, RELATIVE), 2, tmp_path / "trial")
    given = load_config(tmp_path / "training/train.yaml", preflight=False).document
    for number, node in enumerate(laid.nodes):
        found = load_config(node / "train.yaml", preflight=False).document
        assert found == {**given, "train": {**given["train"], "seed": 1000 + number}, "gates": []}


# proves FED-1 (a rate that the planned steps raise or lower has no place in rounds, and that is said before anything
# is started)
@pytest.mark.parametrize("schedule", ["", "lr_scheduler_type: constant", "warmup_ratio: 0"])
def test_a_schedule_of_its_own_is_refused(tmp_path: Path, schedule: str) -> None:
    file = write(tmp_path, RELATIVE.replace("lr_scheduler_type: constant, warmup_ratio: 0", schedule))
    with pytest.raises(ConfigError, match=r"train\.yaml.*Say lr_scheduler_type: constant and warmup_ratio: 0"):
        lay_out(file, 2, tmp_path / "trial")
    assert not (tmp_path / "trial").exists()
    training = tmp_path / "training/train.yaml"
    with pytest.raises(ConfigError, match="Say lr_scheduler_type: constant"):  # a node's join starts it so
        load_config(training, ["federated.mailbox=box"])
    with pytest.raises(ConfigError) as alone:
        load_config(training)
    assert "lr_scheduler_type" not in str(alone.value)


# proves FED-1 (simulate: a training that cannot be used is refused with its line)
def test_a_training_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, RELATIVE.replace("train: {", "train: {learning_rat: 1e-4, "))
    with pytest.raises(ConfigError, match=r"train\.yaml:8: train\.learning_rat.*learning_rate"):
        lay_out(file, 2, tmp_path / "trial")


# proves FED-1 (simulate: three real nodes over TLS, with keys, to the end; the adapter is PEFT's)
@pytest.mark.slow
@pytest.mark.flower
def test_three_real_nodes_train_one_adapter(tmp_path: Path) -> None:
    need_flower()
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


# proves FED-1 (without Flower nothing is begun)
def test_without_flower_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.yaml").write_text(TRAIN)
    (tmp_path / "fed.yaml").write_text(FEDERATION)
    monkeypatch.setenv("MENS_FLOWER_VENV", str(tmp_path / "nowhere"))
    said: list[str] = []
    with pytest.raises(InputError, match=r"nowhere/bin/flower-superlink does not exist: .* needs Flower"):
        simulate(tmp_path / "fed.yaml", 2, tmp_path / "out", said.append)
    assert said == [] and not (tmp_path / "out").exists()


# proves FED-1 (trainers on one machine do not stall each other)
def test_nodes_on_one_machine_share_its_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    assert (threads_of_each(1), threads_of_each(cores), threads_of_each(2 * cores)) == (cores, 1, 1)
    (tmp_path / "train.yaml").write_text(TRAIN)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "fed.yaml").write_text(FEDERATION)
    monkeypatch.setattr(flower, "programs", lambda: tmp_path)
    given = []

    def show(command: list[str], log: Path, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
        given.append(more)
        shown = "import os; print(os.environ['OMP_NUM_THREADS'])"
        return start([sys.executable, "-S", "-c", shown], tmp_path / "log", more)

    monkeypatch.setattr(simulation, "start", show)
    monkeypatch.setattr(simulation, "PARTING_SECONDS", 5.0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert simulate(tmp_path / "fed.yaml", 2, tmp_path / "out", lambda _: None) == 0
    assert given == [{"OMP_NUM_THREADS": str(threads_of_each(2))}] * 3
    assert (tmp_path / "log").read_text() == f"{threads_of_each(2)}\n" * 3
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # what the user has said stays
    assert show([], tmp_path / "log", given[0]).wait() == 0
    assert (tmp_path / "log").read_text().endswith("3\n")
