"""A delta counts only when everything about it is right."""

import io
import json
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from trainer.federated.deltas import Asked, Claim, delta_norm, fault, outliers, read_claim, sign
from trainer.federated.packed import (
    Layer,
    Layout,
    NotAnAdapterError,
    digest,
    layout_of,
    named,
    pack,
    read_npy,
    unpack,
)

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


# proves FED-1 (numbers that nobody can have reached are none: they could be neither weighed nor written down)
@pytest.mark.parametrize("key", ["label_tokens", "tokens", "steps", "rows", "round"])
def test_a_claim_has_numbers_within_reason(key: str) -> None:
    plain = msgspec.structs.asdict(CLAIM)
    assert read_claim(json.dumps({**plain, key: 2**48}).encode()) is not None
    for count in (2**48 + 1, int("9" * 4300), -1):
        assert read_claim(json.dumps({**plain, key: count}).encode()) is None


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


def test_values_that_no_adapter_has_are_refused_though_signed() -> None:
    for value, why in ((100.0, "None"), (101.0, "a value of 101"), (1e30, "a value of 1e+30")):
        huge = np.where(np.arange(len(ENDED)) == 5, -value, ENDED).astype(np.float32)
        claim = msgspec.structs.replace(CLAIM, digest=digest(huge))
        assert why in str(fault(claim, sign(claim, KEY), huge, ASKED, KEY.public_key()))


# proves FED-1 (norm outliers, from the first round on; a tiny delta keeps nobody else's out)
def test_a_delta_far_larger_than_usual_is_an_outlier() -> None:
    assert outliers({"a": 1.0, "b": 1.2, "c": 50.0}, [1.1], 10) .keys() == {"c"}
    assert outliers({"a": 1.0, "b": 1e30, "c": 1.2}, [], 10).keys() == {"b"}
    assert outliers({"a": 1.0, "b": 1e-9, "c": 1.2}, [], 10) == {}
    assert outliers({"a": 1.0, "b": 50.0}, [], 10).keys() == {"b"}
    assert outliers({"a": 1.0, "b": 0.0}, [], 10) == {}
    assert outliers({"a": 1e30}, [], 10) == {}
    assert outliers({"b": 50.0}, [1.0, 1.1, 0.9], 10).keys() == {"b"}
    assert outliers({"b": 9.0}, [1.0, 1.1, 0.9], 10) == {}


def test_the_norm_of_a_delta_is_that_of_the_dense_difference() -> None:
    squares = 0.0
    began = ENDED[::-1].copy()
    for before, after in zip(unpack(LAYOUT, began), unpack(LAYOUT, ENDED), strict=True):
        squares += float(np.square(2.0 * (after.b @ after.a - before.b @ before.a), dtype=np.float64).sum())
    assert delta_norm(LAYOUT, 2.0, began, ENDED) == pytest.approx(squares**0.5, rel=1e-5)


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


# proves FED-1 (an array that is none is refused before memory is taken for what its header says)
def test_only_flat_float32_arrays_are_read() -> None:
    whole = _npy(ENDED)
    assert np.array_equal(read_npy(whole), ENDED)
    huge = b"{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000000,), }"
    header = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + huge.ljust(117) + b"\n"
    for data in (
        b"", b"junk", whole[:9], whole[:-1], whole + b"1", header, _npy(ENDED.astype(np.float64)),
        _npy(ENDED.reshape(2, -1)), _npy(np.array([{}], dtype=object)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"it is no array|it says|magic|header"):
            read_npy(data)


# proves FED-1 (one flat array, and back)
def test_an_adapter_survives_the_flat_array() -> None:
    tensors = named(LAYOUT, ENDED)
    assert layout_of(tensors) == LAYOUT
    assert np.array_equal(pack(LAYOUT, tensors), ENDED)
    with pytest.raises(NotAnAdapterError, match="other layers"):
        pack(Layout(2, LAYOUT.layers[:1]), tensors)
    with pytest.raises(NotAnAdapterError, match="lm_head"):
        layout_of({**tensors, "lm_head.weight": ENDED})
