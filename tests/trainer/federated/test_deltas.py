"""A delta counts only when everything about it is right."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from trainer.federated.deltas import Asked, Claim, delta_norm, fault, outliers, read_claim, sign
from trainer.federated.packed import Layer, Layout, NotAnAdapterError, digest, layout_of, named, pack, unpack

LAYOUT = Layout(2, (Layer("one", 3, 4), Layer("two", 5, 3)))
BEGUN = np.zeros(LAYOUT.size, np.float32)
ENDED = np.linspace(-1, 1, LAYOUT.size, dtype=np.float32)
ASKED = Asked("lan", "node1", 7, digest(BEGUN), LAYOUT)
CLAIM = Claim("lan", "node1", 7, digest(BEGUN), LAYOUT.digest, digest(ENDED), 100, 140, 3, 9.5, 7)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


# proves FED-1 (what is handed in counts when it is right)
def test_a_right_delta_has_no_fault() -> None:
    assert fault(CLAIM, sign(CLAIM, KEY), ENDED, ASKED, KEY.public_key()) is None
    assert read_claim(msgspec.json.encode(CLAIM)) == CLAIM
    assert read_claim(b'{"federation": "lan"}') is None


# proves FED-1 (tampered, foreign, replayed and broken deltas are refused)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"round": 6}, "another round"),
        ({"node": "node2"}, "another node"),
        ({"federation": "wan"}, "another federation"),
        ({"began_from": "0" * 64}, "another broadcast"),
        ({"layout": "0" * 64}, "layers or rank"),
        ({"digest": "0" * 64}, "not those that were signed"),
        ({"label_tokens": 0}, "0 label tokens"),
        ({"label_tokens": 141}, "141 label tokens of 140"),
        ({"seconds": float("nan")}, "seconds"),
    ],
)
def test_what_is_signed_but_wrong_is_refused(change: dict[str, Any], why: str) -> None:
    claim = msgspec.structs.replace(CLAIM, **change)
    found = fault(claim, sign(claim, KEY), ENDED, ASKED, KEY.public_key())
    assert found is not None and why in found


# proves FED-1 (nobody else's signature, and no claim changed after it was signed)
def test_the_signature_is_the_nodes_and_over_this_very_claim() -> None:
    stranger = Ed25519PrivateKey.from_private_bytes(bytes(32))
    more = msgspec.structs.replace(CLAIM, label_tokens=140)
    for claim, signature in ((CLAIM, sign(CLAIM, stranger)), (more, sign(CLAIM, KEY)), (CLAIM, b"")):
        assert "signature" in str(fault(claim, signature, ENDED, ASKED, KEY.public_key()))


def _with_nan(flat: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(np.arange(len(flat)) == 5, np.nan, flat).astype(np.float32)


# proves FED-1 (bytes changed on the way, values that are not finite, other shapes)
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda flat: flat + np.float32(1e-3), "not those that were signed"),
        (lambda flat: flat[:-1], "shape"),
        (lambda flat: flat.astype(np.float64), "float64"),
    ],
)
def test_an_array_that_was_changed_is_refused(spoil: Callable[[Any], Any], why: str) -> None:
    assert why in str(fault(CLAIM, sign(CLAIM, KEY), spoil(ENDED), ASKED, KEY.public_key()))


def test_values_that_are_not_finite_are_refused_though_signed() -> None:
    broken = _with_nan(ENDED)
    claim = msgspec.structs.replace(CLAIM, digest=digest(broken))
    assert "not finite" in str(fault(claim, sign(claim, KEY), broken, ASKED, KEY.public_key()))


# proves FED-1 (norm outliers)
def test_a_delta_far_larger_than_usual_is_an_outlier_once_something_is_usual() -> None:
    assert outliers({"a": 1.0, "b": 1.2, "c": 50.0}, [1.1], 10) .keys() == {"c"}
    assert outliers({"a": 1.0, "b": 50.0}, [], 10) == {}
    assert outliers({"b": 50.0}, [1.0, 1.1, 0.9], 10).keys() == {"b"}
    assert outliers({"b": 9.0}, [1.0, 1.1, 0.9], 10) == {}


def test_the_norm_of_a_delta_is_that_of_the_dense_difference() -> None:
    squares = 0.0
    began = ENDED[::-1].copy()
    for before, after in zip(unpack(LAYOUT, began), unpack(LAYOUT, ENDED), strict=True):
        squares += float(np.square(2.0 * (after.b @ after.a - before.b @ before.a), dtype=np.float64).sum())
    assert delta_norm(LAYOUT, 2.0, began, ENDED) == pytest.approx(squares**0.5, rel=1e-5)


# proves FED-1 (one flat array, and back)
def test_an_adapter_survives_the_flat_array() -> None:
    tensors = named(LAYOUT, ENDED)
    assert layout_of(tensors) == LAYOUT
    assert np.array_equal(pack(LAYOUT, tensors), ENDED)
    with pytest.raises(NotAnAdapterError, match="other layers"):
        pack(Layout(2, LAYOUT.layers[:1]), tensors)
    with pytest.raises(NotAnAdapterError, match="lm_head"):
        layout_of({**tensors, "lm_head.weight": ENDED})
