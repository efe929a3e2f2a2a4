"""The coordinator's loop: ask idle nodes, judge what comes back, end the round, write it down, go on.

It speaks to nodes by a :class:`trainer.federated.wire.Wire`. All that it knows is in its folder, written once per
round: killed at any moment, the next one begins the round anew from the same broadcast. How the nodes learn of the end:
parting.py.
"""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from supervisor.protocol.atomic import write_atomic
from trainer.federated.config import AggregationSection, FederationSections
from trainer.federated.deltas import Asked, delta_norm, fault, outliers, read_claim
from trainer.federated.packed import Flat, Layout, digest, joined, parted, unpack
from trainer.federated.rounds import (
    Arrival,
    Key,
    Outcome,
    Owing,
    exact_outcome,
    expired,
    is_over,
    outcome,
    to_ask,
    weighing,
    weights,
)
from trainer.federated.wire import Answer, Wire, WireError, plain

STATE_FILE = "state.json"
FAILURE_FILE = "failure.txt"
"""Beside it: what the coordinator's process died of, if it could say so."""
STANDING = "standing"
BLUEPRINT_FILE = "blueprint.json"
"""In the coordinator's folder: where the standing of the rounds is kept, and what the adapter is."""
NORMS_KEPT = 50
POLL_SECONDS = 1.0
TRIES = 3
"""How often a node is asked at most before a deadline, when its answers are lost."""
FRUITLESS_ROUNDS = 10
"""In a row, in which all that came was refused."""
DEFAULT_AGGREGATION = AggregationSection()


class Record(msgspec.Struct, frozen=True):
    """One round, as it ended. ``counted``: label tokens by node; ``late``: of those, how many rounds late; ``refused``:
    why, by node; ``missing``: asked and silent until the deadline, or the answer was lost; ``tokens``, ``steps`` and
    ``rows`` of all that counted."""

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


class FruitlessError(Exception):
    """Trying again will not help."""


class State(msgspec.Struct, frozen=True):
    """``state.json``. ``round``: the one to be run next; its broadcast is the adapter of that number.

    ``mode`` of aggregation, and in exact mode its ``residual_rank`` (0: not known). ``waited``: deadlines of this round
    that have passed without any delta, at the last of which ``waiting`` says of every node why. ``told``: nodes that
    know that all rounds are done; ``ended``: no other is waited for.
    """

    federation: str
    layout: Layout
    round: int = 0
    norms: tuple[float, ...] = ()
    counted: frozenset[Key] = frozenset()
    records: tuple[Record, ...] = ()
    mode: str = "product"
    told: tuple[str, ...] = ()
    ended: bool = False
    residual_rank: int = 0
    waited: int = 0
    waiting: Mapping[str, str] = {}

    @property
    def done(self) -> int:
        """Rounds in which something counted. Only these are rounds of ``rounds.count``."""
        return sum(bool(record.counted) for record in self.records)

    @property
    def fruitless(self) -> int:
        """Rounds since the last one in which something counted."""
        return next((back for back, record in enumerate(reversed(self.records)) if record.counted), len(self.records))

    @property
    def label_tokens(self) -> int:
        return sum(sum(record.counted.values()) for record in self.records)


def begin(
    folder: Path, federation: str, layout: Layout, seed: int, aggregation: AggregationSection = DEFAULT_AGGREGATION
) -> State:
    """The state in ``folder``, or a fresh one with a broadcast that all nodes begin from.

    Raises ValueError when the folder is another federation's, or its adapter or aggregation another, OSError,
    msgspec.DecodeError.
    """
    path = folder / STATE_FILE
    if path.exists():
        state = msgspec.json.decode(path.read_bytes(), type=State)
        if (state.federation, state.layout) != (federation, layout):
            raise ValueError(f"{folder} belongs to {state.federation}, with an adapter of other layers or another rank")
        if problem := aggregation_problem(state, aggregation):
            raise ValueError(problem)
        return state
    folder.mkdir(parents=True, exist_ok=True)
    write_adapter(folder, 0, fresh_adapter(layout, seed))
    state = State(federation, layout, mode=aggregation.mode, residual_rank=_residual_rank(aggregation))
    write_state(folder, state)
    return state


def aggregation_problem(state: State, aggregation: AggregationSection) -> str | None:
    """What of it cannot be changed on the way, and was."""
    if state.mode != aggregation.mode:
        return (
            f"{state.federation} has begun with aggregation.mode {state.mode}, and its file says {aggregation.mode}; "
            f"the frozen adapter of exact belongs to all rounds or to none. Set it back to {state.mode}"
        )
    if state.residual_rank not in (0, _residual_rank(aggregation)):
        return (
            f"{state.federation} has begun with aggregation.residual_rank {state.residual_rank}, and its file says "
            f"{aggregation.residual_rank}; the nodes hold their frozen adapters at that rank. Set it back to "
            f"{state.residual_rank}"
        )
    return None


def _residual_rank(aggregation: AggregationSection) -> int:
    return aggregation.residual_rank if aggregation.mode == "exact" else 0


def waiting_text(state: State) -> str:
    """Of a state that has waited."""
    nodes = "; ".join(f"{node} {why}" for node, why in state.waiting.items())
    return f"round {state.round} has no delta yet, {state.waited} x its deadline has passed: {nodes}"


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
    _there: frozenset[str] | None = None
    """Nodes that were there when last asked; None: that could not be asked since the last deadline."""
    _losses: Counter[str] = field(default_factory=Counter)
    """Answers of this round that were lost since the last deadline, by node."""

    def run(self, state: State) -> State:
        """All rounds that are left. Raises OSError when a round cannot be written down, WireError when not one call to
        nodes has got through for a whole deadline, FruitlessError when round after round all that comes is refused."""
        while state.done < self.sections.rounds.count:
            state = self._round(state)
            if state.fruitless >= FRUITLESS_ROUNDS:
                last = "; ".join(f"{node}: {why}" for node, why in sorted(state.records[-1].refused.items()))
                raise FruitlessError(f"nothing counted in {state.fruitless} rounds, in the last one {last}")
        return state

    def _round(self, state: State) -> State:
        """One deadline after the other, until something has come that can be judged."""
        number = state.round
        broadcast = read_adapter(self.folder, number)
        arrivals: list[Arrival] = []
        refused: dict[Key, str] = {}
        while True:
            began = self.clock()
            self._until_over(state, broadcast, began, arrivals, refused)
            if arrivals or any(of == number for _, of in refused):
                return self._end(state, broadcast, arrivals, refused, self.clock() - began)
            state = self._waited(state)

    def _until_over(
        self, state: State, broadcast: Flat, began: float, arrivals: list[Arrival], refused: dict[Key, str]
    ) -> None:
        """Takes what comes into ``arrivals`` and ``refused`` until the round is over."""
        rounds, number = self.sections.rounds, state.round
        self._there, self._losses = None, Counter()
        while True:
            self._forget()
            arrivals.extend(self._collect(state, refused))
            fresh = [arrival.node for arrival in arrivals if arrival.round == number]
            done = [*fresh, *(node for node, of in refused if of == number)]
            # Before it is asked whether the round is over: whose answer was lost and is there owes another one.
            self._ask(state.layout, number, broadcast, done, began + rounds.deadline_seconds)
            owing = list(self._owing.values())
            if is_over(self.clock(), began, rounds.deadline_seconds, number, owing, len(fresh)):
                return
            self.sleep(min(POLL_SECONDS, max(0.0, began + rounds.deadline_seconds - self.clock())))

    def _waited(self, state: State) -> State:
        """A deadline has passed without any delta: say who is missing and why. Nobody's round, it doesn't count."""
        if self._there is None:
            raise WireError(f"not one call has got through for {self.sections.rounds.deadline_seconds} seconds")
        owing = {each.node for each in self._owing.values()}
        waiting = {}
        for node in sorted(self.keys):
            if node in owing:
                waiting[node] = "was asked and has not answered"
            elif node not in self._there:
                waiting[node] = "is not connected"
            else:
                waiting[node] = f"has lost {self._losses[node]} answers" if self._losses[node] else "is there"
        state = msgspec.structs.replace(state, waited=state.waited + 1, waiting=waiting)
        write_state(self.folder, state)
        self.say(waiting_text(state))
        return state

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
            self._there = frozenset(node for node in self.wire.online() if node in self.keys)
            tried = [node for node, times in self._losses.items() if times >= TRIES]
            for node in to_ask(self._there, self._owing.values(), [*done, *tried]):
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
            if answer.lost:
                if owing.round == state.round:
                    self._losses[owing.node] += 1
                self.say(f"the answer of {owing.node} for round {owing.round} was lost: {plain(answer.lost)}")
                continue
            arrival = self._judged(state, owing, answer, refused)
            if arrival is not None:
                found.append(arrival)
        return found

    def _judged(self, state: State, owing: Owing, answer: Answer, refused: dict[Key, str]) -> Arrival | None:
        claim = read_claim(answer.claim)
        if answer.failed or claim is None:
            why = plain(answer.failed) or "it is not a delta"
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
        rate = self.sections.aggregation.outer_learning_rate
        shares = weights(counting, number, rounds.late_factor, rounds.late_rounds, rate)
        after = self._outcome(layout, broadcast, began, number, counting, shares)
        if not (np.isfinite(after.adapter).all() and np.isfinite(after.frozen).all()):
            self.say(f"round {number} comes to values that are not finite; its deltas do not count")
            refused |= {(a.node, a.round): "what comes of this round's deltas is not finite" for a in counting}
            counting, shares = [], {}
            after = self._outcome(layout, broadcast, began, number, counting, shares)
        counted: dict[str, int] = {}
        taken = [arrival for arrival in counting if (arrival.node, arrival.round) in shares]
        said = {(arrival.node, arrival.round): arrival.label_tokens for arrival in taken}
        for (node, of), most in weighing(said).items():
            if most < said[node, of]:
                self.say(f"{node} says {said[node, of]} label tokens in round {of}, and weighs as if by {most:.0f}")
        for arrival in taken:  # a node may have a late delta and one that is in time
            counted[arrival.node] = counted.get(arrival.node, 0) + arrival.label_tokens
        record = Record(
            number, round(seconds, 3), counted,
            {a.node: number - a.round for a in counting if a.round < number},
            {node: why for (node, _), why in refused.items()},
            self._missing(number, [node for node, of in (*shares, *refused) if of == number]),
            after.lost_share, after.averaging_error, self.wire.bytes_moved(),
            sum(arrival.tokens for arrival in taken), sum(arrival.steps for arrival in taken),
            sum(arrival.rows for arrival in taken),
        )  # fmt: skip
        write_adapter(self.folder, number + 1, joined(after.adapter, after.frozen))
        after_it = State(
            state.federation, layout, number + 1,
            (*state.norms, *(norms[key] for key in shares))[-NORMS_KEPT:],
            state.counted | frozenset(shares), (*state.records, record), state.mode,
            residual_rank=state.residual_rank,
        )  # fmt: skip
        write_state(self.folder, after_it)
        adapter_path(self.folder, number - rounds.late_rounds).unlink(missing_ok=True)
        self.say(
            f"round {number}, {after_it.done} of {rounds.count} are done: {sum(counted.values())} label tokens of "
            f"{len(counted)} nodes; "
            f"{after.lost_share:.2%} of the energy had no room in the rank, averaging factors would have been "
            f"{after.averaging_error:.2%} off"
        )
        return after_it

    def _missing(self, number: int, answered: Sequence[str]) -> tuple[str, ...]:
        silent = {owing.node for owing in self._owing.values() if owing.round == number}
        return tuple(sorted(silent | (set(self._losses) - set(answered))))

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
