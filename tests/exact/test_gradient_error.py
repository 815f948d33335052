"""Gradients of n tokens: enumeration, Monte Carlo, the central limit theorem."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import attnlimit as al
from attnlimit.errors import InputError, NotKnown
from attnlimit.exact import gradient_error

F64 = {"dtype": torch.float64}
X = torch.tensor([[1.0, -0.5, 0.8]], **F64)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **F64)


HEAD = al.Head(0.7 * normal(3, 3, seed=1), normal(2, 3, seed=2))


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_against_every_draw_of_a_population(n: int) -> None:
    """The tokens' own derivatives, by `head(tokens)`'s softmax covariance, over all draws of n of 4 keys with chances of their own."""
    chances = torch.tensor([0.1, 0.4, 0.2, 0.3], **F64)
    tokens = al.Empirical(2 * normal(4, 3, seed=3), normal(4, 3, seed=4), chances)
    a = HEAD.score_vector(X)[0]
    covariance, mean = HEAD.V @ tokens.tilted_cov(a), tokens.tilted_mean(a)
    scores = values = 0.0
    for draw in itertools.product(range(4), repeat=n):
        some = tokens.select(torch.tensor(draw))
        chance = float(chances[list(draw)].prod())
        scores += chance * float((HEAD.V @ some.tilted_cov(a) - covariance).square().sum() * X.square().sum())
        values += chance * float((some.tilted_mean(a) - mean).square().sum())
    found = gradient_error(HEAD, tokens, n, X)
    assert found.scores.item() == pytest.approx(scores, rel=1e-6)
    assert found.values.item() == pytest.approx(values, rel=1e-6)
    assert found.to_dict()["n"] == [n]


@pytest.mark.parametrize("n", [3, 40])
def test_gaussian_tokens_against_monte_carlo(n: int) -> None:
    """20,000 draws, within 5 standard errors (false alarms: 6e-7); the derivative without V is not."""
    law = al.Gaussian(cov=[[1.0, 0.3, 0.0], [0.3, 0.6, 0.1], [0.0, 0.1, 0.8]])
    keys = law.sample(20_000 * n, generator=6).tokens.reshape(20_000, n, 3)
    p = (keys @ HEAD.score_vector(X)[0]).softmax(1)
    mean = torch.einsum("rn,rni->ri", p, keys)
    covariance = torch.einsum("rn,rni,rnj->rij", p, keys, keys) - mean[:, :, None] * mean[:, None]
    errors = (HEAD.V @ (covariance - law.cov)).square().sum((1, 2)) * X.square().sum()
    noise = float(errors.std()) / 20_000**0.5
    assert abs(gradient_error(HEAD, law, n, X).scores.item() - float(errors.mean())) < 5 * noise
    plain = gradient_error(al.Head(HEAD.A), law, n, X).scores.item()
    assert abs(plain - float(errors.mean())) > 5 * noise


@pytest.mark.parametrize("s", [8.0, 20.0])
def test_widely_spread_scores_against_monte_carlo(s: float) -> None:
    """20,000 draws of 30 keys, within 5 standard errors (false alarms: 6e-7); the limit's weights lie far beyond all keys here."""
    y = normal(20_000, 30, 2, seed=7)
    p = (s * y[..., 0]).softmax(1)
    centred = y - torch.einsum("rn,rni->ri", p, y)[:, None]
    off = torch.einsum("rn,rni,rnj->rij", p, centred, centred) - torch.eye(2, **F64)
    errors = off.square().sum((1, 2))
    found = gradient_error(
        al.Head(s * torch.eye(2, **F64)), al.Gaussian(dim=2), 30, [[1.0, 0.0]]
    ).scores.item()
    assert abs(found - float(errors.mean())) < 5 * float(errors.std()) / 20_000**0.5


def test_scores_too_wide_for_a_grid_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"spread by 1e\+03 standard deviations, and grids are made up to 40"
    ):
        gradient_error(al.Head([[1000.0]]), al.Gaussian(dim=1), 10, [[1.0]])


@pytest.mark.parametrize("s", [0.5, 1.0])
def test_many_gaussian_tokens_follow_the_central_limit_theorem(s: float) -> None:
    """In one dimension n E(C_n − C)² → e^{s²} E((z + s)² − 1)² = e^{s²}(2 + 4s² + s⁴)."""
    found = gradient_error(al.Head([[s]]), al.Gaussian(dim=1), 10**8, [[1.0]])
    assert 10**8 * found.scores.item() == pytest.approx(math.exp(s * s) * (2 + 4 * s**2 + s**4), rel=1e-5)


def test_other_laws_are_refused() -> None:
    with pytest.raises(NotKnown, match="for Gaussian tokens and for populations"):
        gradient_error(HEAD, al.Sphere(3), 3, X)
