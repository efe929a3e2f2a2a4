"""How a run stands with its evaluations: the best so far, and how long nothing better has come. Pure, without torch.

An evaluation is compared with the reference, row by row. Of three answers one is given:

- better: the gain is at least ``min_delta`` and larger than its noise; it becomes the reference,
- stale: even the gain plus its noise is below ``min_delta``; this alone counts against the patience,
- undecided: the noise is too large to tell; it counts neither way.

So a run is never stopped by noise, and many small gains add up against the same reference until they are one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec
import numpy as np

from trainer.eval_noise import Difference, RowLosses, comparable, paired


class Verdict(enum.StrEnum):
    FIRST = "first"
    BETTER = "better"
    STALE = "stale"
    UNDECIDED = "undecided"


class Reference(msgspec.Struct, frozen=True):
    """An evaluation kept to compare with, row by row."""

    step: int
    nats: tuple[float, ...]
    tokens: tuple[int, ...]
    groups: tuple[int, ...]

    @property
    def losses(self) -> RowLosses:
        return RowLosses(
            np.array(self.nats, np.float64), np.array(self.tokens, np.int64), np.array(self.groups, np.int64)
        )


class Standing(msgspec.Struct, frozen=True):
    """``evaluations.json`` in a checkpoint: what resuming must know of the evaluations so far.

    ``step``: of the last one, -1 before the first; ``loss`` and ``stderr`` in nats per token are its. ``stale``: how
    many in a row were stale (undecided ones aside). ``alarmed``: the memorisation alarm was given.
    """

    step: int = -1
    loss: float = 0.0
    stderr: float | None = None
    reference: Reference | None = None
    stale: int = 0
    alarmed: bool = False


@dataclass(frozen=True)
class Judged:
    """``difference`` is None for the first evaluation, or where the rows are other ones than the reference's."""

    standing: Standing
    verdict: Verdict
    difference: Difference | None


def judge(before: Standing, step: int, losses: RowLosses, min_delta: float) -> Judged:
    """Take in the evaluation after ``step`` optimiser steps; ``min_delta`` in nats per token."""
    now = msgspec.structs.replace(before, step=step, loss=losses.loss, stderr=losses.stderr)
    reference = before.reference
    if reference is None or not comparable(reference.losses, losses):
        return Judged(_better(now, losses), Verdict.FIRST, None)
    difference = paired(reference.losses, losses)
    if difference.noise is None:
        return Judged(now, Verdict.UNDECIDED, difference)
    if difference.gain >= min_delta and difference.gain > difference.noise:
        return Judged(_better(now, losses), Verdict.BETTER, difference)
    if difference.gain + difference.noise < min_delta:
        return Judged(msgspec.structs.replace(now, stale=before.stale + 1), Verdict.STALE, difference)
    return Judged(now, Verdict.UNDECIDED, difference)


def stops(standing: Standing, patience: int | None) -> bool:
    """Whether enough stale evaluations came in a row; never without ``patience``."""
    return patience is not None and standing.stale >= patience


def _better(now: Standing, losses: RowLosses) -> Standing:
    reference = Reference(
        now.step, tuple(losses.nats.tolist()), tuple(losses.tokens.tolist()), tuple(losses.groups.tolist())
    )
    return msgspec.structs.replace(now, reference=reference, stale=0)
