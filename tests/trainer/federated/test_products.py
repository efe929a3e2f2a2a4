"""The mathematics of rounds against the dense reference."""

import numpy as np
import pytest

from trainer.federated.products import (
    Exactly,
    Matrix,
    Term,
    exact_round,
    mean_factors,
    norm,
    product_round,
    refactor,
)

M, N, R = 40, 56, 4


def _draw(draw: np.random.Generator, rows: int, columns: int) -> Matrix:
    return draw.normal(size=(rows, columns)).astype(np.float32)


def _terms(weights: list[float], seed: int = 0, rank: int = R) -> list[Term]:
    draw = np.random.default_rng(seed)
    return [
        Term(weight, _draw(draw, M, rank), _draw(draw, rank, N)) for weight in weights
    ]


def _dense(terms: list[Term]) -> Exactly:
    whole = np.zeros((terms[0].b.shape[0], terms[0].a.shape[1]))
    for term in terms:
        whole += term.coefficient * term.b.astype(np.float64) @ term.a.astype(np.float64)
    return whole


def _error(found: Exactly, wanted: Exactly) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


# proves FED-1 (product aggregation is the weighted mean of the products, to 1e-5 at full rank)
def test_product_aggregation_equals_the_dense_reference() -> None:
    terms = _terms([0.5, 0.3, 0.2])
    wanted = _dense(terms)
    found = refactor(terms, 3 * R)
    assert _error(found.b @ found.a, wanted) < 1e-5
    assert found.lost_share < 1e-12
    b, a = mean_factors(terms)
    plain = _error(b @ a, wanted)
    assert plain > 0.3  # what averaging factors would have got wrong, beside it
    both = product_round(terms, 3 * R)
    assert both.missed == pytest.approx(plain * float(np.linalg.norm(wanted)), rel=1e-6)
    assert np.array_equal(both.factored.b, found.b) and np.array_equal(both.factored.a, found.a)
    assert norm(terms) == pytest.approx(float(np.linalg.norm(wanted)), rel=1e-6)


# proves FED-1 (the truncation is the best there is, and what it lost is said)
def test_a_smaller_rank_keeps_the_largest_singular_values_and_says_what_it_lost() -> None:
    terms = _terms([0.5, 0.3, 0.2])
    wanted = _dense(terms)
    u, values, vt = np.linalg.svd(wanted)
    best = (u[:, :R] * values[:R]) @ vt[:R]
    found = refactor(terms, R)
    assert found.b.shape == (M, R) and found.a.shape == (R, N)
    assert _error(found.b @ found.a, best) < 1e-5
    assert found.lost == pytest.approx(float(np.square(values[R:]).sum()), rel=1e-6)
    assert found.lost_share == pytest.approx(_error(found.b @ found.a, wanted) ** 2, rel=1e-6)


# proves FED-1 (a late delta: its product minus the product that it began with, with a smaller weight)
def test_terms_may_be_negative_so_a_late_delta_is_a_sum_as_well() -> None:
    now, late, began = _terms([1.0, 0.25, -0.25], seed=3)
    found = refactor([now, late, began], 3 * R)
    assert _error(found.b @ found.a, _dense([now, late, began])) < 1e-5


# proves FED-1 (nothing learnt yet leaves an adapter that can learn)
@pytest.mark.parametrize("ranks", [[R, R], [1, 1, 3]])
def test_directions_that_are_not_used_stay_able_to_learn(ranks: list[int]) -> None:
    draw = np.random.default_rng(1)
    terms = [
        Term(1 / len(ranks), np.zeros((M, rank), np.float32), 0.1 * _draw(draw, rank, N)) for rank in ranks
    ]
    found = refactor(terms, R)
    assert float(np.abs(found.b).max()) < 1e-12
    gram = found.a @ found.a.T
    length = float(np.diag(gram).mean())
    assert length == pytest.approx(0.01 * N, rel=0.3)  # as long as the nodes' rows
    assert np.allclose(gram, length * np.eye(R), atol=1e-9)


def test_one_node_alone_gets_its_own_product_back() -> None:
    terms = _terms([1.0])
    found = refactor(terms, R)
    assert _error(found.b @ found.a, _dense(terms)) < 1e-5
    assert product_round(terms, R).missed < 1e-9


def test_a_layer_narrower_than_the_stack_of_factors() -> None:
    draw = np.random.default_rng(2)
    terms = [Term(0.5, _draw(draw, M, 8), _draw(draw, 8, 10)) for _ in range(3)]
    wanted = _dense(terms)
    found = refactor(terms, 8)
    u, values, vt = np.linalg.svd(wanted, full_matrices=False)
    assert _error(found.b @ found.a, (u[:, :8] * values[:8]) @ vt[:8]) < 1e-5
    with pytest.raises(ValueError, match="rank 11"):
        refactor(terms, 11)


# proves FED-1 (FedEx-LoRA: mean factors plus the frozen residual are the ideal, round after round)
def test_exact_mode_equals_the_ideal_over_rounds() -> None:
    frozen: list[Term] = []
    base = np.zeros((M, N))  # what the ideal has put into the weights besides the factors
    for number in range(3):
        terms = _terms([0.6, 0.4], seed=number, rank=2)
        after = exact_round(terms, frozen, cap=20)
        ideal = base + _dense(terms)
        assert _error(after.b @ after.a + after.frozen.b @ after.frozen.a, ideal) < 1e-5
        assert after.norm == pytest.approx(float(np.linalg.norm(ideal)), rel=1e-6)
        missed = float(np.linalg.norm(_dense(terms) - after.b @ after.a))
        assert after.missed == pytest.approx(missed, rel=1e-6) and missed > 0.1 * np.linalg.norm(_dense(terms))
        base = ideal - after.b @ after.a
        frozen = [Term(1.0, after.frozen.b, after.frozen.a)]


def test_exact_mode_with_a_capped_residual_says_what_it_lost() -> None:
    after = exact_round(_terms([0.5, 0.3, 0.2]), [], cap=2)
    assert after.frozen.a.shape == (2, N)
    assert 0.1 < after.frozen.lost_share < 0.95
