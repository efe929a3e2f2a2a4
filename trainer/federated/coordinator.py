"""The coordinator's loop: ask idle nodes, judge what comes back, end the round, write it down, go on.

It speaks to nodes by a :class:`Wire`, which is Flower's grid (server_app.py) or a test's. All that it knows is in its
folder, written once per round: killed at any moment, the next one begins the round anew from the same broadcast.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from supervisor.protocol.atomic import write_atomic
from trainer.federated.config import FederationSections
from trainer.federated.deltas import Asked, delta_norm, fault, outliers, read_claim
from trainer.federated.packed import Flat, Layout, digest, unpack
from trainer.federated.rounds import Arrival, Owing, expired, is_over, outcome, to_ask, weights

STATE_FILE = "state.json"
STANDING = "standing"
BLUEPRINT_FILE = "blueprint.json"
"""In the coordinator's folder: where the standing of the rounds is kept, and what the adapter is."""
NORMS_KEPT = 50
POLL_SECONDS = 1.0
Key = tuple[str, int]
"""A delta: whose, and of which round."""


@dataclass(frozen=True)
class Answer:
    """What came for one question. ``failed``: why there is no delta; the rest is then empty."""

    handle: str
    claim: bytes = b""
    signature: bytes = b""
    adapter: Flat = field(default_factory=lambda: np.empty(0, np.float32))
    failed: str = ""


class Wire(Protocol):
    """Messages to nodes by their names. Anything that raises WireError is tried again."""

    def online(self) -> Sequence[str]: ...

    def ask(self, node: str, asked: Asked, broadcast: Flat, seconds_valid: float) -> str:
        """A handle of the question."""

    def collect(self, handles: Sequence[str]) -> Sequence[Answer]:
        """What has come so far for these questions; each answer comes once."""

    def bytes_moved(self) -> int | None:
        """In both directions since the beginning; None when nobody counts."""


class WireError(Exception):
    """Nothing could be sent or fetched just now."""


class Record(msgspec.Struct, frozen=True):
    """One round, as it ended. ``counted``: label tokens by node; ``late``: of those, how many rounds late; ``refused``:
    why, by node; ``missing``: asked and silent until the deadline."""

    round: int
    seconds: float
    counted: Mapping[str, int]
    late: Mapping[str, int]
    refused: Mapping[str, str]
    missing: tuple[str, ...]
    lost_share: float
    averaging_error: float
    bytes_moved: int | None


class State(msgspec.Struct, frozen=True):
    """``state.json``. ``round``: the one to be run next; its broadcast is the adapter of that number."""

    federation: str
    layout: Layout
    round: int = 0
    norms: tuple[float, ...] = ()
    counted: frozenset[Key] = frozenset()
    records: tuple[Record, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(sum(record.counted.values()) for record in self.records)


def begin(folder: Path, federation: str, layout: Layout, seed: int) -> State:
    """The state in ``folder``, or a fresh one with a broadcast that all nodes begin from.

    Raises ValueError when the folder is another federation's, or its adapter another, OSError, msgspec.DecodeError.
    """
    path = folder / STATE_FILE
    if path.exists():
        state = msgspec.json.decode(path.read_bytes(), type=State)
        if (state.federation, state.layout) != (federation, layout):
            raise ValueError(f"{folder} belongs to {state.federation}, with an adapter of other layers or another rank")
        return state
    folder.mkdir(parents=True, exist_ok=True)
    write_adapter(folder, 0, fresh_adapter(layout, seed))
    state = State(federation, layout)
    write_state(folder, state)
    return state


def fresh_adapter(layout: Layout, seed: int) -> Flat:
    """As PEFT begins: A uniform within 1 / sqrt(columns), B zero. All nodes need the same A."""
    flat = np.zeros(layout.size, np.float32)
    draw = np.random.default_rng(seed)
    for layer, factors in zip(layout.layers, unpack(layout, flat), strict=True):
        bound = layer.columns**-0.5
        factors.a[:] = draw.uniform(-bound, bound, factors.a.shape)
    return flat


def lock_path(folder: Path) -> Path:
    """Held by the coordinator that works on the folder."""
    return folder / "coordinator.lock"


def adapter_path(folder: Path, number: int) -> Path:
    """The adapter with which round ``number`` begins."""
    return folder / f"adapter-{number:05d}.npy"


def write_adapter(folder: Path, number: int, flat: Flat) -> None:
    buffer = io.BytesIO()
    np.save(buffer, flat, allow_pickle=False)
    write_atomic(adapter_path(folder, number), buffer.getvalue())


def read_adapter(folder: Path, number: int) -> Flat:
    """Raises OSError, ValueError."""
    flat: Flat = np.load(adapter_path(folder, number), allow_pickle=False)
    return flat


def write_state(folder: Path, state: State) -> None:
    write_atomic(folder / STATE_FILE, msgspec.json.format(msgspec.json.encode(state), indent=1) + b"\n")


@dataclass
class Coordinator:
    """``scale``: lora_alpha / r, of all nodes. ``say``: one sentence for people. ``clock``, ``sleep``: seconds."""

    folder: Path
    sections: FederationSections
    scale: float
    keys: Mapping[str, Ed25519PublicKey]
    wire: Wire
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _owing: dict[str, Owing] = field(default_factory=dict)
    """By handle; lives across rounds, as the nodes' work does."""

    def run(self, state: State, stop: Callable[[], bool] = lambda: False) -> State:
        """All rounds that are left, or until ``stop``. Raises OSError when a round cannot be written down."""
        while state.round < self.sections.rounds.count and not stop():
            state = self._round(state, stop)
        return state

    def _round(self, state: State, stop: Callable[[], bool]) -> State:
        rounds, number = self.sections.rounds, state.round
        broadcast = read_adapter(self.folder, number)
        began = self.clock()
        arrivals: list[Arrival] = []
        refused: dict[Key, str] = {}
        while True:
            self._forget()
            done = [*((arrival.node, arrival.round) for arrival in arrivals), *refused]
            self._ask(state.layout, number, broadcast, [node for node, of in done if of == number])
            for arrival in self._collect(state, refused):
                arrivals.append(arrival)
            fresh = [arrival for arrival in arrivals if arrival.round == number]
            if stop():
                return state
            owing = list(self._owing.values())
            if is_over(self.clock(), began, rounds.deadline_seconds, number, owing, len(fresh)):
                break
            self.sleep(min(POLL_SECONDS, max(0.0, began + rounds.deadline_seconds - self.clock())))
        return self._end(state, broadcast, arrivals, refused, self.clock() - began)

    def _forget(self) -> None:
        rounds = self.sections.rounds
        gone = expired(self.clock(), self._owing.values(), rounds.deadline_seconds, rounds.late_rounds)
        for handle in [handle for handle, owing in self._owing.items() if owing in gone]:
            self.say(f"{self._owing[handle].node} is not waited for any longer")
            del self._owing[handle]

    def _ask(self, layout: Layout, number: int, broadcast: Flat, done: Sequence[str]) -> None:
        rounds = self.sections.rounds
        try:
            online = [node for node in self.wire.online() if node in self.keys]
            for node in to_ask(online, self._owing.values(), done):
                asked = Asked(self.sections.name, node, number, digest(broadcast), layout)
                valid = float(rounds.deadline_seconds * (1 + rounds.late_rounds))
                handle = self.wire.ask(node, asked, broadcast, valid)
                self._owing[handle] = Owing(node, number, self.clock())
        except WireError as error:
            self.say(f"nodes cannot be asked just now: {error}")

    def _collect(self, state: State, refused: dict[Key, str]) -> list[Arrival]:
        """What has come and is fit to count; what isn't goes to ``refused`` with the reason."""
        if not self._owing:
            return []
        try:
            answers = self.wire.collect(list(self._owing))
        except WireError as error:
            self.say(f"deltas cannot be fetched just now: {error}")
            return []
        found = []
        for answer in answers:
            owing = self._owing.pop(answer.handle, None)
            if owing is None or (owing.node, owing.round) in state.counted:
                continue
            arrival = self._judged(state, owing, answer, refused)
            if arrival is not None:
                found.append(arrival)
        return found

    def _judged(self, state: State, owing: Owing, answer: Answer, refused: dict[Key, str]) -> Arrival | None:
        claim = read_claim(answer.claim)
        if answer.failed or claim is None:
            why = answer.failed or "it is not a delta"
        elif state.round - owing.round > self.sections.rounds.late_rounds:
            why = f"it is {state.round - owing.round} rounds late"
        else:
            began = digest(read_adapter(self.folder, owing.round))
            asked = Asked(self.sections.name, owing.node, owing.round, began, state.layout)
            why = fault(claim, answer.signature, answer.adapter, asked, self.keys[owing.node]) or ""
            if not why:
                return Arrival(owing.node, owing.round, claim.tokens, answer.adapter)
        refused[owing.node, owing.round] = why
        self.say(f"the delta of {owing.node} for round {owing.round} does not count: {why}")
        return None

    def _end(
        self, state: State, broadcast: Flat, arrivals: list[Arrival], refused: dict[Key, str], seconds: float
    ) -> State:
        rounds, number, layout = self.sections.rounds, state.round, state.layout
        began = {arrival.round: read_adapter(self.folder, arrival.round) for arrival in arrivals}
        norms = {
            (arrival.node, arrival.round): delta_norm(layout, self.scale, began[arrival.round], arrival.adapter)
            for arrival in arrivals
        }
        for (node, of), why in outliers(norms, state.norms, self.sections.aggregation.norm_times).items():
            refused[node, of] = why
            self.say(f"the delta of {node} for round {of} does not count: {why}")
        counting = [arrival for arrival in arrivals if (arrival.node, arrival.round) not in refused]
        shares = weights(counting, number, rounds.late_factor, rounds.late_rounds)
        adapter, lost_share, averaging = broadcast, 0.0, 0.0
        if shares:
            after = outcome(layout, {**began, number: broadcast}, number, counting, shares)
            adapter, lost_share, averaging = after.adapter, after.lost_share, after.averaging_error
        counted: dict[str, int] = {}
        for arrival in counting:
            if (arrival.node, arrival.round) in shares:  # a node may have a late delta and one that is in time
                counted[arrival.node] = counted.get(arrival.node, 0) + arrival.tokens
        record = Record(
            number, round(seconds, 3), counted,
            {a.node: number - a.round for a in counting if a.round < number},
            {node: why for (node, _), why in refused.items()},
            tuple(sorted(owing.node for owing in self._owing.values() if owing.round == number)),
            lost_share, averaging, self.wire.bytes_moved(),
        )  # fmt: skip
        write_adapter(self.folder, number + 1, adapter)
        after_it = State(
            state.federation, layout, number + 1,
            (*state.norms, *(norms[key] for key in shares))[-NORMS_KEPT:],
            state.counted | frozenset(shares), (*state.records, record),
        )  # fmt: skip
        write_state(self.folder, after_it)
        adapter_path(self.folder, number - rounds.late_rounds).unlink(missing_ok=True)
        self.say(
            f"round {number} of {rounds.count}: {sum(counted.values())} tokens of {len(counted)} nodes; "
            f"{lost_share:.2%} of the energy had no room in the rank, averaging factors would have been "
            f"{averaging:.2%} off"
        )
        return after_it
