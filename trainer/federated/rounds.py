"""What the coordinator decides, purely: who is asked, when a round is over, what deltas weigh, what comes of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trainer.federated.packed import A_SUFFIX, B_SUFFIX, Flat, Layout, of_rank, pack, unpack
from trainer.federated.products import Exact, Exactly, Term, exact_round, product_round

MOST_TIMES_USUAL = 4.0
"""A delta weighs no more than so many times as much as is usual: what a node says of its tokens cannot be checked."""
Key = tuple[str, int]
"""A delta: whose, and of which round."""


@dataclass(frozen=True)
class Arrival:
    """A delta that is fit to count: of ``node``, from the broadcast of ``round`` on so many ``label_tokens``, in
    so many optimiser ``steps`` over so many ``rows`` of ``tokens`` in all."""

    node: str
    round: int
    label_tokens: int
    adapter: Flat
    tokens: int = 0
    steps: int = 0
    rows: int = 0


@dataclass(frozen=True)
class Owing:
    """A node that has been asked and has not answered. ``since``: seconds of the same clock as ``now``."""

    node: str
    round: int
    since: float


def to_ask(online: Iterable[str], asked: Iterable[Owing], answered: Iterable[str]) -> list[str]:
    """The nodes that are there, are idle, and have not handed in for this round."""
    return sorted(set(online) - {each.node for each in asked} - set(answered))


def is_over(
    now: float, began: float, deadline_seconds: float, round_number: int, asked: Iterable[Owing], arrived: int
) -> bool:
    """Whether the round ends now: everybody asked in it has answered, or its deadline has passed.

    A node that still works on an earlier round is not waited for. Without an answer the round lasts to its deadline:
    a node may yet come. It never lasts longer.
    """
    if now - began >= deadline_seconds:
        return True
    return arrived > 0 and not any(each.round == round_number for each in asked)


def expired(now: float, asked: Iterable[Owing], deadline_seconds: float, late_rounds: int) -> list[Owing]:
    """Who is not waited for any more: an answer now would be too old to count."""
    return [each for each in asked if now - each.since > deadline_seconds * (1 + late_rounds)]


def weights(
    arrivals: Sequence[Arrival], current: int, late_factor: float, late_rounds: int, outer_learning_rate: float = 1.0
) -> dict[Key, float]:
    """By (node, round) of those that count: their shares, which add up to ``outer_learning_rate`` where none is late,
    and to less otherwise.

    A delta's share is that of its label tokens (as far as they weigh) in all that count, times ``late_factor`` for each
    round that it is late. One that is more than ``late_rounds`` late doesn't count, and the same node's delta of the
    same round counts once.
    """
    tokens = weighing(
        {
            (arrival.node, arrival.round): arrival.label_tokens
            for arrival in arrivals
            if 0 <= current - arrival.round <= late_rounds and arrival.label_tokens > 0
        }
    )
    whole = sum(tokens.values())
    return {
        key: outer_learning_rate * count / whole * late_factor ** (current - key[1]) for key, count in tokens.items()
    }


def weighing(tokens: Mapping[Key, int]) -> dict[Key, float]:
    """The label tokens that each delta weighs by: its own, at most ``MOST_TIMES_USUAL`` times the others' median."""
    found = {}
    for (node, number), count in tokens.items():
        others = [other for (name, _), other in tokens.items() if name != node]
        most = MOST_TIMES_USUAL * statistics.median(others) if others else math.inf
        found[node, number] = min(float(count), most)
    return found


@dataclass(frozen=True)
class Outcome:
    """The adapter after a round. ``lost_share`` of the sum's energy, ``averaging_error``: what plain averaging of the
    factors would have been off by, as a share of the sum's norm; both over all layers. ``frozen``: the adapter that
    goes with it in exact mode, of the same layers."""

    adapter: Flat
    lost_share: float
    averaging_error: float
    frozen: Flat = field(default_factory=lambda: np.empty(0, np.float32))


def outcome(
    layout: Layout,
    broadcasts: Mapping[int, Flat],
    current: int,
    arrivals: Sequence[Arrival],
    shares: Mapping[Key, float],
) -> Outcome:
    """W + sum of share x (product handed in - product begun from), re-factored, layer by layer.

    ``broadcasts``: the adapters that were trained from in each round, by round; W is that of ``current``. For deltas
    that are in time, with shares that add up to 1, this is the weighted mean of the products.
    """
    kept = lost = wrong = 0.0
    tensors: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.floating]]] = {}
    for layer, terms in zip(layout.layers, _terms(layout, broadcasts, current, arrivals, shares), strict=True):
        mean = product_round(terms, layout.rank)
        found = mean.factored
        kept, lost = kept + found.kept, lost + found.lost
        wrong += mean.missed**2
        tensors[layer.name + A_SUFFIX], tensors[layer.name + B_SUFFIX] = found.a, found.b
    whole = kept + lost
    return Outcome(
        pack(layout, tensors), lost / whole if whole > 0 else 0.0, math.sqrt(wrong / whole) if whole > 0 else 0.0
    )


def exact_outcome(
    layout: Layout,
    broadcasts: Mapping[int, Flat],
    current: int,
    arrivals: Sequence[Arrival],
    shares: Mapping[Key, float],
    frozen: tuple[Layout, Flat],
    cap: int,
) -> Outcome:
    """The same sum as :func:`outcome`, as mean factors and a frozen adapter of rank ``cap`` at most (FedEx-LoRA).

    ``frozen``: that of round ``current``. A late delta began beside another frozen adapter, which was as much a part of
    where it began as of where it ended, so its difference is the same.
    """
    rounds: list[Exact] = []
    lost = whole = wrong = 0.0
    held = unpack(*frozen)
    for terms, part in zip(_terms(layout, broadcasts, current, arrivals, shares), held, strict=True):
        before = [Term(1.0, part.b, part.a)]
        found = exact_round(terms, before, cap)
        rounds.append(found)
        lost += found.frozen.lost
        whole += found.norm**2
        wrong += found.missed**2
    wide = of_rank(layout, max(found.frozen.a.shape[0] for found in rounds))
    adapter, rest = np.empty(layout.size, np.float32), np.empty(wide.size, np.float32)
    for new, behind, found in zip(unpack(layout, adapter), unpack(wide, rest), rounds, strict=True):
        new.a[:], new.b[:] = found.a, found.b
        behind.a[:], behind.b[:] = _widened(found, wide.rank)
    return Outcome(
        adapter, lost / whole if whole > 0 else 0.0, math.sqrt(wrong / whole) if whole > 0 else 0.0, rest
    )


def _widened(found: Exact, rank: int) -> tuple[Exactly, Exactly]:
    missing = rank - found.frozen.a.shape[0]
    return np.pad(found.frozen.a, ((0, missing), (0, 0))), np.pad(found.frozen.b, ((0, 0), (0, missing)))


def _terms(
    layout: Layout,
    broadcasts: Mapping[int, Flat],
    current: int,
    arrivals: Sequence[Arrival],
    shares: Mapping[Key, float],
) -> list[list[Term]]:
    """Layer by layer, the products whose sum is W + sum of share x (handed in - begun from)."""
    coefficients: dict[int, float] = {current: 1.0}
    counted: dict[Key, Arrival] = {}
    for arrival in arrivals:
        key = (arrival.node, arrival.round)
        if key in shares and key not in counted:
            counted[key] = arrival
            coefficients[arrival.round] = coefficients.get(arrival.round, 0.0) - shares[key]
    begun = {number: unpack(layout, broadcasts[number]) for number, share in coefficients.items() if abs(share) > 1e-12}
    handed_in = {key: unpack(layout, arrival.adapter) for key, arrival in counted.items()}
    return [
        [
            *(Term(shares[key], parts[index].b, parts[index].a) for key, parts in handed_in.items()),
            *(Term(coefficients[number], parts[index].b, parts[index].a) for number, parts in begun.items()),
        ]
        for index in range(len(layout.layers))
    ]
