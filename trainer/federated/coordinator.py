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
from trainer.federated.packed import Flat, Layout, digest, joined, parted, unpack
from trainer.federated.rounds import (
    Arrival,
    Outcome,
    Owing,
    exact_outcome,
    expired,
    is_over,
    outcome,
    to_ask,
    weights,
)

STATE_FILE = "state.json"
STANDING = "standing"
BLUEPRINT_FILE = "blueprint.json"
"""In the coordinator's folder: where the standing of the rounds is kept, and what the adapter is."""
NORMS_KEPT = 50
POLL_SECONDS = 1.0
TELL_AGAIN_SECONDS = 60.0
"""A node that was told that all is over and says nothing is told again after this."""
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

    def dismiss(self, node: str, rounds: int, seconds_valid: float) -> str:
        """Tell it that the federation is over after so many rounds; a handle, under which it says that it knows."""

    def bytes_moved(self) -> int | None:
        """In both directions since the beginning; None when nobody counts."""


class WireError(Exception):
    """Nothing could be sent or fetched just now."""


class Record(msgspec.Struct, frozen=True):
    """One round, as it ended. ``counted``: label tokens by node; ``late``: of those, how many rounds late; ``refused``:
    why, by node; ``missing``: asked and silent until the deadline; ``tokens``, ``steps`` and ``rows`` of all that
    counted."""

    round: int
    seconds: float
    counted: Mapping[str, int]
    late: Mapping[str, int]
    refused: Mapping[str, str]
    missing: tuple[str, ...]
    lost_share: float
    averaging_error: float
    bytes_moved: int | None
    tokens: int = 0
    steps: int = 0
    rows: int = 0


class State(msgspec.Struct, frozen=True):
    """``state.json``. ``round``: the one to be run next; its broadcast is the adapter of that number.

    ``mode``: of aggregation. ``told``: nodes that know that all rounds are done; ``parted``: no other is waited for.
    """

    federation: str
    layout: Layout
    round: int = 0
    norms: tuple[float, ...] = ()
    counted: frozenset[Key] = frozenset()
    records: tuple[Record, ...] = ()
    mode: str = "product"
    told: tuple[str, ...] = ()
    parted: bool = False

    @property
    def label_tokens(self) -> int:
        return sum(sum(record.counted.values()) for record in self.records)


def begin(folder: Path, federation: str, layout: Layout, seed: int, mode: str = "product") -> State:
    """The state in ``folder``, or a fresh one with a broadcast that all nodes begin from.

    Raises ValueError when the folder is another federation's, or its adapter or mode another, OSError,
    msgspec.DecodeError.
    """
    path = folder / STATE_FILE
    if path.exists():
        state = msgspec.json.decode(path.read_bytes(), type=State)
        if (state.federation, state.layout) != (federation, layout):
            raise ValueError(f"{folder} belongs to {state.federation}, with an adapter of other layers or another rank")
        if state.mode != mode:
            raise ValueError(mode_problem(state, mode))
        return state
    folder.mkdir(parents=True, exist_ok=True)
    write_adapter(folder, 0, fresh_adapter(layout, seed))
    state = State(federation, layout, mode=mode)
    write_state(folder, state)
    return state


def mode_problem(state: State, mode: str) -> str:
    return (
        f"{state.federation} has begun with aggregation.mode {state.mode}, and its file says {mode}; the frozen "
        f"adapter of exact belongs to all rounds or to none. Set it back to {state.mode}"
    )


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
    """The broadcast with which round ``number`` begins."""
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
            until = began + rounds.deadline_seconds
            self._ask(state.layout, number, broadcast, [node for node, of in done if of == number], until)
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

    def _ask(self, layout: Layout, number: int, broadcast: Flat, done: Sequence[str], until: float) -> None:
        """``until``: the round's end by the clock; nobody is asked after it."""
        rounds = self.sections.rounds
        try:
            online = [node for node in self.wire.online() if node in self.keys]
            for node in to_ask(online, self._owing.values(), done):
                if self.clock() >= until:
                    break
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
                return Arrival(
                    owing.node, owing.round, claim.label_tokens, answer.adapter, claim.tokens, claim.steps, claim.rows
                )
        refused[owing.node, owing.round] = why
        self.say(f"the delta of {owing.node} for round {owing.round} does not count: {why}")
        return None

    def part(self, state: State, stop: Callable[[], bool] = lambda: False) -> State:
        """Tell the nodes that all rounds are done: those that are there, and those that come back within a deadline.

        Call it after the last round. One that says nothing is told again. Raises OSError.
        """
        began = self.clock()
        pending: dict[str, Owing] = {}
        while not stop() and not state.parted:
            patience = began + self.sections.rounds.deadline_seconds - self.clock()
            if patience <= 0 or set(state.told) >= set(self.keys):
                state = msgspec.structs.replace(state, parted=True)
                write_state(self.folder, state)
                away = sorted(set(self.keys) - set(state.told))
                self.say(f"not told that it is over: {', '.join(away)}" if away else "all nodes know that it is over")
                break
            try:
                known = self._tell(state, pending)
            except WireError as error:
                self.say(f"nodes cannot be told just now: {error}")
                known = []
            if known:
                state = msgspec.structs.replace(state, told=tuple(sorted({*state.told, *known})))
                write_state(self.folder, state)
                continue
            self.sleep(min(POLL_SECONDS, max(0.0, patience)))
        return state

    def _tell(self, state: State, pending: dict[str, Owing]) -> list[str]:
        """Who has said since that it knows. ``pending``: whom that is asked of, by handle. Raises WireError."""
        now = self.clock()
        waited_for = {each.node for each in pending.values() if now - each.since < TELL_AGAIN_SECONDS}
        for node in self.wire.online():
            if node in self.keys and node not in state.told and node not in waited_for:
                handle = self.wire.dismiss(node, state.round, float(self.sections.rounds.deadline_seconds))
                pending[handle] = Owing(node, state.round, now)
        answers = self.wire.collect(list(pending)) if pending else []
        told = [(pending.pop(answer.handle), answer) for answer in answers if answer.handle in pending]
        return [owing.node for owing, answer in told if not answer.failed]

    def _end(
        self, state: State, broadcast: Flat, arrivals: list[Arrival], refused: dict[Key, str], seconds: float
    ) -> State:
        rounds, number, layout = self.sections.rounds, state.round, state.layout
        began = {
            arrival.round: parted(layout, read_adapter(self.folder, arrival.round))[0] for arrival in arrivals
        }
        norms = {
            (arrival.node, arrival.round): delta_norm(layout, self.scale, began[arrival.round], arrival.adapter)
            for arrival in arrivals
        }
        for (node, of), why in outliers(norms, state.norms, self.sections.aggregation.norm_times).items():
            refused[node, of] = why
            self.say(f"the delta of {node} for round {of} does not count: {why}")
        counting = [arrival for arrival in arrivals if (arrival.node, arrival.round) not in refused]
        shares = weights(counting, number, rounds.late_factor, rounds.late_rounds)
        after = self._outcome(layout, broadcast, began, number, counting, shares)
        counted: dict[str, int] = {}
        taken = [arrival for arrival in counting if (arrival.node, arrival.round) in shares]
        for arrival in taken:  # a node may have a late delta and one that is in time
            counted[arrival.node] = counted.get(arrival.node, 0) + arrival.label_tokens
        record = Record(
            number, round(seconds, 3), counted,
            {a.node: number - a.round for a in counting if a.round < number},
            {node: why for (node, _), why in refused.items()},
            tuple(sorted(owing.node for owing in self._owing.values() if owing.round == number)),
            after.lost_share, after.averaging_error, self.wire.bytes_moved(),
            sum(arrival.tokens for arrival in taken), sum(arrival.steps for arrival in taken),
            sum(arrival.rows for arrival in taken),
        )  # fmt: skip
        write_adapter(self.folder, number + 1, joined(after.adapter, after.frozen))
        after_it = State(
            state.federation, layout, number + 1,
            (*state.norms, *(norms[key] for key in shares))[-NORMS_KEPT:],
            state.counted | frozenset(shares), (*state.records, record), state.mode,
        )  # fmt: skip
        write_state(self.folder, after_it)
        adapter_path(self.folder, number - rounds.late_rounds).unlink(missing_ok=True)
        self.say(
            f"round {number} of {rounds.count}: {sum(counted.values())} label tokens of {len(counted)} nodes; "
            f"{after.lost_share:.2%} of the energy had no room in the rank, averaging factors would have been "
            f"{after.averaging_error:.2%} off"
        )
        return after_it

    def _outcome(
        self,
        layout: Layout,
        broadcast: Flat,
        began: Mapping[int, Flat],
        number: int,
        counting: Sequence[Arrival],
        shares: Mapping[Key, float],
    ) -> Outcome:
        """What the next round begins from; without any share that is what this one began from."""
        adapter, frozen_layout, frozen = parted(layout, broadcast)
        if not shares:
            return Outcome(adapter, 0.0, 0.0, frozen)
        begun, aggregation = {**began, number: adapter}, self.sections.aggregation
        if aggregation.mode == "product":
            return outcome(layout, begun, number, counting, shares)
        return exact_outcome(
            layout, begun, number, counting, shares, (frozen_layout, frozen), aggregation.residual_rank
        )
