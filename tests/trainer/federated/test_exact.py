"""aggregation.mode: exact, through everything that is wired: coordinator, mailbox, a node's trainer, final/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file
from tiny_runs import NotTrained, Tiny, run

from rft.samplers.renderer import read_adapter_template
from rft.samplers.sampler import SamplerUnusableError
from supervisor.protocol.attempt import ExitKind
from supervisor.protocol.manifest import verify_checkpoint
from trainer.adapter import open_adapter
from trainer.base_model import load_tokenizer, locate
from trainer.errors import CheckpointIncompatibleError
from trainer.federated.common import NAMES, Common
from trainer.federated.config import AggregationSection, FederationSections
from trainer.federated.coordinator import Coordinator, State, begin, read_adapter
from trainer.federated.deltas import Asked, Claim, sign
from trainer.federated.mailbox import Done, Mailbox, Task
from trainer.federated.packed import Flat, Layer, Layout, digest, layout_of, named, of_rank, padded, parted, unpack
from trainer.federated.training import FederatedRounds
from trainer.federated.wire import Answer
from trainer.frozen_adapter import frozen_parameters
from trainer.head_loss import IGNORED
from trainer.model import add_adapter, load_base, trainable_parameters
from trainer.residual_file import RESIDUAL_FILE
from trainer.run import make_renderer

KEYS = {f"node{number}": Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)) for number in (1, 2, 3)}
SCALE = 2.0
"""lora_alpha / r of the tiny trainings."""
ROOM = 40
BOX: dict[str, Any] = {
    "model.lora.lora_dropout": 0.1, "train.max_steps": 40,
    "train.per_device_train_batch_size": 1, "train.gradient_accumulation_steps": 1,
    "train.lr_scheduler_type": "constant", "train.warmup_ratio": 0.0, "eval.eval_steps": 1000,
}  # fmt: skip


@dataclass
class Nodes:
    """Nodes that answer at once, each with weights moved in its own way; they remember what they began from."""

    handed_in: dict[tuple[int, str], Flat] = field(default_factory=dict)
    due: list[Answer] = field(default_factory=list)
    dismissed: list[str] = field(default_factory=list)

    def online(self) -> Sequence[str]:
        return list(KEYS)

    def ask(self, node: str, asked: Asked, broadcast: Flat, seconds_valid: float) -> str:
        trained, _, _ = parted(asked.layout, broadcast)
        draw = np.random.default_rng([asked.round, int(node[-1])])
        flat = (trained + draw.normal(0, 0.1, trained.size)).astype(np.float32)
        claim = Claim(
            asked.federation, node, asked.round, digest(broadcast), asked.layout.digest, digest(flat),
            100 * int(node[-1]), 150 * int(node[-1]), 5, 1.0, 2,
        )  # fmt: skip
        self.handed_in[asked.round, node] = flat
        self.due.append(
            Answer(f"{node} {asked.round}", msgspec.json.encode(claim), sign(claim, KEYS[node]), flat)
        )
        return f"{node} {asked.round}"

    def collect(self, handles: Sequence[str]) -> Sequence[Answer]:
        found, self.due = self.due, []
        return found

    def dismiss(self, node: str, rounds: int, seconds_valid: float) -> str:
        self.dismissed.append(node)
        self.due.append(Answer(f"bye {node}"))
        return f"bye {node}"

    def bytes_moved(self) -> int | None:
        return None


def federate(folder: Path, layout: Layout, count: int, cap: int = 64) -> tuple[State, Nodes]:
    sections = FederationSections.model_validate(
        {
            "name": "lan", "host": "127.0.0.1", "nodes": list(KEYS), "train": "t.yaml",
            "rounds": {"count": count, "train_seconds": 1, "deadline_seconds": 60},
            "aggregation": {"mode": "exact", "residual_rank": cap},
        }
    )  # fmt: skip
    nodes = Nodes()
    public = {name: key.public_key() for name, key in KEYS.items()}
    coordinator = Coordinator(folder, sections, SCALE, public, nodes, lambda _: None, sleep=lambda _: None)
    return coordinator.run(begin(folder, "lan", layout, seed=1, aggregation=sections.aggregation)), nodes


def products(layout: Layout, flat: Flat) -> list[np.ndarray]:  # type: ignore[type-arg]
    return [factors.b.astype(np.float64) @ factors.a.astype(np.float64) for factors in unpack(layout, flat)]


def ideal(layout: Layout, nodes: Nodes, count: int) -> list[np.ndarray]:  # type: ignore[type-arg]
    """Token-weighted means of the products, by layers, beside what the rounds before have left in the weights."""
    frozen = [np.zeros((layer.rows, layer.columns)) for layer in layout.layers]
    shares = {"node1": 1 / 6, "node2": 2 / 6, "node3": 3 / 6}
    for number in range(count):
        sums = [np.zeros_like(each) for each in frozen]
        mean = np.zeros(layout.size)
        for node, share in shares.items():
            flat = nodes.handed_in[number, node]
            mean += share * flat
            for total, product in zip(sums, products(layout, flat), strict=True):
                total += share * product
        whole = [before + total for before, total in zip(frozen, sums, strict=True)]
        means = [f.b @ f.a for f in unpack(layout, mean)]  # type: ignore[arg-type]
        frozen = [each - product for each, product in zip(whole, means, strict=True)]
    return whole


def error(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    return max(float(np.linalg.norm(f - w) / np.linalg.norm(w)) for f, w in zip(found, wanted, strict=True))


def added(model: PeftModel) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """By layer, what the active adapters add to its weight, found by what the layer itself computes."""
    found = {}
    for name, module in model.named_modules():
        if hasattr(module, "lora_A"):
            eye = torch.eye(module.in_features)
            with torch.no_grad():
                found[name] = (module(eye) - module.base_layer(eye)).T.double().numpy()
    return dict(sorted(found.items()))


def ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """The federation is over as soon as a delta has been handed in."""
    put_done = Mailbox.put_done

    def put(self: Mailbox, done: Done, adapter: Flat) -> None:
        put_done(self, done, adapter)
        self.put_end(Task("lan", done.round + 1, "", Layout(0, ()), 0, 0, over=True))

    monkeypatch.setattr(Mailbox, "put_done", put)


def layout_of_tiny(tiny: Tiny) -> Layout:
    """Of the adapter that the tiny trainings have."""
    model = add_adapter(
        load_base(locate("random:1x64", None), tiny.sections().model, torch.device("cpu"), pytest.fail),
        tiny.sections().model.lora, 0,
    )  # fmt: skip
    return layout_of({name: each.numpy() for name, each in get_peft_model_state_dict(model).items()})


def common_of_tiny(tiny: Tiny) -> Common:
    base = locate("random:1x64", None)
    renderer = make_renderer(tiny.sections(), base, load_tokenizer(base))
    return Common(base.revision, "none", SCALE, renderer.template_hash)


@dataclass(frozen=True)
class Rounds:
    """Three rounds of the coordinator: their layout, what comes of them and what it should be."""

    layout: Layout
    state: State
    broadcast: Flat
    ideal: list[Any]
    common: Common

    def task(self, **common: Any) -> Task:
        """The fourth, for boxes that have in common what ``common`` changes."""
        rank = parted(self.layout, self.broadcast)[1].rank
        return Task(
            "lan", 3, digest(self.broadcast), self.layout, 0, 0, frozen_rank=rank, frozen_room=ROOM,
            common=msgspec.structs.replace(self.common, **common),
        )  # fmt: skip


@pytest.fixture(scope="module")
def rounds(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Rounds:
    layout, folder = layout_of_tiny(tiny), tmp_path_factory.mktemp("standing")
    state, nodes = federate(folder, layout, 3, ROOM)
    return Rounds(layout, state, read_adapter(folder, 3), ideal(layout, nodes, 3), common_of_tiny(tiny))


# proves FED-1 (exact mode is the ideal mean of the products, to 1e-5, in the weights that a node computes with)
def test_a_nodes_weights_are_the_ideal(tiny: Tiny, rounds: Rounds, tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path / "box")
    mailbox.put_task(rounds.task(quantization="nf4"), rounds.broadcast)
    built = tiny.run("exact-node", {**BOX, "model.quantization": "nf4"}, trainer_class=NotTrained).built
    FederatedRounds(built, mailbox).on_step_begin(built.args, built.state, built.control)
    wanted = [SCALE * each for each in rounds.ideal]
    found = added(built.model.eval())
    assert list(found) == [layer.name for layer in rounds.layout.layers]
    assert error(list(found.values()), wanted) < 1e-5
    plain = [SCALE * each for each in products(rounds.layout, rounds.broadcast)]
    assert error(plain, wanted) > 0.1, "factor averaging would have done as well, so nothing was shown"
    assert {id(p) for group in built.optimizer.param_groups for p in group["params"]} == {
        id(p) for p in trainable_parameters(built.model).values()
    }


# proves FED-1 (what had no room is said)
def test_a_capped_residual_says_what_it_lost(tmp_path: Path) -> None:
    layout = Layout(2, (Layer("one", 12, 16), Layer("two", 9, 20)))
    state, _ = federate(tmp_path, layout, 2, cap=3)
    assert all(0.001 < record.lost_share < 1 for record in state.records)
    assert parted(layout, read_adapter(tmp_path, 2))[1].rank == 3
    with pytest.raises(ValueError, match=r"begun with aggregation\.mode exact"):
        begin(tmp_path, "lan", layout, seed=1)
    # The nodes hold their frozen adapters at that rank, and would end.
    with pytest.raises(ValueError, match=r"begun with aggregation\.residual_rank 3, and its file says 4"):
        begin(tmp_path, "lan", layout, seed=1, aggregation=AggregationSection(mode="exact", residual_rank=4))


# proves FED-1 (the frozen adapter is never trained, is in checkpoints and snapshots, and comes back by a resume alone)
def test_the_frozen_adapter_stays_as_it_was(
    tiny: Tiny, rounds: Rounds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox = Mailbox(tmp_path / "box")
    mailbox.put_task(rounds.task(), rounds.broadcast)
    ending(monkeypatch)
    (tmp_path / "shm").mkdir()
    changes = {**BOX, "federated.mailbox": str(mailbox.folder)}
    first = tiny.run("exact-trained", changes, snapshots=tmp_path / "shm")
    assert first.report is not None and first.report.kind is ExitKind.COMPLETED
    assert "over after 4 rounds" in first.report.stopped_early
    handed_in = mailbox.done(3, digest(rounds.broadcast))
    assert handed_in is not None and handed_in[0].rows > 0
    done, accumulated = handed_in[0], first.built.args.gradient_accumulation_steps
    batches = list(islice(first.built.get_train_dataloader(), done.steps * accumulated))
    labels = sum(int((batch["labels"] != IGNORED).sum()) for batch in batches)
    assert (done.label_tokens, done.tokens) == (labels, sum(batch["tokens"] for batch in batches))
    assert labels < done.tokens
    trained, frozen_layout, frozen = parted(rounds.layout, rounds.broadcast)
    assert not np.array_equal(handed_in[1], trained)
    wanted = named(of_rank(rounds.layout, ROOM), padded(frozen_layout, frozen, ROOM))
    checkpoint = first.paths.checkpoint(first.report.step)
    assert verify_checkpoint(checkpoint) == []
    slots = list((tmp_path / "shm").glob(f"*/{RESIDUAL_FILE}"))
    for file in (checkpoint / RESIDUAL_FILE, *slots):
        assert same(load_file(str(file)), wanted)
    assert slots
    # The step after the last round changed nothing.
    assert same(load_file(str(checkpoint / "adapter_model.safetensors")), named(rounds.layout, handed_in[1]))

    again = run(tmp_path / "again", tiny.sections(changes), resume_from=checkpoint, number=2)
    assert again.report is not None and again.report.kind is ExitKind.COMPLETED
    held = frozen_parameters(again.built.model)
    assert not any(parameter.requires_grad for parameter in held.values())
    assert same({name: each.detach() for name, each in held.items()}, wanted)
    assert again.built.model.active_adapters == ["default", "residual"]

    with pytest.raises(CheckpointIncompatibleError, match="only a part of what was trained"):
        open_adapter(again.built.model, checkpoint, None)  # type: ignore[arg-type]
    with pytest.raises(SamplerUnusableError, match="only a part"):
        read_adapter_template(checkpoint)


def same(found: Mapping[str, torch.Tensor], wanted: Mapping[str, Any]) -> bool:
    return found.keys() == wanted.keys() and all(np.array_equal(found[n].numpy(), wanted[n]) for n in wanted)


# proves FED-1 (nodes that train against another base, at another scale or for other prompts take no part)
def test_what_all_boxes_must_have_in_common(tiny: Tiny, rounds: Rounds, tmp_path: Path) -> None:
    mailbox, built = Mailbox(tmp_path), tiny.run("in-common", BOX, trainer_class=NotTrained).built
    callback = FederatedRounds(built, mailbox)
    for name, other in {"base": "0" * 40, "quantization": "nf4", "scale": 1.5, "template": "0" * 64}.items():
        mailbox.put_task(rounds.task(**{name: other}), rounds.broadcast)
        wrong = rf"is \({NAMES[name]} {getattr(rounds.common, name)} instead of {other}\)"
        with pytest.raises(CheckpointIncompatibleError, match=wrong):
            callback.on_step_begin(built.args, built.state, built.control)
        assert not any(layer.any() for layer in added(built.model).values())
