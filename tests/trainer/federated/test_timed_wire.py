"""Calls to the SuperLink that take too long."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from trainer.federated.config import FederationSections
from trainer.federated.coordinator import Coordinator, begin
from trainer.federated.deltas import Asked
from trainer.federated.packed import Flat, Layer, Layout
from trainer.federated.timed_wire import TimedWire
from trainer.federated.wire import Answer, WireError

LAYOUT = Layout(2, (Layer("one", 12, 16),))
KEYS = {"node1": Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key()}
T = TypeVar("T")


@dataclass
class _Stuck:
    """One node, which refuses all it is asked; calls named in ``holds`` don't come back before ``free`` is set."""

    holds: frozenset[str] = frozenset()
    fails: bool = False
    slow: float = 0.0
    """Seconds that a list of nodes takes."""
    free: threading.Event = field(default_factory=threading.Event)
    asked: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)

    def _held(self, name: str) -> None:
        if name in self.holds:
            self.free.wait(60)

    def online(self) -> Sequence[str]:
        self._held("online")
        time.sleep(self.slow)
        if self.fails:
            self.fails = False
            raise WireError("the line is cut")
        return list(KEYS)

    def ask(self, node: str, asked: Asked, broadcast: Flat, seconds_valid: float) -> str:
        self.asked.append(f"{node}-{asked.round}-{len(self.asked)}")
        self.pending.append(self.asked[-1])
        self._held("ask")
        return self.asked[-1]

    def collect(self, handles: Sequence[str]) -> Sequence[Answer]:
        found = [Answer(handle, failed="no") for handle in handles if handle in self.pending]
        self.pending = [handle for handle in self.pending if handle not in handles]
        self._held("collect")
        return found

    def dismiss(self, node: str, rounds: int, seconds_valid: float) -> str:
        raise AssertionError("rounds are left")

    def bytes_moved(self) -> int | None:
        return None


def _ask(wire: TimedWire) -> str:
    return wire.ask("node1", Asked("lan", "node1", 0, "digest", LAYOUT), np.zeros(LAYOUT.size, np.float32), 60.0)


def _eventually(call: Callable[[], T]) -> T:
    for _ in range(600):
        try:
            return call()
        except WireError as error:
            if "answered" not in str(error):
                raise
            time.sleep(0.05)
    raise AssertionError("nothing came")


class OverError(Exception):
    pass


# proves FED-1 (a call that is under way does not hold up a deadline, whichever it is)
@pytest.mark.parametrize("held", ["online", "ask", "collect"])
def test_a_deadline_passes_while_the_superlink_is_silent(tmp_path: Path, held: str) -> None:
    inner = _Stuck(frozenset({held}))
    sections = FederationSections.model_validate(
        {
            "name": "lan", "host": "127.0.0.1", "nodes": list(KEYS), "train": "t.yaml",
            "rounds": {"count": 1, "train_seconds": 10, "deadline_seconds": 60},
        }
    )  # fmt: skip

    def say(sentence: str) -> None:
        if "no delta yet" in sentence:
            raise OverError(sentence)

    coordinator = Coordinator(
        tmp_path, sections, 2.0, KEYS, TimedWire(inner, 0.05), say,
        clock=lambda: time.monotonic() * 100, sleep=lambda seconds: time.sleep(seconds / 100),
    )  # fmt: skip
    # Where nobody ever says who is there the coordinator ends, for `federate serve` to submit it anew.
    with pytest.raises(WireError if held == "online" else OverError, match=r"not one call|no delta yet"):
        coordinator.run(begin(tmp_path, "lan", LAYOUT, seed=1))
    assert not inner.free.is_set()
    inner.free.set()
    assert len(inner.asked) == (0 if held == "online" else 1)


# proves FED-1 (where finding out who is there takes longer than is waited for, nodes are asked all the same)
def test_slow_lists_of_nodes_are_used(tmp_path: Path) -> None:
    inner = _Stuck(slow=0.12)
    wire = TimedWire(inner, 0.05)
    asked: list[str] = []
    for _ in range(400):
        try:
            if list(wire.online()) == list(KEYS):
                asked.append(_ask(wire))
                break
        except WireError:
            time.sleep(0.01)
    assert asked == inner.asked != []


# proves FED-1 (what a call brings after its time is not lost: the question isn't sent again, its answer counts)
def test_what_comes_late_is_handed_over_later() -> None:
    inner = _Stuck(frozenset({"ask", "collect"}))
    wire = TimedWire(inner, 0.05)
    with pytest.raises(WireError, match="has not answered"):
        _ask(wire)
    with pytest.raises(WireError, match="still not"):
        _ask(wire)
    with pytest.raises(WireError, match="still not"):
        wire.online()
    inner.free.set()
    handle = _eventually(lambda: _ask(wire))
    assert inner.asked == [handle]
    inner.free.clear()
    with pytest.raises(WireError, match="has not answered"):
        wire.collect([handle])
    inner.free.set()
    assert [answer.handle for answer in _eventually(lambda: wire.collect([handle]))] == [handle]
    assert not wire.collect([handle])
    assert _ask(wire) != handle  # asked once more, it is a question of its own


# proves FED-1 (what a call fails with after its time is said)
def test_what_a_late_call_fails_with_is_raised() -> None:
    inner = _Stuck(frozenset({"online"}), fails=True)
    wire = TimedWire(inner, 0.05)
    with pytest.raises(WireError, match="has not answered"):
        wire.online()
    inner.free.set()
    with pytest.raises(WireError, match="the line is cut"):
        _eventually(wire.online)
    assert list(wire.online()) == list(KEYS)
