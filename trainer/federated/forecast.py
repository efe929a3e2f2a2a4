"""What a federation will cost and gain, purely, from the size of its adapter and its file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from supervisor.yaml_source import read_yaml
from trainer.config import LoraSection
from trainer.federated.config import FederationSections

ROUND_OVERHEAD_SECONDS = 10.0
"""Flower's own per round: polling and a process per message. Measured: 8 to 11 s with flwr 1.42 on loopback."""
MB = 1e6


@dataclass(frozen=True)
class Forecast:
    """Of one round unless it says otherwise. ``speed_up``: tokens per hour, as a multiple of one box of the same make
    that trains all the time. It holds for equal boxes that are all there."""

    parameters: int
    adapter_mb: float
    node_mb: float
    coordinator_mb: float
    transfer_seconds: float
    round_seconds: float
    rounds: int
    hours: float
    total_gb: float
    speed_up: float
    in_time: bool

    def as_dict(self) -> dict[str, float | int | bool]:
        return asdict(self)


def forecast(parameters: int, sections: FederationSections) -> Forecast:
    """``parameters``: of the adapter; they travel as float32.

    A node gets the adapter and sends it back; the coordinator's line, taken to be as fast as the slowest node's,
    carries all nodes' one after the other in each direction. In exact mode the frozen adapter is sent as well, at its
    cap.
    """
    adapter = parameters * 4 / MB
    down = adapter + (_residual_parameters(parameters, sections) * 4 / MB)
    nodes, rounds = len(sections.nodes), sections.rounds
    transfer = nodes * (down + adapter) * 8 / sections.uplink_mbit
    whole = rounds.train_seconds + transfer + ROUND_OVERHEAD_SECONDS
    return Forecast(
        parameters=parameters,
        adapter_mb=adapter,
        node_mb=down + adapter,
        coordinator_mb=nodes * (down + adapter),
        transfer_seconds=transfer,
        round_seconds=whole,
        rounds=rounds.count,
        hours=rounds.count * whole / 3600,
        total_gb=rounds.count * nodes * (down + adapter) / 1000,
        speed_up=nodes * rounds.train_seconds / whole,
        in_time=whole <= rounds.deadline_seconds,
    )


def _residual_parameters(parameters: int, sections: FederationSections) -> float:
    if sections.aggregation.mode == "product":
        return 0
    return parameters * sections.aggregation.residual_rank / _rank(sections)


def _rank(sections: FederationSections) -> int:
    document, _ = read_yaml(Path(sections.train))
    model = document.get("model")
    lora = model.get("lora") if isinstance(model, dict) else None
    rank = lora.get("r") if isinstance(lora, dict) else None
    return rank if isinstance(rank, int) and rank > 0 else LoraSection().r


def render(found: Forecast, sections: FederationSections) -> str:
    lines = [
        f"{len(sections.nodes)} nodes, {found.rounds} rounds, adapter of {found.parameters:,} parameters "
        f"({found.adapter_mb:.2f} MB)",
        f"per round    {found.node_mb:.2f} MB by each node (down and up), {found.coordinator_mb:.2f} MB in all",
        f"time         {found.round_seconds / 60:.1f} minutes a round: {sections.rounds.train_seconds} s training, "
        f"{found.transfer_seconds:.1f} s sending at {sections.uplink_mbit:g} Mbit/s, "
        f"{ROUND_OVERHEAD_SECONDS:g} s Flower",
        f"whole run    {found.hours:.1f} hours, {found.total_gb:.2f} GB",
        f"speed-up     {found.speed_up:.2f} times the tokens per hour of one such box",
    ]
    if not found.in_time:
        lines.append(
            f"too slow     no node would be in time: a round takes {found.round_seconds:.0f} s and its deadline is "
            f"{sections.rounds.deadline_seconds} s. Raise rounds.deadline_seconds, or lower model.lora.r"
        )
    return "\n".join(lines)
