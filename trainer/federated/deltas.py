"""What a node hands in, and everything that must be right about it before it counts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from trainer.federated.packed import Flat, Layout, digest, unpack
from trainer.federated.products import Term, norm

CONTEXT = b"mens-sup federated delta 1\n"
"""Begins what is signed, so that no signature for another purpose fits."""
K = TypeVar("K", bound=Hashable)
LARGEST_VALUE = 100.0
"""In the factors of an adapter. A begins below 1 and B at 0, and both move by about a learning rate a step; this is far
beyond what any training comes to, and products of such values are finite in float32."""
Amount = Annotated[int, msgspec.Meta(ge=0, le=2**48)]
"""Sums of these stay below 2**63, beyond which they could not be written down."""


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a node says of the adapter that it hands in, and signs.

    ``round``: whose broadcast it began from, ``began_from`` the digest of that broadcast. ``digest``: of the array.
    ``label_tokens``: of the losses averaged in this round, by which a delta weighs; ``tokens`` and ``rows``: what they
    were read from, prompts and all. ``seconds``: of training.
    """

    federation: str
    node: str
    round: Amount
    began_from: str
    layout: str
    digest: str
    label_tokens: Amount
    tokens: Amount
    steps: Amount
    seconds: float
    rows: Amount


def sign(claim: Claim, key: Ed25519PrivateKey) -> bytes:
    return key.sign(_signed(claim))


def _signed(claim: Claim) -> bytes:
    return CONTEXT + msgspec.json.encode(claim)


def read_claim(data: bytes) -> Claim | None:
    """None for what is not a claim, also for one of numbers beyond all reason."""
    try:
        return msgspec.json.decode(data, type=Claim)
    except msgspec.DecodeError:
        return None


class Asked(msgspec.Struct, frozen=True):
    """What the coordinator asked the node for."""

    federation: str
    node: str
    round: int
    began_from: str
    layout: Layout


def fault(claim: Claim, signature: bytes, flat: Flat, asked: Asked, key: Ed25519PublicKey) -> str | None:
    """Why the delta does not count, as half a sentence; None when nothing is wrong with it.

    ``key``: that of the node that was asked, as ``federate init`` recorded it. Norms are :func:`outliers`' business.
    """
    try:
        key.verify(signature, _signed(claim))
    except InvalidSignature:
        return "its signature is not that of this node"
    for what, said, wanted in (
        ("federation", claim.federation, asked.federation),
        ("node", claim.node, asked.node),
        ("round", claim.round, asked.round),
        ("broadcast", claim.began_from, asked.began_from),
        ("layers or rank", claim.layout, asked.layout.digest),
    ):
        if said != wanted:
            return f"it is for another {what} ({str(said)[:40]!r} instead of {str(wanted)[:40]!r})"
    if flat.dtype != np.float32 or flat.shape != (asked.layout.size,):
        return f"it has the shape {list(flat.shape)} of {flat.dtype}, not [{asked.layout.size}] of float32"
    if digest(flat) != claim.digest:
        return "its bytes are not those that were signed"
    if not np.isfinite(flat).all():
        return "it has values that are not finite"
    if (largest := float(np.abs(flat).max(initial=0.0))) > LARGEST_VALUE:
        return f"it has a value of {largest:.3g}, and no adapter's factors come to more than {LARGEST_VALUE:g}"
    if not 0 < claim.label_tokens <= claim.tokens or not (math.isfinite(claim.seconds) and claim.seconds >= 0):
        return f"it claims {claim.label_tokens} label tokens of {claim.tokens} tokens in {claim.seconds} seconds"
    return None


def delta_norm(layout: Layout, scale: float, began: Flat, ended: Flat) -> float:
    """How far a node has moved the weights: the Frobenius norm of ``scale`` x (B A - B0 A0) over all layers."""
    squares = 0.0
    for before, after in zip(unpack(layout, began), unpack(layout, ended), strict=True):
        squares += norm([Term(scale, after.b, after.a), Term(-scale, before.b, before.a)]) ** 2
    return math.sqrt(squares)


def outliers(norms: Mapping[K, float], earlier: Sequence[float], times: float) -> dict[K, str]:
    """The deltas that are more than ``times`` as large as is usual, with why.

    Usual is the median of those that counted before and of the others now, without any that moved nothing. In a first
    round of two that is the other one, so the larger of two that differ so much doesn't count; of three, one alone can
    neither get a huge delta counted nor keep the others' out by a tiny one. Where there is nothing to compare with,
    nothing is an outlier.
    """
    found = {}
    for key, size in norms.items():
        others = [*earlier, *(other for name, other in norms.items() if name != key)]
        moved = [other for other in others if other > 0]
        if moved and size > times * (usual := statistics.median(moved)):
            found[key] = f"it moves the weights by {size:.3g}, {times:g} times {usual:.3g} would be the most"
    return found
