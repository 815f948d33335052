"""The control for errors of output moments: its expectation is 0, and it takes away much of the spread."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnlimit import Gaussian, Head, Sphere
from attnlimit.designs import Sampling
from attnlimit.sampling import measure_convergence, moments
from attnlimit.sampling.fitted import FittedGaussian, TokenMoments, controlled, is_fitted
from attnlimit.sampling.reference import Power, output_covariance
from attnlimit.sampling.replicates import Sample
from attnlimit.sampling.statistic import Own, Setup, set_up


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


ROOT = _normal(4, 4, seed=4)
LAW = Gaussian(mean=[0.3, -0.2, 0.1, 0.0], cov=0.2 * ROOT @ ROOT.T)
HEAD = Head(0.3 * _normal(4, 4, seed=1), _normal(3, 4, seed=2))


def _plan(n: list[int], law: Gaussian | Sphere = LAW, head: Head = HEAD) -> Setup:
    return set_up(head, law, n, Sampling(), Own(16))


def _terms(tokens: Tensor, order: int) -> Tensor:
    """h(y) for every token from its definition, not centred."""
    V, B = HEAD.V, HEAD.V @ LAW.covariance @ HEAD.A
    away = tokens - LAW.mean
    if order == 1:
        return away @ (V + B).T
    p, q, r = away @ V.T, away @ (B @ LAW.covariance @ HEAD.A.T).T, away @ B.T
    return (p[:, :, None] * q[:, None] + q[:, :, None] * p[:, None] + r[:, :, None] * r[:, None]).flatten(1)


@pytest.mark.parametrize("order", [1, 2])
def test_expectation_is_that_of_many_draws(order: int, generator: torch.Generator) -> None:
    """E‖h‖² against 200,000 draws, 4 standard errors (false-alarm rate 6e-5 each)."""
    terms = _terms(LAW.sample(200_000, generator=generator).tokens, order)
    squares = (terms - terms.mean(0)).square().sum(1)
    error = float(squares.std()) / len(squares) ** 0.5
    assert FittedGaussian(_plan([10]), order).expected == pytest.approx(float(squares.mean()), abs=4 * error)


@pytest.mark.parametrize("order", [1, 2])
def test_the_control_is_the_square_of_the_average_term(order: int, generator: torch.Generator) -> None:
    n = [5, 17, 40]
    tokens = LAW.sample(40, generator=generator).tokens
    fitted = FittedGaussian(_plan(n), order)
    mean = torch.zeros(1) if order == 1 else fitted.image(LAW.covariance).flatten()
    terms, so_far = _terms(tokens, order), TokenMoments(fitted)
    for size in n:
        so_far.take(tokens[:size])
        expected = (terms[:size].mean(0) - mean).square().sum() - fitted.expected / size
        assert float(so_far.control()) == pytest.approx(float(expected), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("biases", [False, True])
def test_the_fitted_map_is_the_limit_of_the_fitted_gaussian(
    order: int, biases: bool, generator: torch.Generator
) -> None:
    extra = {"bq": _normal(2, seed=7), "bv": _normal(3, seed=8)} if biases else {}
    head = Head.from_projections(_normal(2, 4, seed=5), _normal(2, 4, seed=6), HEAD.V, **extra)
    tokens = LAW.sample(30, generator=generator).tokens
    plan = _plan([30], head=head)
    so_far, truth = TokenMoments(FittedGaussian(plan, order)), output_covariance(plan.limit, LAW, 1)
    so_far.take(tokens)
    sample = Sample(tokens[:3, :3], tokens[:3, :3], 0.0, tokens=tokens, queries=tokens[:3])
    if order == 1:
        truth = truth._replace(value=truth.mean)
    sample, base = so_far.at(sample, truth)
    outputs = head(Gaussian(mean=tokens.mean(0), cov=torch.cov(tokens.T, correction=0)))(tokens)
    torch.testing.assert_close(sample.limits, outputs[:3])
    torch.testing.assert_close(base[0], outputs.mean(0) - truth.mean)
    if order == 2:
        away = outputs - truth.mean
        torch.testing.assert_close(base[1], (away.T @ away / 30).flatten() - truth.value)


def test_each_replicate_takes_the_coefficient_of_the_others(generator: torch.Generator) -> None:
    c = torch.randn(9, 2, generator=generator, dtype=torch.float64)
    s = 3 * c + torch.randn(9, 2, generator=generator, dtype=torch.float64)
    for left_out in range(9):
        others = [r for r in range(9) if r != left_out]
        both = torch.stack([s[others, 1], c[others, 1]])
        beta = torch.cov(both)[0, 1] / torch.cov(both)[1, 1]
        assert float(controlled(s, c)[left_out, 1]) == pytest.approx(
            float(s[left_out, 1] - beta * c[left_out, 1])
        )


@pytest.mark.parametrize(("statistic", "least"), [("mean", 4.0), ("covariance", 2.0)])
def test_it_narrows_the_curve_and_does_not_move_it(
    statistic: str, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same 200 replicates with and without it: averages agree within 4 standard errors of the difference, and
    the variance falls."""
    setting = {"statistic": statistic, "queries": Own(64), "replicates": 200}
    head = HEAD.scaled(0.7)
    with_it = measure_convergence(head, LAW, [100, 400], generator=7, **setting)
    monkeypatch.setattr(moments, "is_fitted", lambda setup, power: False)
    without = measure_convergence(head, LAW, [100, 400], generator=7, **setting)
    assert "own mean and covariance" in with_it.method
    assert "own mean and covariance" not in without.method
    difference = without.squares - with_it.squares
    assert bool((difference.mean(0).abs() < 4 * difference.std(0) / 200**0.5).all())
    assert bool((without.squares.var(0) > least * with_it.squares.var(0)).all())


def test_there_is_none_for_other_laws_and_statistics() -> None:
    assert is_fitted(_plan([10]), None)
    assert not is_fitted(_plan([10]), Power(3))
    assert not is_fitted(_plan([10], Sphere(4)), None)
