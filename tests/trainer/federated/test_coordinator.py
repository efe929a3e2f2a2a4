"""The coordinator's loop with nodes that are scripted, on a clock of its own."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from trainer.federated.config import FederationSections
from trainer.federated.coordinator import Coordinator, FruitlessError, State, begin, read_adapter
from trainer.federated.deltas import CONTEXT, Asked, Claim, sign
from trainer.federated.packed import Flat, Layer, Layout, digest, unpack
from trainer.federated.submissions import Submissions
from trainer.federated.wire import Answer, WireError

LAYOUT = Layout(2, (Layer("one", 12, 16), Layer("two", 9, 20)))
KEYS = {f"node{number}": Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)) for number in (1, 2, 3)}


class KilledError(Exception):
    pass


@dataclass
class ToyWire:
    """Nodes that take ``takes`` seconds (for ever: None) and move the weights a little; ``spoil`` changes an answer.

    ``absent``: from when until when they are not there."""

    takes: dict[str, float | None]
    spoil: Callable[[Answer], Answer] = lambda answer: answer
    now: float = 0.0
    asked: list[tuple[str, int, float]] = field(default_factory=list)
    due: dict[str, tuple[float, Answer]] = field(default_factory=dict)
    absent: dict[str, tuple[float, float]] = field(default_factory=dict)
    fails_at: frozenset[int] = frozenset()
    calls: int = 0

    def online(self) -> Sequence[str]:
        self.calls += 1
        if self.calls in self.fails_at:
            raise WireError("the line is cut")
        return [n for n in self.takes if not self.absent.get(n, (1, 0))[0] <= self.now < self.absent.get(n, (1, 0))[1]]

    def ask(self, node: str, asked: Asked, broadcast: Flat, seconds_valid: float) -> str:
        handle = f"{node}-{asked.round}-{len(self.asked)}"
        self.asked.append((node, asked.round, self.now))
        takes = self.takes[node]
        if takes is not None:
            move = np.random.default_rng([asked.round, int(node[-1])]).normal(0, 0.1, LAYOUT.size).astype(np.float32)
            adapter = broadcast + move
            claim = Claim(
                asked.federation, node, asked.round, asked.began_from, asked.layout.digest, digest(adapter),
                100 * int(node[-1]), 150 * int(node[-1]), 5, takes, 2,
            )  # fmt: skip
            answer = Answer(handle, msgspec.json.encode(claim), sign(claim, KEYS[node]), adapter)
            self.due[handle] = (self.now + takes, self.spoil(answer))
        return handle

    def collect(self, handles: Sequence[str]) -> Sequence[Answer]:
        come = [handle for handle in handles if handle in self.due and self.due[handle][0] <= self.now]
        return [self.due.pop(handle)[1] for handle in come]

    def dismiss(self, node: str, rounds: int, seconds_valid: float) -> str:
        raise AssertionError("rounds are left")

    def bytes_moved(self) -> int | None:
        return None


def _run(
    folder: Path, wire: ToyWire, count: int = 3, stop_at: float = 1e9, **aggregation: object
) -> tuple[State, list[str]]:
    sections = FederationSections.model_validate(
        {
            "name": "lan", "host": "127.0.0.1", "nodes": list(KEYS), "train": "t.yaml",
            "rounds": {
                "count": count, "train_seconds": 10, "deadline_seconds": 60, "late_rounds": 2,
                "late_factor": 0.5,
            },
            "aggregation": aggregation,
        }
    )  # fmt: skip
    said: list[str] = []

    def sleep(seconds: float) -> None:
        wire.now += max(seconds, 0.01)
        if wire.now >= stop_at:
            raise KilledError

    coordinator = Coordinator(
        folder, sections, 2.0, {name: key.public_key() for name, key in KEYS.items()}, wire, said.append,
        clock=lambda: wire.now, sleep=sleep,
    )  # fmt: skip
    return coordinator.run(begin(folder, "lan", LAYOUT, seed=1)), said


def _products(flat: Flat) -> list[np.ndarray]:  # type: ignore[type-arg]
    return [factors.b.astype(np.float64) @ factors.a.astype(np.float64) for factors in unpack(LAYOUT, flat)]


# proves FED-1 (rounds come to an end, all that is trained counts)
def test_three_nodes_that_are_in_time(tmp_path: Path) -> None:
    state, said = _run(tmp_path, ToyWire(dict.fromkeys(KEYS, 10.0)))
    assert [dict(record.counted) for record in state.records] == [{"node1": 100, "node2": 200, "node3": 300}] * 3
    assert state.label_tokens == 1800
    assert all(record.seconds < 12 and not record.missing and not record.refused for record in state.records)
    assert all(record.averaging_error > 0 for record in state.records)
    assert any(np.abs(product).max() > 0 for product in _products(read_adapter(tmp_path, 3)))
    assert "2 of 3 are done" in said[1]


# proves FED-1 (a dead peer costs its own share, and no round is longer than the deadline)
def test_a_dead_node_costs_the_others_nothing_but_its_share(tmp_path: Path) -> None:
    wire = ToyWire({"node1": 10.0, "node2": 10.0, "node3": None})
    state, _ = _run(tmp_path, wire, count=16)
    assert all(set(record.counted) == {"node1", "node2"} for record in state.records)
    assert all(record.seconds <= 60 for record in state.records)
    # Asked once, it holds up no round but the first; when an answer would be too old it is asked again.
    assert [record.missing for record in state.records][:3] == [("node3",), (), ()]
    assert [record.seconds > 59 for record in state.records][:3] == [True, False, False]
    again = [when for node, _, when in wire.asked if node == "node3"]
    assert len(again) == 2 and again[1] - again[0] == pytest.approx(180, abs=12)


# proves FED-1 (a slow node's deltas are late, weigh less, and count once each)
def test_a_slow_node_contributes_late(tmp_path: Path) -> None:
    wire = ToyWire({"node1": 10.0, "node2": 10.0, "node3": 75.0})
    state, _ = _run(tmp_path, wire, count=6)
    late = [record for record in state.records if "node3" in record.counted]
    assert late and all(record.late["node3"] in (1, 2) for record in late)
    handed_in = [round_ for node, round_ in state.counted if node == "node3"]
    deltas = [record.round - record.late["node3"] for record in late]
    assert sorted(deltas) == sorted(set(deltas)) == sorted(handed_in)
    assert sum(record.counted["node3"] for record in late) == 300 * len(deltas)


# proves FED-1 (nobody there: who is missing is said at every deadline, no round is used up, who returns takes part)
def test_nodes_that_are_away_and_return(tmp_path: Path) -> None:
    absent = {"node1": (0.0, 130.0), "node2": (15.0, 130.0), "node3": (0.0, 1e9)}
    wire = ToyWire({"node1": 10.0, "node2": None, "node3": 10.0}, absent=absent)
    state, said = _run(tmp_path, wire, count=2)
    waiting = [sentence for sentence in said if "no delta yet" in sentence]
    assert [sentence.partition(":")[0] for sentence in waiting] == [
        f"round 0 has no delta yet, {number} x its deadline has passed" for number in (1, 2)
    ]
    assert "node1 is not connected; node2 was asked and has not answered; node3 is not connected" in waiting[0]
    assert [set(record.counted) for record in state.records] == [{"node1"}] * 2
    assert state.done == state.round == 2 and (state.waited, state.waiting) == (0, {})
    assert begin(tmp_path, "lan", LAYOUT, seed=1) == state


# proves FED-1 (rounds of which nothing counts are not rounds of rounds.count: no federation ends untrained)
def test_rounds_without_a_counted_delta_do_not_count(tmp_path: Path) -> None:
    wire = ToyWire(dict.fromkeys(KEYS, 10.0))
    wire.spoil = lambda answer: replace(answer, signature=b"") if len(wire.asked) <= 6 else answer
    state, _ = _run(tmp_path, wire, count=1)
    assert [len(record.counted) for record in state.records] == [0, 0, 3]
    assert (state.done, state.round) == (1, 3)
    assert all(np.abs(product).max() == 0 for product in _products(read_adapter(tmp_path, 2)))


# proves FED-1 (the outer learning rate of the federation's file is what its rounds go by)
def test_rounds_go_by_the_outer_learning_rate(tmp_path: Path) -> None:
    for name, rate in (("one", 1.0), ("two", 2.0)):
        _run(tmp_path / name, ToyWire(dict.fromkeys(KEYS, 10.0)), count=1, outer_learning_rate=rate)
    once, twice = (_products(read_adapter(tmp_path / name, 1)) for name in ("one", "two"))
    for first, second in zip(once, twice, strict=True):  # both began with B zero
        assert np.linalg.norm(second - 2 * first) < 1e-5 * np.linalg.norm(second)


# proves FED-1 (nodes of which nothing will ever count do not keep a federation going for ever)
def test_nodes_of_which_nothing_ever_counts(tmp_path: Path) -> None:
    wire = ToyWire(dict.fromkeys(KEYS, 10.0), spoil=lambda answer: replace(answer, signature=b""))
    with pytest.raises(FruitlessError, match="nothing counted in 10 rounds, in the last one node1: its signature"):
        _run(tmp_path, wire, count=1)
    state = begin(tmp_path, "lan", LAYOUT, seed=1)
    submissions = Submissions()
    assert [submissions.why_not(state, "")] == [None]
    while (why := submissions.why_not(state, "nothing counted")) is None:
        with pytest.raises(FruitlessError):
            _run(tmp_path, wire, count=1)
        state = begin(tmp_path, "lan", LAYOUT, seed=1)
    assert "failed 3 times" in why and state.round == 12


# proves FED-1 (the coordinator killed in the middle of rounds: the round is begun anew, nothing counts twice)
@pytest.mark.parametrize("killed_at", [5.0, 15.0, 25.0])
def test_a_coordinator_that_is_killed_goes_on_with_its_round(tmp_path: Path, killed_at: float) -> None:
    with pytest.raises(KilledError):
        _run(tmp_path, ToyWire(dict.fromkeys(KEYS, 10.0)), stop_at=killed_at)
    state, _ = _run(tmp_path, ToyWire(dict.fromkeys(KEYS, 10.0)))
    assert [record.round for record in state.records] == [0, 1, 2]
    assert len(state.counted) == 9 and state.label_tokens == 1800
    whole, _ = _run(tmp_path / "whole", ToyWire(dict.fromkeys(KEYS, 10.0)))
    assert np.array_equal(read_adapter(tmp_path, 3), read_adapter(tmp_path / "whole", 3))
    assert whole.counted == state.counted


# proves FED-1 (a tampered delta is refused and said, the others count)
def test_a_tampered_delta_is_refused(tmp_path: Path) -> None:
    def spoil(answer: Answer) -> Answer:
        return replace(answer, adapter=answer.adapter * 2) if "node2" in answer.handle else answer

    state, said = _run(tmp_path, ToyWire(dict.fromkeys(KEYS, 10.0), spoil=spoil), count=1)
    assert set(state.records[0].counted) == {"node1", "node3"}
    assert "not those that were signed" in state.records[0].refused["node2"]
    assert any("node2" in sentence and "does not count" in sentence for sentence in said)


# proves FED-1 (a delta that is too late is refused, and its node goes on with the round that is under way)
def test_a_node_whose_delta_is_too_late_is_asked_at_once(tmp_path: Path) -> None:
    wire = ToyWire({"node1": 10.0, "node2": 10.0, "node3": 95.0})
    state, _ = _run(tmp_path, wire, count=8)
    too_late = [record for record in state.records if "rounds late" in record.refused.get("node3", "")]
    assert too_late
    asked = {round_: when for node, round_, when in wire.asked if node == "node3"}
    assert all(record.round in asked for record in too_late)


# proves FED-1 (a late delta and one in time, of one node in one round: both count)
def test_a_late_delta_and_one_in_time_count_both(tmp_path: Path) -> None:
    wire = ToyWire({"node1": 40.0, "node2": 40.0, "node3": 65.0})
    ask = wire.ask

    def once_slow(node: str, asked: Asked, broadcast: Flat, seconds_valid: float) -> str:
        handle = ask(node, asked, broadcast, seconds_valid)
        if node == "node3":
            wire.takes[node] = 10.0
        return handle

    wire.ask = once_slow  # type: ignore[method-assign]
    state, _ = _run(tmp_path, wire, count=2)
    assert state.records[1].counted == {"node1": 100, "node2": 200, "node3": 600}
    assert state.records[1].late == {"node3": 1}
    assert {round_ for node, round_ in state.counted if node == "node3"} == {0, 1}


# proves FED-1 (a line that is cut for a moment is tried again)
def test_a_line_that_is_cut_for_a_moment(tmp_path: Path) -> None:
    state, said = _run(tmp_path, ToyWire(dict.fromkeys(KEYS, 10.0), fails_at=frozenset({1, 2, 3})), count=1)
    assert set(state.records[0].counted) == set(KEYS)
    assert any("the line is cut" in sentence for sentence in said)


def test_a_folder_of_another_federation_is_refused(tmp_path: Path) -> None:
    begin(tmp_path, "lan", LAYOUT, seed=1)
    with pytest.raises(ValueError, match="belongs to lan"):
        begin(tmp_path, "wan", LAYOUT, seed=1)


# proves FED-1 (an answer that the line has lost is not a node's last word: it is asked again in the same round)
def test_a_lost_answer_is_asked_for_again(tmp_path: Path) -> None:
    def spoil(answer: Answer) -> Answer:
        return Answer(answer.handle, lost="Node Unavailable") if answer.handle == "node2-0-1" else answer

    wire = ToyWire({"node1": 10.0, "node2": 8.0, "node3": 10.0}, spoil=spoil)
    state, said = _run(tmp_path, wire, count=1)
    assert set(state.records[0].counted) == set(KEYS)
    assert not state.records[0].refused and not state.records[0].missing
    assert state.records[0].seconds == pytest.approx(16, abs=2)
    assert "the answer of node2 for round 0 was lost: Node Unavailable" in said


# proves FED-1 (a node that is gone, or whose answers are lost again and again, holds nobody up)
@pytest.mark.parametrize(("gone", "asked"), [(True, 1), (False, 3)])
def test_lost_answers_hold_nobody_up(tmp_path: Path, gone: bool, asked: int) -> None:
    def spoil(answer: Answer) -> Answer:
        return Answer(answer.handle, lost="Node Unavailable") if "node2" in answer.handle else answer

    absent = {"node2": (5.0, 1e9)} if gone else {}
    wire = ToyWire({"node1": 10.0, "node2": 8.0, "node3": 10.0}, spoil=spoil, absent=absent)
    state, _ = _run(tmp_path, wire, count=1)
    assert set(state.records[0].counted) == {"node1", "node3"} and state.records[0].missing == ("node2",)
    assert [node for node, _, _ in wire.asked].count("node2") == asked
    assert state.records[0].seconds == pytest.approx(10 if gone else 24, abs=3)


def _signed_anew(answer: Answer, factor: float) -> Answer:
    """As a node that has its key would hand in other weights."""
    adapter = np.full(LAYOUT.size, factor, np.float32)
    claim = msgspec.structs.replace(msgspec.json.decode(answer.claim, type=Claim), digest=digest(adapter))
    return replace(
        answer, claim=msgspec.json.encode(claim), signature=sign(claim, KEYS[claim.node]), adapter=adapter
    )


# proves FED-1 (one node cannot ruin the first round, in which nothing is usual yet)
@pytest.mark.parametrize("value", [3e38, 1e30, 90.0])
def test_a_huge_first_delta_does_not_count(tmp_path: Path, value: float) -> None:
    def spoil(answer: Answer) -> Answer:
        return _signed_anew(answer, value) if "node2" in answer.handle else answer

    state, _ = _run(tmp_path, ToyWire(dict.fromkeys(KEYS, 10.0), spoil=spoil), count=1)
    assert set(state.records[0].counted) == {"node1", "node3"}
    why = state.records[0].refused["node2"]
    assert ("no adapter's factors come to" if value > 100 else "moves the weights by") in why


# proves FED-1 (nothing is broadcast that is not finite, whatever was handed in)
def test_what_is_not_finite_is_not_broadcast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.federated.deltas.LARGEST_VALUE", float("inf"))
    wire = ToyWire(dict.fromkeys(KEYS, 10.0))
    wire.spoil = lambda answer: _signed_anew(answer, 3e38) if len(wire.asked) <= 3 else answer
    state, said = _run(tmp_path, wire, count=1)
    assert [len(record.counted) for record in state.records] == [0, 3]
    assert set(state.records[0].refused.values()) == {"what comes of this round's deltas is not finite"}
    assert np.isfinite(read_adapter(tmp_path, 1)).all() and np.isfinite(read_adapter(tmp_path, 2)).all()
    assert any("not finite" in sentence for sentence in said)


# proves FED-1 (a number beyond all reason is refused, and doesn't end the coordinator when it is written down)
def test_a_claim_of_absurd_numbers_is_refused(tmp_path: Path) -> None:
    def spoil(answer: Answer) -> Answer:
        if "node2" not in answer.handle:
            return answer
        most = int("9" * 4300)
        claim = msgspec.structs.replace(
            msgspec.json.decode(answer.claim, type=Claim), label_tokens=most, tokens=most
        )
        text = json.dumps(msgspec.structs.asdict(claim)).encode()
        return replace(answer, claim=text, signature=KEYS["node2"].sign(CONTEXT + text))

    state, _ = _run(tmp_path, ToyWire(dict.fromkeys(KEYS, 10.0), spoil=spoil), count=1)
    assert set(state.records[0].counted) == {"node1", "node3"}


# proves FED-1 (a node's reason is text in status and logs, not commands for a terminal)
def test_a_reason_has_no_control_characters(tmp_path: Path) -> None:
    def spoil(answer: Answer) -> Answer:
        return Answer(answer.handle, failed="no\x1b[2J\r\ntime" + "x" * 1000) if "node2" in answer.handle else answer

    state, said = _run(tmp_path, ToyWire(dict.fromkeys(KEYS, 10.0), spoil=spoil), count=1)
    assert state.records[0].refused["node2"].startswith("no [2J timexxx")
    assert len(state.records[0].refused["node2"]) == 300
    assert all(sentence.isprintable() for sentence in said)
