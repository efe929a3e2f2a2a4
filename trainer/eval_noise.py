"""What an evaluation can tell: the loss with its standard error, and which differences are larger than noise.

Pure, and free of torch. Rows that answer alike are no independent evidence, so everything here counts groups of them
(clusters), never rows or tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

QUANTILE = 0.975
"""Of Student's t: a difference within noise goes beyond it, up or down, in one case of twenty."""
ASSUMED_CORRELATION = 0.9
"""Between the rows' losses before and after some training: what makes a row hard stays. It is known only once there are
two evaluations, so this is a cautious guess (the quickstart has 0.98 over its first 16 steps and 0.998 over the next);
from then on the measured noise of the difference is used."""


@dataclass(frozen=True)
class RowLosses:
    """One evaluation, row by row.

    ``nats`` float64 [rows]: -log p summed over the row's label tokens, ``tokens`` int64 [rows]: how many these are,
    ``groups`` int64 [rows]: rows of the same number have the same answer or are near duplicates.
    """

    nats: Floats
    tokens: Ints
    groups: Ints

    @property
    def label_tokens(self) -> int:
        return int(self.tokens.sum())

    @property
    def clusters(self) -> int:
        """Groups that have a label token."""
        return int(np.count_nonzero(np.bincount(_dense(self.groups), weights=self.tokens)))

    @property
    def loss(self) -> float:
        """Nats per label token over all rows: sum over sum."""
        return float(self.nats.sum() / self.tokens.sum())

    @property
    def stderr(self) -> float | None:
        """Of :attr:`loss`; None with a single group, of whose noise nothing is known."""
        return _stderr(self.nats, self.tokens, self.groups)


@dataclass(frozen=True)
class Difference:
    """``gain``: how many nats per token the second of two evaluations of the same rows is lower.

    ``noise``: how far from the true gain it is in 19 cases of 20; None when nothing is known of that.
    """

    gain: float
    noise: float | None


def paired(before: RowLosses, now: RowLosses) -> Difference:
    """The difference of two evaluations, row by row: what makes a row hard cancels out, and with it most of the noise.

    Raises ValueError when these are not the same rows.
    """
    if not comparable(before, now):
        raise ValueError("only evaluations of the same rows can be compared row by row")
    gained = before.nats - now.nats
    stderr = _stderr(gained, now.tokens, now.groups)
    return Difference(float(gained.sum() / now.tokens.sum()), None if stderr is None else noise(stderr, now.clusters))


def comparable(before: RowLosses, now: RowLosses) -> bool:
    return np.array_equal(before.tokens, now.tokens) and np.array_equal(before.groups, now.groups)


def noise(stderr: float, clusters: int) -> float:
    """Half the width of the 95 % interval of an estimate from ``clusters`` groups."""
    return stderr * float(stdtrit(clusters - 1, QUANTILE))


def smallest_visible(losses: RowLosses) -> float | None:
    """The smallest difference between two checkpoints of one run that an evaluation of these rows can show.

    The noise of a difference is known only when there are two evaluations, so it is derived from that of the first:
    Var(a - b) = 2 (1 - r) Var(a) with the correlation r taken to be ASSUMED_CORRELATION. None: nothing is known.
    """
    stderr = losses.stderr
    if stderr is None:
        return None
    return noise(stderr * math.sqrt(2.0 * (1.0 - ASSUMED_CORRELATION)), losses.clusters)


def needed_share(visible: float, wanted: float) -> float:
    """How many times as many rows show ``wanted`` where these show ``visible``: noise falls with their square root."""
    return (visible / wanted) ** 2


def _stderr(nats: Floats, tokens: Ints, groups: Ints) -> float | None:
    """Standard error of the ratio sum(nats) / sum(tokens) over groups drawn independently.

    The ratio estimator's linearised variance, by clusters: Var(R) = G / (G - 1) * sum_g (y_g - R x_g)^2 / (sum x)^2,
    with y_g and x_g summed within group g of G (Cochran, Sampling Techniques, 3rd edition, sections 2.11 and 9A.1;
    Miller, arXiv 2411.00640, recommends the clustered form for evaluations of language models).
    """
    dense = _dense(groups)
    counts = np.bincount(dense, weights=tokens)
    kept = counts > 0
    size = int(kept.sum())
    if size < 2:
        return None
    sums, counts = np.bincount(dense, weights=nats)[kept], counts[kept]
    residuals = sums - sums.sum() / counts.sum() * counts
    return float(math.sqrt(size / (size - 1) * float((residuals**2).sum())) / counts.sum())


def _dense(groups: Ints) -> Ints:
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)
