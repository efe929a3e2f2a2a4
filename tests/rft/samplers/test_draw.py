"""Drawing a token."""

import math

import torch

from rft.samplers.draw import draw, log_distribution, uniform
from rft.samplers.sampler import Sampling


def sampling(temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> Sampling:
    return Sampling(temperature, top_p, top_k, 16)


def reference(logits: list[float], how: Sampling) -> dict[int, float]:
    """Temperature, then top_k, then top_p, in plain Python."""
    whole = sum(math.exp(value / how.temperature) for value in logits)
    ranked = sorted(range(len(logits)), key=lambda token: -logits[token])
    ranked = ranked[: how.top_k or len(ranked)]
    kept_mass = sum(math.exp(logits[token] / how.temperature) for token in ranked)
    assert kept_mass <= whole * (1 + 1e-12)
    kept, before = [], 0.0
    for token in ranked:
        if before >= how.top_p:
            break
        kept.append(token)
        before += math.exp(logits[token] / how.temperature) / kept_mass
    mass = sum(math.exp(logits[token] / how.temperature) for token in kept)
    return {token: math.exp(logits[token] / how.temperature) / mass for token in kept}


# proves RFT-8: log-probabilities are those of the distribution that was drawn from
def test_distribution_is_that_of_temperature_top_k_and_top_p() -> None:
    torch.manual_seed(0)
    for vocabulary in (50, 3000):
        logits = 3 * torch.randn(4, vocabulary)
        for how in (
            sampling(), sampling(0.7), sampling(1.3, top_p=0.9), sampling(top_k=7), sampling(0.8, 0.6, 20),
            sampling(top_p=0.999), sampling(5.0, top_p=0.99),
        ):  # fmt: skip
            found = log_distribution(logits, how)
            for row in range(4):
                expected = reference(logits[row].double().tolist(), how)
                kept = torch.isfinite(found[row]).nonzero()[:, 0].tolist()
                assert sorted(kept) == sorted(expected)
                assert all(abs(math.exp(found[row, token]) - share) < 1e-5 for token, share in expected.items())


def test_tokens_come_as_often_as_they_are_likely() -> None:
    shares = [0.5, 0.3, 0.15, 0.05]
    logits = torch.tensor([shares]).log().expand(4000, 4)
    tokens, logprobs = draw(logits, [uniform(seed, 0) for seed in range(4000)], sampling())
    for token, share in enumerate(shares):
        assert abs(tokens.count(token) / 4000 - share) < 4 * math.sqrt(share * (1 - share) / 4000)
    assert all(abs(math.exp(value) - shares[token]) < 1e-6 for token, value in zip(tokens, logprobs, strict=True))


def test_what_cannot_be_drawn_never_is() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]])
    for number in (0.0, 0.25, 0.5, 0.999999999999, 1 - 2**-53):
        assert draw(logits, [number], sampling())[0][0] in (1, 3)


def test_temperature_zero_takes_the_likeliest_and_tells_the_models_probability() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    tokens, logprobs = draw(logits, [0.99], sampling(0.0))
    assert tokens == [1]
    assert abs(logprobs[0] - float(torch.log_softmax(logits, -1)[0, 1])) < 1e-6


# proves RFT-4: what a sample is does not depend on who is drawn with it
def test_a_row_is_drawn_alike_whoever_is_beside_it() -> None:
    torch.manual_seed(1)
    for scale in (0.01, 3.0):  # nearly even: top_p needs more than the likeliest thousand
        logits = scale * torch.randn(6, 4000)
        how = sampling(0.9, top_p=0.95)
        together = draw(logits, [0.1 * row for row in range(6)], how)
        for row in range(6):
            alone = draw(logits[row : row + 1], [0.1 * row], how)
            assert (alone[0][0], alone[1][0]) == (together[0][row], together[1][row])


def test_random_numbers_are_apart_for_neighbouring_seeds_and_places() -> None:
    numbers = [uniform(seed, place) for seed in range(50) for place in range(50)]
    assert len(set(numbers)) == 2500
    assert all(0 <= number < 1 for number in numbers)
    assert abs(sum(numbers) / 2500 - 0.5) < 0.03
