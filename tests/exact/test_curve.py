"""Averages over queries: against direct quadrature, Monte Carlo over queries, and the asymptotic exponents."""

from __future__ import annotations

import math

import pytest
import torch

import attnlimit as al
from attnlimit.errors import InputError
from attnlimit.exact.curve import query_average
from attnlimit.rates import exponents
from attnlimit.reproduce.exact import continued

F64 = {"dtype": torch.float64}


@pytest.mark.parametrize("horizon", [0.5, 2.0])
def test_one_dimension_against_quadrature_over_the_query(horizon):
    """x ~ N(0, 1) by Gauss–Hermite-like trapezoid, the error at each x by the exact engine."""
    sizes = [3, 100, 10**6]
    head, law = al.Head([[horizon]]), al.Gaussian(dim=1)
    x = torch.linspace(-9, 9, 401, **F64)
    mass = torch.exp(-x.square() / 2) / (2 * torch.pi) ** 0.5 * (x[1] - x[0])
    square = al.exact_error(head, law, sizes, x[:, None]).mean_square
    rms, mean_rms = (al.curve(head, law, sizes, statistic) for statistic in ("rms", "mean_rms"))
    assert torch.allclose(rms.error, (mass @ square).sqrt(), rtol=1e-6)
    assert torch.allclose(mean_rms.error, mass @ square.sqrt(), rtol=1e-6)
    assert rms.standard_error is mean_rms.standard_error is None


@pytest.mark.parametrize("kind", ["gaussian", "low rank", "sphere"])
def test_many_dimensions_against_random_queries(kind):
    """400 random queries, 6 comparisons at 4.5 standard errors: a false alarm once in 25,000 runs."""
    g = torch.Generator().manual_seed(11)
    d = 6
    A, V = torch.randn(d, d, generator=g, **F64) / d**0.5, torch.randn(2, d, generator=g, **F64)
    law = al.Sphere(d, 2.0) if kind == "sphere" else al.Gaussian(cov=torch.linspace(0.1, 1.0, d, **F64))
    head = al.Head.from_projections(A[:2], A[2:4], V, scale=1.0) if kind == "low rank" else al.Head(A, V)
    sizes = [2, 30, 1000]
    rms, mean_rms = (al.curve(head, law, sizes, statistic) for statistic in ("rms", "mean_rms"))
    sample = al.exact_error(head, law, sizes, law.sample(400, generator=12).tokens)
    for values, mean in ((sample.mean_square, rms.error.square()), (sample.rms, mean_rms.error)):
        z = (values.mean(0) - mean) / (values.std(0) / 400**0.5)
        assert float(z.abs().max()) < 4.5
    scale = sample.limit_square
    assert abs(float(scale.mean()) - rms.scale**2) < 4.5 * float(scale.std()) / 400**0.5


def test_other_laws_say_that_queries_were_sampled():
    law = al.Mixture([0.5, 0.5], [al.Gaussian(mean=[1.0], cov=0.1), al.Gaussian(mean=[-1.0], cov=0.1)])
    result = al.curve(al.Head([[1.0]]), law, [10, 100])
    assert "512 random queries" in result.method
    assert bool((result.standard_error > 0).all())


def test_no_scores_is_the_plain_average():
    law = al.Gaussian(cov=2.0, dim=3)
    result = al.curve(al.Head(torch.zeros(3, 3, **F64)), law, [1, 10])
    assert torch.allclose(result.error, (6.0 / torch.tensor([1.0, 10.0], **F64)).sqrt())


@pytest.mark.parametrize("horizon", [0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0])
def test_local_exponents_approach_the_sharp_ones(horizon):
    """Local exponents beyond 10^8, continued to n → ∞ by a line in 1/log n, are within 0.015, and those at 10^12 above the
    published rate. The published exponent fails the same test where they differ."""
    sizes = [10**k for k in range(2, 13)]
    head, law, sharp = al.Head([[horizon]]), al.Gaussian(dim=1), exponents(horizon)
    rms, mean_rms = (al.curve(head, law, sizes, name) for name in ("rms", "mean_rms"))
    assert abs(continued(rms) - sharp.rms) < 0.015
    assert abs(continued(mean_rms) - sharp.mean_rms) < 0.015
    assert min(float(one.local_slopes()[-1]) for one in (rms, mean_rms)) > sharp.paper
    assert abs(continued(mean_rms) - sharp.paper) > 0.02


def test_bad_input():
    law = al.Gaussian(dim=2)
    with pytest.raises(InputError, match="one head at a time"):
        al.curve(al.Head(torch.zeros(3, 2, 2, **F64)), law, 10)
    with pytest.raises(InputError, match=r"beyond 10\^12, where the quadrature is no longer tested"):
        al.curve(al.Head([[1.0]]), al.Gaussian(dim=1), n=[10, 10**13])
    with pytest.raises(InputError, match="do not fit 1-dimensional queries"):
        al.curve(al.Head(torch.zeros(2, 1, **F64)), law, 10)
    with pytest.raises(InputError, match="statistic must be one of rms, mean_rms, got 'median'"):
        al.curve(al.Head([[1.0]]), al.Gaussian(dim=1), 10, "median")


def test_bounded_tokens_need_not_follow_the_gaussian_exponents() -> None:
    """Signs in one dimension at H = 3, whose Gaussian rms exponent is 0.05: local exponents as a binomial sum has them."""
    n = [1, 2, 15, 16, 500, 510]
    error = al.exact_error(al.Head([[3.0]]), al.Rademacher(1), n, [[1.0]]).rms[0].log()
    local = [float(error[k] - error[k + 1]) / math.log(n[k + 1] / n[k]) for k in (0, 2, 4)]
    assert local == pytest.approx([0.5, 4.7525, 0.5089], abs=2e-4)


@pytest.mark.parametrize("size", [1e-30, 1e-60, 1e-100, 1e-160, 1e-320])
def test_scores_of_any_smallness_average_plainly(size: float) -> None:
    rms, _ = query_average(al.Head([[size]]), al.Gaussian(dim=1), 100)([100])
    assert float(rms.error) == pytest.approx(0.1, rel=1e-10)
