"""What a federation will cost and gain, purely, from the size of its adapter and its file."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from trainer.federated.config import FederationSections
from trainer.federated.packed import Layout, of_rank

ROUND_OVERHEAD_SECONDS = 10.0
"""Flower's own per round: polling and a process per message. Measured: 8 to 11 s with flwr 1.42 on loopback."""
OPERATIONS_PER_SECOND = 5e10
SECONDS_PER_NUMBER = 5e-8
"""Of one core, in float64: of large products and factorisations, and for each number of a thin stack of factors, which
memory and calls take. Measured with the layers of a 4B model and 3 to 300 nodes of rank 16 (docs/scale.md)."""
MB = 1e6


@dataclass(frozen=True)
class Forecast:
    """Of one round unless it says otherwise. ``speed_up``: tokens per hour, as a multiple of one box of the same make
    that trains all the time. It holds for equal boxes that are all there. ``frozen_mb``: of each card's memory, for the
    frozen adapter of exact mode."""

    parameters: int
    adapter_mb: float
    frozen_mb: float
    node_mb: float
    coordinator_mb: float
    transfer_seconds: float
    aggregation_seconds: float
    round_seconds: float
    rounds: int
    hours: float
    total_gb: float
    speed_up: float
    in_time: bool

    def as_dict(self) -> dict[str, float | int | bool]:
        return asdict(self)


def forecast(layout: Layout, sections: FederationSections) -> Forecast:
    """``layout``: of the adapter; its numbers travel as float32.

    A node gets the adapter and sends it back; the coordinator's line, taken to be as fast as the slowest node's,
    carries all nodes' one after the other in each direction. In exact mode the frozen adapter is sent as well, at its
    cap. The deadline is for nodes: what the coordinator computes after it lengthens the round and makes nobody late.
    """
    parameters = layout.size
    adapter = parameters * 4 / MB
    frozen = _residual_parameters(layout, sections) * 4 / MB
    down = adapter + frozen
    nodes, rounds = len(sections.nodes), sections.rounds
    transfer = nodes * (down + adapter) * 8 / sections.uplink_mbit
    aggregation = aggregation_seconds(layout, nodes, _held_rank(sections))
    answered = rounds.train_seconds + transfer + ROUND_OVERHEAD_SECONDS
    whole = answered + aggregation
    return Forecast(
        parameters=parameters,
        adapter_mb=adapter,
        frozen_mb=frozen,
        node_mb=down + adapter,
        coordinator_mb=nodes * (down + adapter),
        transfer_seconds=transfer,
        aggregation_seconds=aggregation,
        round_seconds=whole,
        rounds=rounds.count,
        hours=rounds.count * whole / 3600,
        total_gb=rounds.count * nodes * (down + adapter) / 1000,
        speed_up=nodes * rounds.train_seconds / whole,
        in_time=answered <= rounds.deadline_seconds,
    )


def aggregation_seconds(layout: Layout, nodes: int, held_rank: int = 0) -> float:
    """What the coordinator computes after a round, on one core: the norm of every delta, the sum of the products, and
    what averaging factors would have missed. ``held_rank``: of a frozen adapter that the sum takes up as well.

    With k ranks in all, a layer of m x n takes one QR of each of its stacks, m x k and n x k, their core's SVD, and
    ``nodes`` QRs of 2 r columns. Within a factor of two.
    """
    k = nodes * layout.rank + held_rank
    seconds = 0.0
    for layer in layout.layers:
        left, right = min(k, layer.rows), min(k, layer.columns)
        factorised = 4 * k * (left * layer.rows + right * layer.columns)
        core = 2 * left * k * right + 20 * min(left, right) ** 2 * max(left, right)
        norms = 16 * nodes * layout.rank**2 * (layer.rows + layer.columns)
        numbers = 3 * k * (layer.rows + layer.columns)
        seconds += (factorised + core + norms) / OPERATIONS_PER_SECOND + numbers * SECONDS_PER_NUMBER
    return seconds


def _held_rank(sections: FederationSections) -> int:
    return 0 if sections.aggregation.mode == "product" else sections.aggregation.residual_rank


def _residual_parameters(layout: Layout, sections: FederationSections) -> int:
    return 0 if sections.aggregation.mode == "product" else of_rank(layout, sections.aggregation.residual_rank).size


def render(found: Forecast, sections: FederationSections) -> str:
    lines = [
        f"{len(sections.nodes)} nodes, {found.rounds} rounds, adapter of {found.parameters:,} parameters "
        f"({found.adapter_mb:.2f} MB)",
        f"per round    {found.node_mb:.2f} MB by each node (down and up), {found.coordinator_mb:.2f} MB in all",
        f"time         {found.round_seconds / 60:.1f} minutes a round: {sections.rounds.train_seconds} s training, "
        f"{found.transfer_seconds:.1f} s sending at {sections.uplink_mbit:g} Mbit/s, "
        f"{ROUND_OVERHEAD_SECONDS:g} s Flower, {found.aggregation_seconds:.1f} s aggregation",
        f"whole run    {found.hours:.1f} hours, {found.total_gb:.2f} GB",
        f"speed-up     {found.speed_up:.2f} times the tokens per hour of one such box",
    ]
    if found.frozen_mb:
        lines.append(
            f"memory       {found.frozen_mb:.0f} MB more on each card than `mens-sup plan` says, for the frozen adapter"
        )
    if not found.in_time:
        lines.append(
            f"too slow     no node would be in time: answers take "
            f"{found.round_seconds - found.aggregation_seconds:.0f} s and the deadline is "
            f"{sections.rounds.deadline_seconds} s. Raise rounds.deadline_seconds, or lower model.lora.r"
        )
    return "\n".join(lines)
