"""Nodes are told that all rounds are done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from supervisor.config import load_config, load_document, unaccepted
from trainer.federated.config import FederationSections
from trainer.federated.coordinator import Coordinator, Record, State, begin
from trainer.federated.deltas import Asked
from trainer.federated.packed import Flat, Layer, Layout
from trainer.federated.parting import TELL_AGAIN_SECONDS, part
from trainer.federated.wire import Answer, WireError

LAYOUT = Layout(2, (Layer("one", 12, 16),))
NODES = ("node1", "node2", "node3")


@dataclass
class Line:
    """``back``: when a node is there again; never for those that it does not name. ``deaf``: says nothing the first
    time. ``cut``: nothing goes through until then."""

    back: dict[str, float]
    deaf: frozenset[str] = frozenset()
    cut: float = 0.0
    now: float = 0.0
    told: list[tuple[str, int, float]] = field(default_factory=list)
    due: list[Answer] = field(default_factory=list)

    def online(self) -> Sequence[str]:
        if self.now < self.cut:
            raise WireError("the line is cut")
        return [node for node, when in self.back.items() if when <= self.now]

    def ask(self, node: str, asked: Asked, broadcast: Flat, seconds_valid: float) -> str:
        raise AssertionError("all rounds are done")

    def dismiss(self, node: str, rounds: int, seconds_valid: float) -> str:
        first = node not in [each for each, _, _ in self.told]
        self.told.append((node, rounds, self.now))
        if not (first and node in self.deaf):
            self.due.append(Answer(f"bye {len(self.told)}"))
        return f"bye {len(self.told)}"

    def collect(self, handles: Sequence[str]) -> Sequence[Answer]:
        found, self.due = self.due, []
        return found

    def bytes_moved(self) -> int | None:
        return None


def tell(folder: Path, line: Line) -> tuple[State, list[str]]:
    sections = FederationSections.model_validate(
        {
            "name": "lan", "host": "127.0.0.1", "nodes": list(NODES), "train": "t.yaml",
            "rounds": {"count": 1, "train_seconds": 10, "deadline_seconds": 300},
        }
    )  # fmt: skip
    said: list[str] = []

    def sleep(seconds: float) -> None:
        line.now += max(seconds, 0.01)

    public = {node: Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key() for node in NODES}
    coordinator = Coordinator(
        folder, sections, 2.0, public, line, said.append, clock=lambda: line.now, sleep=sleep
    )
    done = Record(0, 9.0, {"node1": 100}, {}, {}, (), 0.0, 0.0, None)
    state = msgspec.structs.replace(begin(folder, "lan", LAYOUT, seed=1), round=1, records=(done,))
    return part(coordinator, coordinator.run(state)), said


# proves FED-1 (those that are there learn at once that it is over, one that was away when it is back)
def test_nodes_are_told_that_it_is_over(tmp_path: Path) -> None:
    line = Line({"node1": 0.0, "node2": 0.0, "node3": 120.0}, cut=5.0)
    state, said = tell(tmp_path, line)
    assert state.ended and set(state.told) == set(NODES)
    assert [node for node, _, _ in line.told] == list(NODES)
    assert all(rounds == 1 for _, rounds, _ in line.told)
    assert line.told[1][2] < 10 and 120 <= line.told[2][2] < 125
    assert any("the line is cut" in each for each in said)
    assert begin(tmp_path, "lan", LAYOUT, seed=1) == state


# proves FED-1 (a node that is gone for good holds nobody up, and is named)
def test_a_node_that_stays_away_is_waited_for_until_a_deadline(tmp_path: Path) -> None:
    line = Line({"node1": 0.0, "node2": 0.0})
    state, said = tell(tmp_path, line)
    assert state.ended and state.told == ("node1", "node2")
    assert line.now == pytest.approx(300, abs=1)
    assert said[-1] == "not told that it is over: node3"


def test_a_node_that_says_nothing_is_told_again(tmp_path: Path) -> None:
    line = Line(dict.fromkeys(NODES, 0.0), deaf=frozenset({"node2"}))
    state, _ = tell(tmp_path, line)
    assert set(state.told) == set(NODES)
    again = [when for node, _, when in line.told if node == "node2"]
    assert len(again) == 2 and again[1] - again[0] == pytest.approx(TELL_AGAIN_SECONDS, abs=2)


# proves FED-1 (runs that were begun before there were federations go on)
def test_a_run_of_a_version_without_federations_goes_on(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "t.yaml").write_text("model: {base: 'random:1x64'}\ndata: {sources: [{path: rows.jsonl}]}\n")
    now = load_config(tmp_path / "t.yaml", preflight=False)
    assert "federated" in now.document
    before = {key: value for key, value in now.document.items() if key != "federated"}
    assert unaccepted(load_document(before, now.kind).document, now.document, ()) == []
    joined = load_document({**before, "federated": {"mailbox": "/box"}}, now.kind).document
    assert [patch.key for patch in unaccepted(now.document, joined, ())] == ["federated.mailbox"]
