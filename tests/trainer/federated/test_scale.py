"""What docs/scale.md says of 3, 30 and 300 nodes is what ``mens-sup federate plan`` computes."""

import math
from pathlib import Path

import pytest

from trainer.federated.config import FederationSections
from trainer.federated.forecast import Forecast, aggregation_seconds, forecast, render
from trainer.federated.packed import Layer, Layout

DOC = Path(__file__).parents[3] / "docs" / "scale.md"
SHAPES = ((4096, 2560), (1024, 2560), (1024, 2560), (2560, 4096), (9728, 2560), (9728, 2560), (2560, 9728))
LAYOUT = Layout(16, tuple(Layer(f"{block}.{i}", *shape) for block in range(36) for i, shape in enumerate(SHAPES)))
"""Qwen3-4B, all linear layers, rank 16."""
DAY = 86_400


def sections_of(nodes: int, mbit: float, **more: object) -> FederationSections:
    names = [f"node{number}" for number in range(nodes)]
    document = {"name": "lan", "host": "h", "nodes": names, "train": "t.yaml", "uplink_mbit": mbit, **more}
    return FederationSections.model_validate(document)


def planned(nodes: int, mbit: float) -> Forecast:
    return forecast(LAYOUT, sections_of(nodes, mbit))


def cost_row(nodes: int, mbit: int) -> str:
    found = planned(nodes, mbit)
    return (
        f"| {nodes} | {mbit} | {found.coordinator_mb:,.0f} | {found.transfer_seconds:,.0f} | "
        f"{found.aggregation_seconds:,.0f} | {found.round_seconds:,.0f} | {found.speed_up:.2f} | "
        f"{'yes' if found.in_time else 'no'} |"
    )


def failure_row(nodes: int, days: int) -> str:
    """At 1000 Mbit/s. A round with a dead node lasts to its deadline, and the dead node's share is gone."""
    found = planned(nodes, 1000)
    answered = found.round_seconds - found.aggregation_seconds
    dead = 1 - math.exp(-nodes * answered / (days * DAY))
    longer = found.round_seconds + dead * max(0.0, 900 - answered)
    alive = math.exp(-answered / (days * DAY))
    return f"| {nodes} | {days} | {dead:.1%} | {longer:,.0f} | {nodes * alive * 600 / longer:.2f} |"


# proves FED-1 (the tables of docs/scale.md are those of federate plan)
@pytest.mark.parametrize("nodes", [3, 30, 300])
def test_the_tables_are_what_plan_computes(nodes: int) -> None:
    lines = DOC.read_text(encoding="utf-8").splitlines()
    assert [row for mbit in (100, 1000) if (row := cost_row(nodes, mbit)) not in lines] == []
    assert [row for days in (1, 30) if (row := failure_row(nodes, days)) not in lines] == []


# proves FED-1 (plan counts what the coordinator computes; measured on one core, within a factor of two, in both modes)
@pytest.mark.parametrize(
    ("rows", "columns", "nodes", "product", "exact"),
    [(4096, 2560, 3, 0.037, 0.106), (9728, 2560, 3, 0.096, 0.225), (4096, 2560, 30, 0.65, 0.92),
     (2560, 9728, 30, 1.25, 1.43), (1024, 2560, 300, 7.86, 9.6)],
)  # fmt: skip
def test_aggregation_takes_about_what_was_measured(
    rows: int, columns: int, nodes: int, product: float, exact: float
) -> None:
    layout = Layout(16, (Layer("one", rows, columns),))
    for held, measured in ((0, product), (64, exact)):
        assert measured / 2 < aggregation_seconds(layout, nodes, held) < measured * 2


# proves FED-1 (speed-up: N boxes, less what a round takes beyond training; the deadline is for answers only)
def test_a_round_is_training_sending_flower_and_aggregation() -> None:
    found = planned(40, 1000)
    assert found.round_seconds == pytest.approx(600 + found.transfer_seconds + 10 + found.aggregation_seconds)
    assert found.speed_up == pytest.approx(40 * 600 / found.round_seconds)
    assert found.round_seconds > 900 and found.in_time


# proves FED-1 (what exact mode costs is said: in bytes down, and in each card's memory)
def test_the_frozen_adapter_is_counted() -> None:
    sections = sections_of(3, 1000, aggregation={"mode": "exact", "residual_rank": 32})
    found, plain = forecast(LAYOUT, sections), planned(3, 1000)
    assert found.frozen_mb == pytest.approx(2 * plain.adapter_mb)
    assert found.node_mb == pytest.approx(2 * plain.adapter_mb + found.frozen_mb)
    assert f"memory       {found.frozen_mb:.0f} MB more on each card" in render(found, sections)
    assert "memory" not in render(plain, sections_of(3, 1000))
