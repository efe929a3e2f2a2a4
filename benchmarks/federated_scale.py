"""What the coordinator computes after a round of 3, 30 and 300 nodes: seconds, memory and bytes of one adapter.

The layers are those of a 4B-class model (Qwen3-4B: 36 blocks of 7 linear layers), rank 16. One layer of each shape is
measured with random factors and counted as often as the model has it. Two peers in the same run: plain averaging of the
factors, and the dense way, which adds up the m x n products and takes the SVD of the sum. See docs/scale.md.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import machine
import numpy as np

from trainer.federated.forecast import aggregation_seconds
from trainer.federated.packed import Layer, Layout
from trainer.federated.products import Term, exact_round, mean_factors, norm, product_round

BLOCKS = 36
SHAPES = {(4096, 2560): 1, (1024, 2560): 2, (2560, 4096): 1, (9728, 2560): 2, (2560, 9728): 1}
"""Rows and columns of the linear layers of a block, and how many there are."""
LAYOUT = Layout(16, tuple(
    Layer(f"{block}.{number}.{rows}x{columns}", rows, columns)
    for block in range(BLOCKS) for (rows, columns), count in SHAPES.items() for number in range(count)
))  # fmt: skip
HELD = 64
"""Rank of the frozen adapter of exact mode, the default."""


@dataclass
class Cost:
    """Seconds by the clock and of the processors."""

    wall: float = 0.0
    cpu: float = 0.0

    def add(self, work: Callable[[], object], times: float) -> float:
        """Returns the seconds of one."""
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self.wall, self.cpu = self.wall + times * wall, self.cpu + times * cpu
        return wall

    def __str__(self) -> str:
        return f"{self.wall:10.1f} s ({self.cpu:.1f} processor seconds)"


def terms_of(
    draw: np.random.Generator, nodes: int, rows: int, columns: int, rank: int = LAYOUT.rank
) -> list[Term]:
    """float32, as they come over the wire; what nodes have made of one broadcast is alike, and that is not used."""
    share = 1 / nodes
    return [
        Term(share, draw.standard_normal((rows, rank), np.float32),
             draw.standard_normal((rank, columns), np.float32))
        for _ in range(nodes)
    ]  # fmt: skip


def judge(terms: list[Term]) -> None:
    """The norm of every node's delta, as the coordinator takes it."""
    for term in terms:
        norm([term, Term(-1.0, terms[0].b, terms[0].a)])


def dense(terms: list[Term]) -> None:
    whole = np.zeros((terms[0].b.shape[0], terms[0].a.shape[1]))
    for term in terms:
        whole += term.coefficient * (term.b.astype(np.float64) @ term.a.astype(np.float64))
    np.linalg.svd(whole, full_matrices=False)


def measure(nodes: int, shrink: int, shapes: dict[tuple[int, int], int], with_dense: bool) -> None:
    draw = np.random.default_rng(7)
    whole, exact, plain, peer = Cost(), Cost(), Cost(), Cost()
    for (rows, columns), count in shapes.items():
        terms = terms_of(draw, nodes, rows // shrink, columns // shrink)
        times = count * BLOCKS
        seconds = [
            whole.add(lambda: product_round(terms, LAYOUT.rank), times),  # noqa: B023
            whole.add(lambda: judge(terms), times),  # noqa: B023
        ]
        held = terms_of(draw, 1, rows // shrink, columns // shrink, HELD)
        exact.add(lambda: exact_round(terms, held, HELD), times)  # noqa: B023
        plain.add(lambda: mean_factors(terms), times)  # noqa: B023
        if with_dense:
            peer.add(lambda: dense(terms), times)  # noqa: B023
        print(
            f"    {rows // shrink:5} x {columns // shrink:5}, {times:3} times: the sum {seconds[0]:8.3f} s, "
            f"norms {seconds[1]:8.3f} s",
            flush=True,
        )
    print(f"    product aggregation {whole}")
    print(f"    exact, the sum      {exact}")
    print(f"    averaging factors   {plain}; product aggregation takes {whole.wall / plain.wall:.0f} times that")
    if with_dense:
        print(f"    dense               {peer}; product aggregation takes {whole.wall / peer.wall:.3g} times that")
    if shrink == 1 and shapes == SHAPES:
        print(f"    federate plan says {aggregation_seconds(LAYOUT, nodes):.0f} s, of one core")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 30, 300])
    parser.add_argument("--shrink", type=int, default=1, help="divide all shapes by this, to try the script")
    parser.add_argument("--only", type=int, nargs=2, metavar=("ROWS", "COLUMNS"), help="one of the shapes")
    parser.add_argument("--no-dense", action="store_true", help="without the dense peer")
    options = parser.parse_args()
    print(f"federated_scale, {machine.describe()}, {os.environ['OMP_NUM_THREADS']} thread(s)")
    shapes = {tuple(options.only): SHAPES[tuple(options.only)]} if options.only else SHAPES
    size = LAYOUT.size * 4
    print(f"  adapter: {LAYOUT.size:,} numbers, {size / 1e6:.1f} MB, {len(LAYOUT.layers)} layers")
    for nodes in options.nodes:
        print(f"  {nodes} nodes: {nodes * size / 1e9:.2f} GB held by the coordinator, as much sent in each direction")
        measure(nodes, options.shrink, shapes, not options.no_dense)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"  most memory of this process, one layer at a time: {peak / 1e9:.2f} GB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
