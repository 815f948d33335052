"""The covariance of the error, against all draws, Monte Carlo and the mean square error."""

from __future__ import annotations

import itertools

import pytest
import torch

import attnlimit as al
from attnlimit.designs import Coins, Different, Independent, Kept, Sampling
from attnlimit.errors import InputError

F64 = {"dtype": torch.float64}


def population(keys, seed):
    g = torch.Generator().manual_seed(seed)
    return al.Empirical(
        2 * torch.randn(keys, 1, generator=g, **F64), torch.randn(keys, 3, generator=g, **F64)
    )


def draws(name, rest, n):
    """All draws with their probabilities, as counts of each key."""
    if name == "independent":
        return [(d, len(rest) ** -float(n)) for d in itertools.product(rest, repeat=n)]
    if name == "different":
        sets = list(itertools.combinations(rest, n))
        return [(d, 1 / len(sets)) for d in sets]
    p = n / len(rest)
    sets = [d for k in range(1, len(rest) + 1) for d in itertools.combinations(rest, k)]
    some = 1 - (1 - p) ** len(rest)
    return [(d, p ** len(d) * (1 - p) ** (len(rest) - len(d)) / some) for d in sets]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("draw", [Independent(), Different(), Coins()])
def test_equals_all_draws(draw, keep):
    pop, n = population(7, 1), 3
    rest = list(range(1, 7)) if keep else list(range(7))
    plan = Sampling(draw=draw, kept=Kept(sinks=1) if keep else Kept(), weight="rest")
    found = al.error_covariance(al.Head([[1.0]], torch.eye(3, **F64)), pop, n, [[1.0]], sampling=plan)
    w = pop.tokens[:, 0].exp()
    limit = w @ pop.values / w.sum()
    second, bias = torch.zeros(3, 3, **F64), torch.zeros(3, **F64)
    for keys, chance in draws(draw.name, rest, n):
        times = torch.zeros(7, **F64)
        times[0] = float(keep)
        for key in keys:
            times[key] += len(rest) / n
        error = (times * w) @ pop.values / (times @ w) - limit
        second, bias = second + chance * torch.outer(error, error), bias + chance * error
    torch.testing.assert_close(found.second[0, 0], second, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found.bias[0, 0], bias, rtol=1e-5, atol=1e-7)


def test_a_law_against_monte_carlo_and_the_mean_square():
    """20,000 draws of 10 Gaussian tokens: every entry within 4.5 standard errors (false alarm 7e-6 each; the seed is fixed)."""
    law, n = al.Gaussian(cov=[[1.0, 0.4], [0.4, 0.5]]), 10
    head = al.Head([[1.0, 0.2], [0.0, 0.8]], [[1.0, -0.5], [0.3, 2.0]])
    x = torch.tensor([[1.0, -0.7]], **F64)
    found = al.error_covariance(head, law, n, x)
    exact = al.exact_error(head, law, n, x)
    assert float(found.second[0, 0].trace()) == pytest.approx(float(exact.mean_square), rel=1e-9)
    assert float(found.bias[0, 0].square().sum()) == pytest.approx(float(exact.bias_square), rel=1e-9)
    tokens = law.sample(20_000 * n, generator=3).tokens.reshape(20_000, n, 2)
    p = (tokens @ head.score_vector(x)[0]).softmax(1)
    errors = (p[:, None] @ tokens)[:, 0] @ head.V.T - head(law)(x)[0]
    products = errors[:, :, None] * errors[:, None, :]
    spread = products.std(0) / 20_000**0.5
    assert float(((products.mean(0) - found.second[0, 0]) / spread).abs().max()) < 4.5
    along = al.exact_error(head.along([1.0, 2.0]), law, n, x)
    assert float(found.along([1.0, 2.0])) == pytest.approx(float(along.rms), rel=1e-9)
    assert float(found.covariance[0, 0].trace()) == pytest.approx(float(exact.variance), rel=1e-9)


def test_one_head_and_one_direction_at_a_time():
    two = al.Head(torch.ones(2, 1, 1, **F64))
    with pytest.raises(InputError, match="one head at a time"):
        al.error_covariance(two, al.Gaussian(dim=1), 2, [[1.0]])
    with pytest.raises(InputError, match="direction must be one vector"):
        al.Head([[1.0]]).along([[1.0]])
