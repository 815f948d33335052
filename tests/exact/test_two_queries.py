"""Two queries that read the same keys: enumeration, Monte Carlo, one query twice, the limit in closed form."""

from __future__ import annotations

import itertools

import pytest
import torch

import attnlimit as al
from attnlimit.errors import InputError, LimitDoesNotExist, NotKnown
from attnlimit.exact import limit_covariance, mean_output_error, two_query_covariance

F64 = {"dtype": torch.float64}
X = torch.tensor([[1.0, -0.5], [0.3, 1.2]], **F64)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **F64)


HEAD = al.Head(0.8 * normal(2, 2, seed=1), normal(3, 2, seed=2))
LAW = al.Gaussian(cov=[[1.0, 0.3], [0.3, 0.6]])
TOKENS = al.Empirical(normal(4, 2, seed=3), 2 * normal(4, 2, seed=4))


@pytest.mark.parametrize("weights", [None, [0.1, 0.2, 0.3, 0.4]])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_against_every_draw_of_a_population(n: int, weights: list[float] | None) -> None:
    tokens = al.Empirical(TOKENS.tokens, TOKENS.values, weights)
    truth = HEAD(tokens)(X)
    expected, mean = torch.zeros(3, 3, **F64), torch.zeros((), **F64)
    for draw in itertools.product(range(4), repeat=n):
        chance = tokens.probabilities[list(draw)].prod()
        errors = HEAD(tokens.select(torch.tensor(draw)))(X) - truth
        expected += chance * torch.outer(errors[0], errors[1])
        mean += chance * errors.mean(0).square().sum()
    found = two_query_covariance(HEAD, tokens, n, *X)
    torch.testing.assert_close(found.covariance[0], expected, rtol=1e-6, atol=1e-8)
    assert found.to_dict()["n"] == [n]
    curve = mean_output_error(HEAD, tokens, n, X)
    torch.testing.assert_close(mean_output_error(HEAD, tokens, n, torch.cat([X, X])).error, curve.error)
    assert curve.at(n) ** 2 == pytest.approx(float(mean), rel=1e-6)


@pytest.mark.parametrize("s", [0.5, 2.0])
def test_one_query_twice_is_the_error_itself(s: float) -> None:
    n = [1, 10, 1000, 10**6]
    head = al.Head(s * torch.eye(2, **F64), [[1.0, 0.5]])
    once = al.exact_error(head, al.Gaussian(dim=2), n, [[1.0, 0.0]]).mean_square[0]
    twice = two_query_covariance(head, al.Gaussian(dim=2), n, [1.0, 0.0], [1.0, 0.0]).product
    torch.testing.assert_close(twice, once, rtol=2e-6, atol=0)


@pytest.mark.parametrize("n", [3, 40])
def test_against_monte_carlo(n: int) -> None:
    """20,000 draws, each of 9 entries within 5.3 standard errors (false alarms: 1e-6 in all); with x alone it is not."""
    keys = LAW.sample(20_000 * n, generator=5).tokens.reshape(20_000, n, 2)
    a = HEAD.score_vector(X)
    weights = (keys @ a.T).softmax(1)
    outputs = torch.einsum("rkx,rkd->rxd", weights, keys) @ HEAD.V.T
    errors = outputs - HEAD(LAW)(X)
    products = errors[:, 0, :, None] * errors[:, 1, None, :]
    noise = products.std(0) / 20_000**0.5
    found = two_query_covariance(HEAD, LAW, n, *X).covariance[0]
    assert float(((found - products.mean(0)).abs() / noise).max()) < 5.3
    same = two_query_covariance(HEAD, LAW, n, X[0], X[0]).covariance[0]
    assert float(((same - products.mean(0)).abs() / noise).max()) > 5.3


def test_many_keys_have_the_covariance_of_the_limit_process() -> None:
    found = two_query_covariance(HEAD, LAW, 10**9, *X).covariance[0] * 10**9
    torch.testing.assert_close(found, limit_covariance(HEAD, LAW, *X), rtol=1e-5, atol=1e-6)
    found = two_query_covariance(HEAD, TOKENS, 10**9, *X).covariance[0] * 10**9
    torch.testing.assert_close(found, limit_covariance(HEAD, TOKENS, *X), rtol=1e-5, atol=1e-6)
    diagonal = limit_covariance(HEAD, LAW, X[0], X[0])
    torch.testing.assert_close(diagonal, al.clt(HEAD, LAW, X[0]).covariance)


def test_the_mean_output_of_fresh_queries() -> None:
    """As n → ∞ with K = SᵀS, S = Σ^½AΣ^½ and V = I: n E‖·‖² → |I − K²|^{−½} (d + tr K²(I − K²)^{−1}); at n = 30 Monte Carlo of 200
    replicates, within 5 standard errors (false alarms: 6e-7), while the error at one query is far off."""
    S = torch.tensor([[0.5, 0.2], [0.0, 0.4]], **F64)
    head, law = al.Head(S), al.Gaussian(dim=2)
    curve = mean_output_error(head, law, [30, 10**9])
    eye, square = torch.eye(2, **F64), S.T @ S @ S.T @ S
    limit = torch.linalg.det(eye - square) ** -0.5 * (
        2 + torch.trace(square @ torch.linalg.inv(eye - square))
    )
    assert curve.at(10**9) ** 2 * 10**9 == pytest.approx(float(limit), rel=5e-4)
    assert curve.standard_error is not None
    assert float(curve.standard_error[0]) < 1e-3 * curve.at(30)
    assert curve.rows is not None
    torch.testing.assert_close(curve.rows.square().mean(0).sqrt(), curve.error)
    found = al.measure_convergence(
        head, law, [30], statistic="mean", queries=48, replicates=200, generator=6
    ).squares
    noise = float(found.std()) / 200**0.5
    assert abs(float(found.mean()) - curve.at(30) ** 2) < 5 * noise
    assert abs(float(found.mean()) - al.curve(head, law, 30).at(30) ** 2) > 5 * noise


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: two_query_covariance(HEAD, al.Sphere(2), 3, *X), NotKnown, "Gaussian tokens and for populations"),
        (lambda: two_query_covariance(HEAD, LAW, 3, X, X[0]), InputError, "one query each"),
        (lambda: mean_output_error(HEAD, TOKENS, 3), InputError, "give queries="),
        (lambda: mean_output_error(al.Head([[1.0]]), al.Gaussian([1.0], 1.0), 3), NotKnown, "scores are centred"),
        (lambda: limit_covariance(al.Head([[0.7]]), al.Laplace(1), [1.0], [1.0]), LimitDoesNotExist, "No limit covariance"),
    ],
)  # fmt: skip
def test_what_is_refused(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
