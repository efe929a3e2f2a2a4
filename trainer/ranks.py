"""The processes of one training as one of them sees the others.

A single process has none: nothing here touches ``torch.distributed`` then.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not say that it is public

from trainer.launcher import STORE_VARIABLE, Place

T = TypeVar("T")

NOTHING = -1
"""In the place of a bin: a sequence of padding, for a rank that has fewer bins than another."""
PATIENCE = datetime.timedelta(days=2)
"""Of an exchange between ranks. One may save or build caches for long; what is too long, the supervisor decides."""


@dataclass(frozen=True)
class Ranks:
    """``index`` of ``size`` processes. ``control``: their group for small exchanges in host memory."""

    index: int = 0
    size: int = 1
    control: Any = field(default=None, compare=False)

    @property
    def first(self) -> bool:
        """Is this the rank that writes and reports?"""
        return self.index == 0

    def gather(self, value: T) -> list[T]:
        """Everybody's values, in the order of the ranks. Every rank must ask."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        distributed.all_gather_object(found, value, group=self.control)
        return found

    def any(self, mine: bool) -> bool:
        """Is it true in any rank? Every rank must ask."""
        if self.size == 1:
            return mine
        flag = torch.tensor(int(mine))
        distributed.all_reduce(flag, op=distributed.ReduceOp.MAX, group=self.control)
        return bool(flag)

    def wait(self) -> None:
        """Until every rank has come here."""
        if self.size > 1:
            distributed.barrier(group=self.control)

    @contextmanager
    def first_before_others(self) -> Iterator[None]:
        """Rank 0 does it, and fills the caches; then the others do it."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()

    def part(self) -> None:
        """At the end of an attempt: wait for the others, and leave the group."""
        if self.size > 1:
            self.wait()
            distributed.destroy_process_group()


ALONE = Ranks()


def meet(place: Place | None, device: torch.device) -> Ranks:
    """Find the other ranks that the launcher has started. ``place`` None: there are none."""
    if place is None:
        return ALONE
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        place.size,
        is_master=place.rank == 0,
        timeout=PATIENCE,
        wait_for_workers=False,
        master_listen_fd=_listening(),
    )
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl" if cuda else "gloo", store=store, rank=place.rank, world_size=place.size, timeout=PATIENCE,
        device_id=device if cuda else None,
    )  # fmt: skip
    control = distributed.new_group(backend="gloo", timeout=PATIENCE) if cuda else distributed.group.WORLD
    return Ranks(place.rank, place.size, control)


def _listening() -> int | None:
    """Rank 0 gets the socket that the launcher listens at, so that nobody can take the port in between."""
    number = os.environ.pop(STORE_VARIABLE, None)
    if number is None:
        return None
    os.set_inheritable(int(number), False)
    return int(number)


def bins_of_rank(first_bin: int, total_bins: int, micro_batch: int, ranks: Ranks) -> npt.NDArray[np.int64]:
    """The bins that a rank takes from ``first_bin`` (the first of an optimiser step) on, micro-batch by micro-batch.

    The micro-batches of a step go round the ranks. All ranks get as many; where the plan's last ones are not enough
    for everybody, :data:`NOTHING` stands in for them.
    """
    if ranks.size == 1:
        return np.arange(first_bin, total_bins)
    round_of_all = micro_batch * ranks.size
    rounds = -(-(total_bins - first_bin) // round_of_all)
    grid = np.arange(first_bin, first_bin + rounds * round_of_all).reshape(rounds, ranks.size, micro_batch)
    mine = grid[:, ranks.index].ravel()
    return np.where(mine < total_bins, mine, NOTHING)


def share_only_gradients(model: torch.nn.Module) -> None:
    """Keep DDP from sending the frozen base and the buffers round: every rank has loaded the same."""
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    ignored = [*frozen, *(name for name, _ in model.named_buffers())]
    model._ddp_params_and_buffers_to_ignore = ignored  # type: ignore[assignment]  # an attribute like any other


class StepExchange:
    """What the ranks tell each other at the end of every step, in one exchange.

    ``stop``: somebody asked one of them to stop. ``rng_of_others``: the random states of the ranks after the first.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._rows = self._tokens = 0
        self.stop = False
        self.rng_of_others: list[Mapping[str, Any]] = []

    def count(self, rows: int, tokens: int) -> None:
        """This rank has trained on so many in a micro-batch."""
        self._rows += rows
        self._tokens += tokens

    def finish(self, stop: bool, random_state: Callable[[], Mapping[str, Any]]) -> tuple[int, int]:
        """Rows and tokens of the step over all ranks. Every rank must ask, once a step."""
        rng = random_state() if self._ranks.size > 1 else {}
        everybody = self._ranks.gather((self._rows, self._tokens, stop, rng))
        self._rows = self._tokens = 0
        self.stop = any(stops for _, _, stops, _ in everybody)
        self.rng_of_others = [states for _, _, _, states in everybody[1:]]
        return sum(rows for rows, _, _, _ in everybody), sum(tokens for _, tokens, _, _ in everybody)
