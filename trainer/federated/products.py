"""What several adapters come to: sums of products B A, without ever holding an m x n matrix.

A LoRA layer adds ``s B A`` to a weight (B: m x r, A: r x n). What nodes have learnt is the product, so the mean is
taken over products. The sum of N products is ``[c1 B1 | ... | cN BN] [A1; ...; AN]``; QR of both stacks leaves a core
of at most N r x N r, and its SVD gives the best factors of rank r (Eckart-Young). The mean factors lie in the same two
bases, so what averaging them would miss is read off the core as well. All of it is computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating]
Exactly = NDArray[np.float64]
NEGLIGIBLE = 1e-9
"""Of a norm: what is smaller is rounding of float64 sums, and takes up no rank."""


@dataclass(frozen=True)
class Term:
    """``coefficient * b @ a``; b: [m, r], a: [r, n]. The ranks of the terms of a sum may differ."""

    coefficient: float
    b: Matrix
    a: Matrix


@dataclass(frozen=True)
class Factored:
    """The best approximation of a sum of products: b [m, rank], a [rank, n], float64.

    ``kept`` and ``lost``: squared Frobenius norms of what b @ a holds and of what the rank had no room for.
    """

    b: Exactly
    a: Exactly
    kept: float
    lost: float

    @property
    def lost_share(self) -> float:
        """Of the sum's energy, 0 to 1; 0 for a sum that is zero."""
        whole = self.kept + self.lost
        return self.lost / whole if whole > 0 else 0.0


@dataclass(frozen=True)
class _Core:
    """The terms in two orthonormal bases, column by column: their sum is ``left @ upper @ lower.T @ right.T``.

    upper [p, k], lower [q, k]: k ranks in all, those of the first term first; upper has the coefficients in it.
    """

    left: Exactly
    upper: Exactly
    right: Exactly
    lower: Exactly

    def middle(self, ranks: int | None = None) -> Exactly:
        """[p, q]: the sum, or that of the terms with the first so many ranks."""
        found: Exactly = self.upper[:, :ranks] @ self.lower[:, :ranks].T
        return found

    def mean(self, terms: Sequence[Term]) -> Exactly:
        """[p, q]: what averaging the factors makes of the sum of ``terms``, which are the core's first, of one rank."""
        whole, rank = math.fsum(term.coefficient for term in terms), terms[0].a.shape[0]
        b, a = np.zeros((len(self.upper), rank)), np.zeros((len(self.lower), rank))
        for number, term in enumerate(terms):
            part = slice(number * rank, (number + 1) * rank)
            b += self.upper[:, part]
            a += term.coefficient * self.lower[:, part]
        found: Exactly = b @ a.T / whole
        return found

    def factored(self, middle: Exactly, rank: int, length: float) -> Factored:
        """The best factors of ``rank`` of what is ``middle`` in these bases; the rows of a are ``length`` long."""
        u, values, vt = np.linalg.svd(middle, full_matrices=False)
        if rank > len(values):
            raise ValueError(f"rank {rank} is more than the {len(values)} directions that these factors have")
        energy = np.square(values)
        return Factored(
            b=self.left @ (u[:, :rank] * values[:rank]) / length,
            a=length * vt[:rank] @ self.right.T,
            kept=float(energy[:rank].sum()),
            lost=float(energy[rank:].sum()),
        )


def refactor(terms: Sequence[Term], rank: int) -> Factored:
    """The sum of the terms as factors of ``rank``.

    The rows of a are orthogonal and as long as the rows of the terms are on average, so the learning rate goes on
    meaning what it did; b carries the singular values. A direction that the sum doesn't use gets a column of zeros in b
    and a row of full length in a, as a fresh adapter has: with zeros in both it could never learn again. Raises
    ValueError for no terms, or a rank that the layer or the terms cannot give.
    """
    core = _core(terms)
    return core.factored(core.middle(), rank, _row_length(terms))


def norm(terms: Sequence[Term]) -> float:
    """The Frobenius norm of the sum of the terms."""
    return float(np.linalg.norm(_core(terms).middle()))


def mean_factors(terms: Sequence[Term]) -> tuple[Exactly, Exactly]:
    """What plain averaging takes: the weighted means of b and of a. The terms must be of one rank."""
    whole = math.fsum(term.coefficient for term in terms)
    b, a = np.zeros(terms[0].b.shape), np.zeros(terms[0].a.shape)
    for term in terms:
        b += (term.coefficient / whole) * term.b
        a += (term.coefficient / whole) * term.a
    return b, a


@dataclass(frozen=True)
class Mean:
    """One layer after a round. ``missed``: the norm of what plain averaging of the factors would have been off by."""

    factored: Factored
    missed: float


def product_round(terms: Sequence[Term], rank: int) -> Mean:
    """:func:`refactor`, and what averaging would have missed, by one set of QRs. The terms must be of one rank."""
    core = _core(terms)
    whole = core.middle()
    missed = float(np.linalg.norm(whole - core.mean(terms)))
    return Mean(core.factored(whole, rank, _row_length(terms)), missed)


@dataclass(frozen=True)
class Exact:
    """One layer after a FedEx-LoRA round: the mean factors (trained on), and the residual so far (frozen).

    ``norm``: of the whole sum, the residual before it included; ``missed``: of what this round's mean factors miss.
    """

    b: Exactly
    a: Exactly
    frozen: Factored
    norm: float
    missed: float


def exact_round(terms: Sequence[Term], frozen: Sequence[Term], cap: int) -> Exact:
    """The mean factors and, in a frozen adapter of rank ``cap`` at most, all that they miss, this round's and before
    (FedEx-LoRA, arXiv 2410.09432). The terms must be of one rank.

    ``frozen``: the residual so far, as terms; none in the first round. While ``cap`` is at least the residual's rank,
    mean factors plus residual are the ideal sum.
    """
    b, a = mean_factors(terms)
    core = _core([*terms, *frozen])
    whole, mean = core.middle(), core.mean(terms)
    beside = float(np.linalg.norm(whole))
    missing = whole - mean
    rank = min(cap, int((np.linalg.svd(missing, compute_uv=False) > NEGLIGIBLE * beside).sum()))
    length = _row_length([*frozen, *terms, Term(1.0, b, a)])
    this_round = core.middle(sum(term.a.shape[0] for term in terms)) - mean
    return Exact(b, a, core.factored(missing, rank, length), beside, float(np.linalg.norm(this_round)))


def _core(terms: Sequence[Term]) -> _Core:
    if not terms:
        raise ValueError("a sum of no terms has no shape")
    left, upper = np.linalg.qr(np.concatenate([term.coefficient * term.b.astype(np.float64) for term in terms], 1))
    right, lower = np.linalg.qr(np.concatenate([term.a.astype(np.float64) for term in terms]).T)
    return _Core(left, upper, right, lower)


def _row_length(terms: Sequence[Term]) -> float:
    """Root mean square length of the rows of a; 1 where all are zero."""
    squares = sum(float(np.square(term.a, dtype=np.float64).sum()) for term in terms)
    rows = sum(term.a.shape[0] for term in terms)
    return math.sqrt(squares / rows) or 1.0
